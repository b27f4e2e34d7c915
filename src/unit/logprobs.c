#include "unit/logprobs.h"

#include <string.h>

#include "base/assert.h"

// Keeps the list in its order. Ids come ascending, so of equal logits the earlier entry stays in front.
static void insert(struct token_logprob *list, uint32_t *n, uint32_t n_max, uint32_t id, float logit)
{
    uint32_t at = *n;
    while (at > 0 && list[at - 1].logprob < logit)
        at--;
    if (at == n_max)
        return;
    uint32_t moved = (*n < n_max ? *n : n_max - 1) - at;
    memmove(list + at + 1, list + at, moved * sizeof *list);
    list[at] = (struct token_logprob){id, logit};
    *n += *n < n_max;
}

bool logprobs_of(const float *logits, uint32_t vocab, double log_sum_exp, uint32_t token, uint32_t n_top,
                 struct token_logprob *ret)
{
    ASSERT(token < vocab && n_top <= LOGPROBS_TOP_MAX);
    uint32_t n = 0;
    ret[0] = (struct token_logprob){token, (float)((double)logits[token] - log_sum_exp)};
    if (!(log_sum_exp - log_sum_exp == 0)) // a logit is not finite
        return false;
    for (uint32_t id = 0; id < vocab && n_top > 0; id++)
        if (n < n_top || logits[id] > ret[n_top].logprob)
            insert(ret + 1, &n, n_top, id, logits[id]);
    for (uint32_t i = 1; i <= n; i++)
        ret[i].logprob = (float)((double)ret[i].logprob - log_sum_exp);
    for (uint32_t i = n + 1; i <= n_top; i++)
        ret[i] = (struct token_logprob){.id = LOGPROBS_NONE};
    return true;
}
