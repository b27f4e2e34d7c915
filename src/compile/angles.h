// Rotary frequencies of a model, from what its files say. Internal to compile/.
#pragma once

#include "graph/ir.h"

// Frequency of each pair i < half: base^(-i / half), changed by the model's scaling; in f64, the same value everywhere.
//   linear   f / factor
//   llama3   by wavelength w = 2 pi / f: f where w < original / high, f / factor where w > original / low, between
//            them f ((1 - s) / factor + s), s = (original / w - low) / (high - low)
//   yarn     f (1 - r) + f / factor r, r = i's place between the pairs that turn `fast` and `slow` times over
//            `original` positions, from 0 to 1
// Then divided by `divisors` (f32, half of them; NULL: none), as GGUF files have llama3's scaling.
// llama3's changes are rounded to f32 as such files have them, so that both sources give the same table.
void angles_frequencies(const struct ir_rope *rope, uint32_t half, const float *divisors, double *ret);
