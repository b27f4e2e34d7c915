// A user's own multiple-choice questions: how often a model finds the right answer more probable than the others.
//
// The file has one JSON object a line: {"prompt": "...", "choices": ["...", ...], "answer": 0}. The answer is the number
// of the right choice, from 0. A choice is scored as the text that follows the prompt, so it usually begins with a
// space. Empty lines are skipped.
#pragma once

#include "cli/cli.h"
#include "cli/session.h"

#define CHOICES_MAX       16 // of a question
#define CHOICES_LINES_MAX 100000
#define CHOICES_BYTES_MAX ((size_t)256 << 20) // of a file

struct choices_result {
    uint32_t questions;
    uint32_t right;         // by the sum of the choice's log probabilities
    uint32_t right_by_byte; // by that sum over the choice's bytes, which doesn't favour short answers
};

// The 95% confidence interval of a share (Wilson, 1927).
struct choices_interval {
    double low, high;
};
struct choices_interval choices_interval(uint32_t right, uint32_t n);

// Errors name the line that they are about; the caller adds the file. A question that doesn't fit max_seq_len is one.
// choices_check finds them without answering any.
enum iso_err choices_check(struct session *s, struct strv text, struct iso_errinfo *reterr) ISO_MUST_USE;
enum iso_err choices_run(struct session *s, struct strv text, struct cli_progress *progress,
                         struct choices_result *ret, struct iso_errinfo *reterr) ISO_MUST_USE;
