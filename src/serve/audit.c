#include "serve/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/dmath.h"
#include "base/num.h"
#include "formats/json_file.h"

#define DIGEST_BYTES 32
_Static_assert(AUDIT_DIGEST_HEX == 2 * DIGEST_BYTES + 1, "two digits a byte");

// ---- Parameters ----

static json_t *bias_list(const struct answer_spec *s)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < s->sampling.n_bias; i++)
        list = json_with(list, json_pack("[I, f]", (json_int_t)s->bias[i].id, (double)s->bias[i].bias));
    return list;
}

static json_t *stop_list(const struct answer_spec *s)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < s->n_stop; i++)
        list = json_with(list, json_stringn(s->stop[i], s->stop_bytes[i]));
    return list;
}

json_t *audit_params(const struct answer_spec *s, uint32_t choice)
{
    const struct sampling *p = &s->sampling;
    char seed[24];
    snprintf(seed, sizeof seed, "%" PRIu64, p->seed);
    json_t *params =
        json_pack("{s:I, s:I, s:s, s:f, s:f, s:f, s:I, s:f, s:f, s:f, s:b, s:o, s:o}", "max_output",
                  (json_int_t)s->max_output, "choice", (json_int_t)choice, "seed", seed, "temperature",
                  (double)p->temperature, "top_p", (double)p->top_p, "min_p", (double)p->min_p, "top_k",
                  (json_int_t)p->top_k, "repetition_penalty", (double)p->repeat_penalty, "presence_penalty",
                  (double)p->presence_penalty, "frequency_penalty", (double)p->frequency_penalty,
                  "ignore_eos", (int)s->ignore_eog, "logit_bias", bias_list(s), "stop", stop_list(s));
    if (!params || !s->split)
        return params;
    params = json_having(params, "style", json_integer(s->style));
    params = json_having(params, "thinking", json_integer(s->thinking));
    if (s->thinking_budget != ANSWER_NO_BUDGET)
        params = json_having(params, "thinking_budget", json_integer(s->thinking_budget));
    if (s->forced[0])
        params = json_having(params, "forced", json_string(s->forced));
    return params;
}

static bool take_whole(const json_t *params, const char *name, uint64_t max, uint32_t *ret)
{
    const json_t *v = json_object_get(params, name);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || (uint64_t)json_integer_value(v) > max)
        return false;
    *ret = (uint32_t)json_integer_value(v);
    return true;
}

static bool take_real(const json_t *params, const char *name, float *ret)
{
    const json_t *v = json_object_get(params, name);
    *ret = (float)json_number_value(v);
    return json_is_number(v);
}

static bool take_lists(const json_t *params, struct answer_spec *s)
{
    const json_t *bias = json_object_get(params, "logit_bias"), *stop = json_object_get(params, "stop"),
                 *item;
    size_t i;
    if (!json_is_array(bias) || json_array_size(bias) > SAMPLING_BIAS_MAX || !json_is_array(stop) ||
        json_array_size(stop) > STOP_STRINGS_MAX)
        return false;
    json_array_foreach(bias, i, item)
    {
        const json_t *id = json_array_get(item, 0), *value = json_array_get(item, 1);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= PLAN_VOCAB_MAX)
            return false;
        s->bias[s->sampling.n_bias++] =
            (struct logit_bias){(uint32_t)json_integer_value(id), (float)json_number_value(value)};
    }
    json_array_foreach(stop, i, item)
    {
        size_t n = json_string_length(item);
        if (n == 0 || n > STOP_BYTES_MAX)
            return false;
        memcpy(s->stop[s->n_stop], json_string_value(item), n);
        s->stop_bytes[s->n_stop++] = (uint16_t)n;
    }
    return true;
}

static bool take_split(const json_t *params, struct answer_spec *s)
{
    uint32_t style = 0, thinking = 0;
    s->split = json_object_get(params, "style") != NULL;
    if (!s->split)
        return true;
    const char *forced = json_string_value(json_object_get(params, "forced"));
    if (forced)
        snprintf(s->forced, sizeof s->forced, "%s", forced);
    bool good = take_whole(params, "style", SPLIT_MISTRAL, &style) &&
                take_whole(params, "thinking", SPLIT_IN_THINK, &thinking) &&
                (!forced || strlen(forced) < sizeof s->forced) &&
                (!json_object_get(params, "thinking_budget") ||
                 take_whole(params, "thinking_budget", PLAN_SEQ_MAX, &s->thinking_budget));
    s->style = (enum split_style)style;
    s->thinking = (enum split_thinking)thinking;
    return good;
}

static bool take_params(const json_t *params, struct answer_spec *s, uint32_t *ret_choice)
{
    struct sampling *p = &s->sampling;
    const char *seed = json_string_value(json_object_get(params, "seed"));
    char *end = NULL;
    errno = 0;
    p->seed = seed && *seed >= '0' && *seed <= '9' ? strtoull(seed, &end, 10) : 0;
    s->ignore_eog = json_is_true(json_object_get(params, "ignore_eos"));
    return end && *end == '\0' && errno == 0 &&
           take_whole(params, "max_output", PLAN_SEQ_MAX, &s->max_output) &&
           take_whole(params, "choice", UINT32_MAX, ret_choice) &&
           take_whole(params, "top_k", PLAN_VOCAB_MAX, &p->top_k) &&
           take_real(params, "temperature", &p->temperature) && take_real(params, "top_p", &p->top_p) &&
           take_real(params, "min_p", &p->min_p) &&
           take_real(params, "repetition_penalty", &p->repeat_penalty) &&
           take_real(params, "presence_penalty", &p->presence_penalty) &&
           take_real(params, "frequency_penalty", &p->frequency_penalty) && take_lists(params, s) &&
           take_split(params, s);
}

enum iso_err audit_spec(const json_t *params, uint32_t n_prompt, struct answer_spec **ret,
                        uint32_t *ret_choice, struct iso_errinfo *reterr)
{
    struct answer_spec *s = answer_spec_new(n_prompt);
    if (!s)
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for a request");
    if (!take_params(params, s, ret_choice)) {
        answer_spec_free(s);
        return iso_fail(reterr, ISO_E_FORMAT, 0, "params", "params are not those of an answer");
    }
    s->n_prompt = n_prompt;
    *ret = s;
    return ISO_OK;
}

// ---- Digests ----

static void add_list(crypto_generichash_state *h, const void *values, uint32_t n, size_t bytes)
{
    crypto_generichash_update(h, (const unsigned char *)&n, sizeof n); // little-endian, as all our machines
    if (n > 0)
        crypto_generichash_update(h, values, n * bytes);
}

static int add_text(const char *bytes, size_t n, void *context)
{
    return crypto_generichash_update(context, (const unsigned char *)bytes, n);
}

static enum iso_err digest(const char *plan_hash, const json_t *params, const uint32_t *prompt,
                           uint32_t n_prompt, const void *output, uint32_t n_output,
                           char out[AUDIT_DIGEST_HEX])
{
    static const char HEAD[] = "isochron-answer-1\n";
    crypto_generichash_state h;
    unsigned char bytes[DIGEST_BYTES];
    crypto_generichash_init(&h, NULL, 0, sizeof bytes);
    add_text(HEAD, sizeof HEAD - 1, &h);
    add_text(plan_hash, strlen(plan_hash), &h);
    add_text("\n", 1, &h);
    if (!params || json_dump_callback(params, add_text, &h, JSON_COMPACT | JSON_SORT_KEYS))
        return ISO_E_NOMEM;
    add_text("\n", 1, &h);
    add_list(&h, prompt, n_prompt, sizeof *prompt);
    add_list(&h, output, n_output, sizeof(uint32_t));
    crypto_generichash_final(&h, bytes, sizeof bytes);
    sodium_bin2hex(out, AUDIT_DIGEST_HEX, bytes, sizeof bytes);
    return ISO_OK;
}

enum iso_err audit_digest(const char *plan_hash, const json_t *params, const uint32_t *prompt,
                          uint32_t n_prompt, const uint32_t *output, uint32_t n_output,
                          char out[AUDIT_DIGEST_HEX])
{
    return digest(plan_hash, params, prompt, n_prompt, output, n_output, out);
}

void audit_scale_row(const float *row, uint32_t n, float *ret)
{
    double squares = 0;
    for (uint32_t i = 0; i < n; i++)
        squares += (double)row[i] * (double)row[i];
    double scale = squares > 0 ? 1 / dmath_sqrt(squares) : 0;
    for (uint32_t i = 0; i < n; i++)
        ret[i] = (float)((double)row[i] * scale);
}

enum iso_err audit_digest_row(const char *plan_hash, const uint32_t *prompt, uint32_t n_prompt,
                              const float *row, uint32_t n, char out[AUDIT_DIGEST_HEX])
{
    _Static_assert(sizeof(float) == sizeof(uint32_t), "a list of words");
    json_t *none = json_object();
    enum iso_err err = digest(plan_hash, none, prompt, n_prompt, row, n, out);
    json_decref(none);
    return err;
}

// ---- The file ----

static int open_file(const char *path)
{
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
}

enum iso_err audit_open(const char *path, bool tokens, struct audit *ret, struct iso_errinfo *reterr)
{
    int fd = open_file(path);
    if (fd < 0 || strlen(path) >= sizeof ret->path)
        return iso_fail(reterr, ISO_E_IO, 0, "audit.file", "%s: opening for the audit failed: %s", path,
                        strerror(fd < 0 ? errno : ENAMETOOLONG));
    *ret = (struct audit){.fd = fd, .tokens = tokens};
    memcpy(ret->path, path, strlen(path) + 1);
    return ISO_OK;
}

enum iso_err audit_reopen(struct audit *a, struct iso_errinfo *reterr)
{
    int fd = a->fd < 0 ? -1 : open_file(a->path);
    if (a->fd >= 0 && fd < 0)
        return iso_fail(reterr, ISO_E_IO, 0, "audit.file", "%s: opening again failed: %s", a->path,
                        strerror(errno));
    audit_close(a);
    a->fd = fd;
    a->broken_line = false;
    return ISO_OK;
}

void audit_close(struct audit *a)
{
    if (a->fd >= 0)
        close(a->fd);
    a->fd = -1;
}

static json_t *id_list(const uint32_t *ids, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++)
        list = json_with(list, json_integer(ids[i]));
    return list;
}

static json_t *entry_json(const struct audit *a, const struct audit_entry *e)
{
    char time_text[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(time_text, sizeof time_text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_t *line =
        json_pack("{s:i, s:s, s:s, s:s, s:s?, s:s, s:s, s:s, s:s, s:s?, s:I, s:I, s:s}", "version", 1, "time",
                  time_text, "request_id", e->request_id, "id", e->id, "key", e->key, "endpoint", e->endpoint,
                  "model", e->model, "plan_path", e->plan_path, "plan", e->plan_hash, "finish_reason",
                  e->finish, "prompt_tokens", (json_int_t)e->n_prompt, "output_tokens",
                  (json_int_t)e->n_output, "digest", e->digest);
    if (!line || !a->tokens)
        return line;
    line = json_having(line, "params", e->params ? json_incref((json_t *)e->params) : json_null());
    line = json_having(line, "prompt", id_list(e->prompt, e->n_prompt));
    if (e->params)
        line = json_having(line, "output", id_list(e->output, e->n_output));
    return line;
}

// A line of which only a part fits the disk is ended by the next one's beginning.
static enum iso_err write_line(struct audit *a, struct buf *line, struct iso_errinfo *reterr)
{
    ssize_t n;
    do
        n = write(a->fd, line->ptr, line->len);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)line->len) {
        a->broken_line = false;
        return ISO_OK;
    }
    a->broken_line = a->broken_line || n > 0;
    return iso_fail(reterr, ISO_E_IO, 0, "audit.file", "%s: writing failed: %s", a->path,
                    n < 0 ? strerror(errno) : "no space left");
}

enum iso_err audit_write(struct audit *a, const struct audit_entry *e, struct iso_errinfo *reterr)
{
    struct buf line;
    if (a->fd < 0)
        return ISO_OK;
    json_t *json = entry_json(a, e);
    buf_init(&line, AUDIT_LINE_MAX);
    bool made = (!a->broken_line || !buf_append_byte(&line, '\n')) &&
                !json_write(json, JSON_COMPACT, &line) && !buf_append_byte(&line, '\n');
    enum iso_err err =
        made ? write_line(a, &line, reterr)
             : iso_fail(reterr, ISO_E_NOMEM, 0, "audit.file", "the system refused memory for an audit line");
    json_decref(json);
    buf_deinit(&line);
    return err;
}
