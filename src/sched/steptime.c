#include "sched/steptime.h"

#include "base/assert.h"
#include "base/num.h"

#define FACTOR_RATE 0.05 // that a factor follows by
#define FACTOR_MIN  0.25
#define FACTOR_MAX  4.0
#define SPREAD_MIN  1.10
#define SPREAD_MAX  2.0
#define SPREAD_RATE 0.02 // by which a step over the spread raises it
#define SPREAD_TAIL 0.01 // of steps that may pass it
#define SPREAD_INIT 1.15

uint32_t steptime_loads(uint32_t batch_tokens, uint32_t slots, uint32_t max_seq_len,
                        struct steptime_load *out)
{
    uint32_t n = 0, far = max_seq_len - 1;
    for (uint32_t rows = 1; rows < batch_tokens && n + 1 < STEPTIME_POINTS_MAX; rows *= 2)
        out[n++] = (struct steptime_load){.rows = rows, .wanted = 1};
    out[n++] = (struct steptime_load){.rows = batch_tokens, .wanted = 1};
    out[n++] = (struct steptime_load){.rows = slots, .wanted = slots};
    out[n++] = (struct steptime_load){.rows = 1, .wanted = 1, .decode_keys = far};
    uint32_t rows = (uint32_t)num_min(batch_tokens, max_seq_len);
    out[n++] = (struct steptime_load){
        .rows = rows, .wanted = 1, .prefill_keys = (uint64_t)rows * (max_seq_len - rows)};
    return n;
}

static double positive(double x)
{
    return x > 0 ? x : 0;
}

static double interpolate(const struct steptime *s, const double *y, uint32_t rows)
{
    uint32_t i = 1;
    if (s->n == 1)
        return y[0];
    while (i + 1 < s->n && s->rows[i] < rows)
        i++;
    double part = ((double)rows - s->rows[i - 1]) / ((double)s->rows[i] - s->rows[i - 1]);
    return y[i - 1] + part * (y[i] - y[i - 1]);
}

void steptime_init(struct steptime *s, const struct steptime_sample *samples, uint32_t n)
{
    ASSERT(n > 3 && n - 3 <= STEPTIME_POINTS_MAX && samples[0].load.rows == 1);
    *s = (struct steptime){.n = n - 3, .spread = SPREAD_INIT};
    for (uint32_t i = 0; i < s->n; i++) {
        s->rows[i] = samples[i].load.rows;
        s->factor[i] = 1;
        s->base[i] = i > 0 && samples[i].ns < s->base[i - 1] ? s->base[i - 1] : samples[i].ns;
    }
    const struct steptime_sample *wanted = &samples[s->n], *decode = wanted + 1, *prefill = wanted + 2;
    if (wanted->load.wanted > 1)
        s->wanted_ns =
            positive(wanted->ns - interpolate(s, s->base, wanted->load.rows)) / (wanted->load.wanted - 1);
    if (decode->load.decode_keys > 0)
        s->decode_key_ns = positive(decode->ns - s->base[0]) / (double)decode->load.decode_keys;
    if (prefill->load.prefill_keys > 0)
        s->prefill_key_ns = positive(prefill->ns - interpolate(s, s->base, prefill->load.rows)) /
                            (double)prefill->load.prefill_keys;
}

static double measured_ns(const struct steptime *s, struct steptime_load l)
{
    return interpolate(s, s->base, l.rows) + s->wanted_ns * (l.wanted - 1) +
           s->decode_key_ns * (double)l.decode_keys + s->prefill_key_ns * (double)l.prefill_keys;
}

double steptime_mean_ns(const struct steptime *s, struct steptime_load load)
{
    return measured_ns(s, load) * interpolate(s, s->factor, load.rows);
}

double steptime_bound_ns(const struct steptime *s, struct steptime_load load)
{
    return steptime_mean_ns(s, load) * s->spread;
}

static double within(double x, double least, double most)
{
    return x < least ? least : x > most ? most : x;
}

static uint32_t nearest(const struct steptime *s, uint32_t rows)
{
    uint32_t i = 0;
    while (i + 1 < s->n && (uint64_t)s->rows[i] + s->rows[i + 1] < 2 * (uint64_t)rows)
        i++;
    return i;
}

void steptime_learn(struct steptime *s, struct steptime_load load, double ns)
{
    double mean = steptime_mean_ns(s, load), *factor = &s->factor[nearest(s, load.rows)];
    if (mean <= 0)
        return;
    double ratio = ns / mean;
    // One step that the system held up says nothing of the mean.
    *factor = within(*factor * (1 + FACTOR_RATE * (within(ratio, 0.5, 1.5) - 1)), FACTOR_MIN, FACTOR_MAX);
    // In balance where one step in a hundred passes it.
    double up = ratio > s->spread ? SPREAD_RATE * (1 - SPREAD_TAIL) : -SPREAD_RATE * SPREAD_TAIL;
    s->spread = within(s->spread * (1 + up), SPREAD_MIN, SPREAD_MAX);
}
