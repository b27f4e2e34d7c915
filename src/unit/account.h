// The memory account: every byte a running process takes, in four rows that sum to what the machine shows.
// Computed from a plan's header before anything is loaded; `fit`, `unit_open` and a running unit use the same
// numbers.
#pragma once

#include "plan/plan_format.h"

// Resident size of the program itself with its libraries, heap and main stack: 7.25 MiB. Measured of
// `isochron generate` on Debian 12; test_bounded.py compares.
#define ACCOUNT_IMAGE_BYTES ((uint64_t)29 << 18)

struct account {
    uint64_t weights;     // panels, vectors, tables: the plan's weights section
    uint64_t activations; // the arena
    uint64_t kv;          // kv_blocks * kv_block_bytes
    uint64_t runtime;     // the sum of the runtime_ parts

    uint64_t kv_blocks, kv_block_bytes, kv_token_bytes;
    uint64_t runtime_tables; // the unit's: slots, block tables, sampler
    uint64_t runtime_plan;   // the plan's program, tokenizer and template
    uint64_t runtime_stacks; // what the threads touch of theirs
    uint64_t runtime_text;   // the tokenizer's workspace
    uint64_t runtime_image;
};

// weights_bytes and other_bytes: of the plan file, the weights section and all the rest. text_bytes: what the
// text side (tokenizer) says it needs.
struct account account_of(const struct plan_header *h, uint64_t weights_bytes, uint64_t other_bytes,
                          uint32_t threads, uint64_t text_bytes);
uint64_t account_total(const struct account *a);
