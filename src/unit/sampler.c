#include "unit/sampler.h"

#include <string.h>

#include "base/assert.h"
#include "base/num.h"
#include "kernels/half.h"

#define TABLE_ALIGN  64
#define DIGIT_BITS   11 // three passes sort 32 bits
#define DIGIT_VALUES (1u << DIGIT_BITS)

static uint64_t table_bytes(uint32_t vocab, uint64_t element)
{
    return num_align(vocab * element, TABLE_ALIGN);
}

uint64_t sampler_bytes(uint32_t vocab)
{
    return 3 * table_bytes(vocab, 4) + 2 * table_bytes(vocab, 8);
}

void sampler_init(struct sampler *s, const struct kernels *kernels, uint32_t vocab, uint8_t *memory)
{
    uint64_t narrow = table_bytes(vocab, 4), wide = table_bytes(vocab, 8);
    *s = (struct sampler){.kernels = kernels, .vocab = vocab};
    s->logits = (float *)memory;
    s->p = (float *)(memory + narrow);
    s->seen = (uint32_t *)(memory + 2 * narrow);
    s->keys = (uint64_t *)(memory + 3 * narrow);
    s->spare = (uint64_t *)(memory + 3 * narrow + wide);
}

static bool in_range(float x, float least, float most)
{
    return x >= least && x <= most; // a NaN is not
}

bool sampling_is_valid(const struct sampling *p, uint32_t vocab)
{
    if (p->n_bias > SAMPLING_BIAS_MAX)
        return false;
    for (uint32_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].id >= vocab || !in_range(p->bias[i].bias, -100, 100))
            return false;
    return (p->temperature == 0 || in_range(p->temperature, SAMPLING_TEMPERATURE_MIN, 100)) && p->top_p > 0 &&
           p->top_p <= 1 && in_range(p->min_p, 0, 1) && in_range(p->repeat_penalty, 0.01f, 100) &&
           in_range(p->presence_penalty, -2, 2) && in_range(p->frequency_penalty, -2, 2);
}

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k[1],
                            (uint32_t)a};
        memcpy(c, next, sizeof c);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof c);
}

// A number in [0, 1) with 53 random bits.
static double random_unit(const struct sampling *p, uint32_t position)
{
    const uint32_t counter[4] = {position, p->choice, 0, 0};
    const uint32_t key[2] = {(uint32_t)p->seed, (uint32_t)(p->seed >> 32)};
    uint32_t x[4];
    philox4x32(counter, key, x);
    uint64_t bits = (uint64_t)(x[0] >> 5) << 26 | x[1] >> 6;
    return (double)bits * 0x1p-53;
}

// Once for each token that occurs.
static void penalize_repetition(struct sampler *s, float penalty, const struct sampling_history *h)
{
    if (penalty == 1)
        return;
    if (++s->call == 0) { // the counter came round: what `seen` says is stale
        memset(s->seen, 0, s->vocab * sizeof *s->seen);
        s->call = 1;
    }
    for (uint32_t i = 0; i < h->n; i++) {
        uint32_t id = h->tokens[i];
        if (s->seen[id] == s->call)
            continue;
        s->seen[id] = s->call;
        float logit = s->logits[id];
        s->logits[id] = logit > 0 ? logit / penalty : logit * penalty;
    }
}

// Once for each token of the answer, by how often it has it.
static void penalize_answer(struct sampler *s, const struct sampling *p, const struct sampling_history *h)
{
    if (p->presence_penalty == 0 && p->frequency_penalty == 0)
        return;
    uint64_t *count = s->keys; // free before they are sorted
    for (uint32_t i = h->n_prompt; i < h->n; i++)
        count[h->tokens[i]] = 0;
    for (uint32_t i = h->n_prompt; i < h->n; i++)
        count[h->tokens[i]]++;
    for (uint32_t i = h->n_prompt; i < h->n; i++) {
        uint32_t id = h->tokens[i];
        if (count[id] == 0)
            continue;
        s->logits[id] = s->logits[id] - (float)count[id] * p->frequency_penalty;
        s->logits[id] = s->logits[id] - p->presence_penalty;
        count[id] = 0;
    }
}

// Greatest first: an integer that grows as the logit falls, then the id. -0 sorts with +0.
static uint64_t sort_key(float logit, uint32_t id)
{
    uint32_t bits = f32_bits(logit + 0.0f);
    uint32_t rising = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)~rising << 32 | id;
}

// Stable radix sort by the upper half; the ids are ascending already. The result is in s->spare.
static void sort_keys(struct sampler *s)
{
    uint64_t *from = s->keys, *to = s->spare;
    for (int shift = 32; shift < 64; shift += DIGIT_BITS) {
        uint32_t at[DIGIT_VALUES] = {0}, sum = 0;
        for (uint32_t i = 0; i < s->vocab; i++)
            at[from[i] >> shift & (DIGIT_VALUES - 1)]++;
        for (uint32_t d = 0; d < DIGIT_VALUES; d++) {
            uint32_t n = at[d];
            at[d] = sum;
            sum += n;
        }
        for (uint32_t i = 0; i < s->vocab; i++)
            to[at[from[i] >> shift & (DIGIT_VALUES - 1)]++] = from[i];
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
}

// How many of the n most probable tokens top-p and min-p keep; at least one. p[0] is 1.
static uint32_t cut(const struct sampling *params, const float *p, uint32_t n)
{
    uint32_t kept = n;
    if (params->top_p < 1) {
        double total = 0, sum = 0;
        for (uint32_t i = 0; i < n; i++)
            total += (double)p[i];
        double enough = (double)params->top_p * total;
        for (kept = 0; kept < n && (kept == 0 || sum < enough); kept++)
            sum += (double)p[kept];
    }
    if (params->min_p > 0)
        while (kept > 1 && p[kept - 1] < params->min_p)
            kept--;
    return kept;
}

static uint32_t draw(const struct sampler *s, const struct sampling *p, uint32_t n, uint32_t position)
{
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        total += (double)s->p[i];
    double target = random_unit(p, position) * total;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)s->p[i];
        if (sum > target)
            return (uint32_t)s->spare[i];
    }
    return (uint32_t)s->spare[n - 1];
}

bool sampler_draw(struct sampler *s, const float *logits, const struct sampling *p,
                  const struct sampling_history *history, uint32_t position, uint32_t *ret_id)
{
    float max;
    if (!s->kernels->vocab_max(logits, s->vocab, &max))
        return false;
    memcpy(s->logits, logits, s->vocab * sizeof *s->logits);
    for (uint32_t i = 0; i < p->n_bias; i++)
        s->logits[p->bias[i].id] += p->bias[i].bias;
    penalize_repetition(s, p->repeat_penalty, history);
    penalize_answer(s, p, history);
    if (p->temperature > 0)
        for (uint32_t i = 0; i < s->vocab; i++)
            s->logits[i] = s->logits[i] / p->temperature;
    if (!s->kernels->vocab_max(s->logits, s->vocab, &max)) // a tiny temperature can overflow
        return false;
    if (p->temperature == 0) {
        uint32_t id = 0;
        while (s->logits[id] != max)
            id++;
        *ret_id = id;
        return true;
    }
    for (uint32_t i = 0; i < s->vocab; i++)
        s->keys[i] = sort_key(s->logits[i], i);
    sort_keys(s);
    uint32_t n = p->top_k > 0 ? (uint32_t)num_min(p->top_k, s->vocab) : s->vocab;
    float *sorted = (float *)s->keys; // free again: the keys are in `spare`
    for (uint32_t i = 0; i < n; i++)
        sorted[i] = s->logits[(uint32_t)s->spare[i]];
    s->kernels->exp_shifted(sorted, n, max, s->p);
    *ret_id = draw(s, p, cut(p, s->p, n), position);
    return true;
}
