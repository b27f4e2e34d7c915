#include "cli/inspect.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/num.h"
#include "cli/cli.h"
#include "formats/gguf.h"
#include "model/model.h"
#include "plan/plan.h"
#include "text/tokenizer.h"

// A scalar as what it is in JSON; as text where JSON has no such number.
static json_t *gguf_scalar(const struct gguf_kv *kv, const char *text)
{
    enum gguf_kind kind = gguf_type_info(kv->type)->kind;
    json_t *value = NULL;
    errno = 0;
    if (kind == GGUF_BOOLEAN)
        value = json_boolean(strcmp(text, "true") == 0);
    else if (kind == GGUF_FLOAT)
        value = json_real(strtod(text, NULL)); // NULL where it is not finite
    else
        value = json_integer(strtoll(text, NULL, 10));
    if (value && errno != ERANGE)
        return value;
    json_decref(value);
    return json_string(text);
}

// A value of the file's metadata: scalars and strings as they are, arrays as type and length.
static json_t *gguf_value(const struct gguf_kv *kv)
{
    char text[GGUF_SCALAR_TEXT_MAX];
    if (gguf_scalar_text(kv, text))
        return gguf_scalar(kv, text);
    if (kv->type == GGUF_ARRAY) {
        snprintf(text, sizeof text, "%s[%" PRIu64 "]", gguf_type_info(kv->value.type)->name, kv->value.n);
        return json_string(text);
    }
    struct gguf_str_iter iter = gguf_str_iter(&kv->value);
    struct strv s = {"", 0};
    (void)gguf_next_str(&iter, &s);
    return cli_json_text(s.ptr, s.len);
}

static json_t *gguf_tensor(const struct gguf_tensor *t)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; i < t->n_dims; i++)
        (void)json_array_append_new(shape, json_integer((json_int_t)t->dims[i]));
    return json_pack("{s:o, s:s, s:o, s:I, s:I}", "name", cli_json_text(t->name.ptr, t->name.len), "type",
                     ggml_type_info(t->type)->name, "shape", shape, "offset", (json_int_t)t->offset, "bytes",
                     (json_int_t)t->bytes);
}

enum iso_err inspect_gguf(const char *path, json_t **ret, struct iso_errinfo *reterr)
{
    struct gguf *g;
    enum iso_err err = gguf_open(path, &g, reterr);
    if (err)
        return err;
    json_t *metadata = json_object(), *tensors = json_array();
    for (uint32_t i = 0; i < g->n_kv; i++) {
        json_t *value = gguf_value(&g->kv[i]);
        (void)json_object_setn_new(metadata, g->kv[i].key.ptr, g->kv[i].key.len, value);
    }
    for (uint32_t i = 0; i < g->n_tensors; i++)
        (void)json_array_append_new(tensors, gguf_tensor(&g->tensors[i]));
    *ret = json_pack("{s:s, s:i, s:i, s:I, s:o, s:o}", "format", "GGUF", "version", (int)g->version,
                     "alignment", (int)g->alignment, "bytes", (json_int_t)g->identity.bytes, "metadata",
                     metadata, "tensors", tensors);
    gguf_close(g);
    return *ret ? ISO_OK : iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory");
}

static json_t *folder_tensor(const struct model *m, const struct model_tensor *t)
{
    json_t *shape = json_array();
    const char *path = model_tensor_path(m, t), *slash = strrchr(path, '/');
    for (uint32_t i = 0; i < t->n_dims; i++)
        (void)json_array_append_new(shape, json_integer((json_int_t)t->dims[i]));
    return json_pack("{s:o, s:s, s:o, s:s, s:I, s:I}", "name", cli_json_text(t->name.ptr, t->name.len),
                     "type", ggml_type_info(t->type)->name, "shape", shape, "file", slash ? slash + 1 : path,
                     "offset", (json_int_t)t->offset, "bytes", (json_int_t)t->bytes);
}

enum iso_err inspect_folder(const char *path, json_t **ret, struct iso_errinfo *reterr)
{
    struct model m;
    enum iso_err err = model_open(path, &m, reterr);
    if (err)
        return err;
    json_t *tensors = json_array();
    for (uint32_t i = 0; i < m.n_tensors; i++)
        (void)json_array_append_new(tensors, folder_tensor(&m, &m.tensors[i]));
    *ret = json_pack("{s:s, s:o, s:o}", "format", "Hugging Face folder", "config",
                     json_deep_copy(model_config(&m)), "tensors", tensors);
    model_close(&m);
    return *ret ? ISO_OK : iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory");
}

static json_t *plan_tensor(const struct plan_tensor *t)
{
    static const char *const KINDS[PLAN_KIND_COUNT] = {"batch", "logits", "matrix", "vector", "angles"};
    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:I, s:I}", "name", t->name, "kind", KINDS[t->kind], "type",
                     dtype_info(t->dtype)->name, "rows", (int)t->rows, "cols", (int)t->cols, "offset",
                     (json_int_t)t->offset, "bytes", (json_int_t)t->bytes);
}

static json_t *plan_operand(const struct plan *p, struct plan_ref ref)
{
    char text[PLAN_NAME_BYTES + 64];
    const struct plan_tensor *t = &p->tensors[ref.tensor];
    if (ref.cols == t->cols)
        snprintf(text, sizeof text, "%%%" PRIu32 "%s%s", ref.tensor, t->name[0] ? " " : "", t->name);
    else
        snprintf(text, sizeof text, "%%%" PRIu32 "[%" PRIu32 ":%" PRIu32 "]", ref.tensor, ref.col,
                 ref.col + ref.cols);
    return json_string(text);
}

static json_t *plan_operation(const struct plan *p, const struct plan_op *op)
{
    json_t *in = json_array();
    for (int i = 0; i < PLAN_IN_MAX; i++)
        if (op->in[i].tensor != PLAN_NONE)
            (void)json_array_append_new(in, plan_operand(p, op->in[i]));
    json_t *out = op->out.tensor == PLAN_NONE ? json_null() : plan_operand(p, op->out);
    return json_pack("{s:s, s:i, s:o, s:o}", "op", plan_code_name(op->code), "layer", (int)op->layer, "in",
                     in, "out", out);
}

static json_t *plan_sections(const struct plan_header *h)
{
    static const char *const NAMES[PLAN_SECTION_COUNT] = {"tensors", "operations", "tokenizer", "template",
                                                          "weights"};
    json_t *sections = json_array();
    for (int i = 0; i < PLAN_SECTION_COUNT; i++) {
        char hex[HASH_HEX_BYTES];
        hash128_hex(h->sections[i].hash, hex);
        (void)json_array_append_new(sections, json_pack("{s:s, s:I, s:I, s:s}", "name", NAMES[i], "offset",
                                                        (json_int_t)h->sections[i].offset, "bytes",
                                                        (json_int_t)h->sections[i].bytes, "xxh3", hex));
    }
    return sections;
}

static json_t *plan_model(const struct plan_model *m)
{
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "architecture", m->arch, "name",
                     m->name, "vocab", (int)m->vocab, "hidden", (int)m->hidden, "layers", (int)m->layers,
                     "heads", (int)m->heads, "kv_heads", (int)m->kv_heads, "head_dim", (int)m->head_dim,
                     "ffn", (int)m->ffn, "context", (int)m->context);
}

static json_t *plan_tokenizer(const struct plan *p, struct iso_errinfo *reterr)
{
    struct tokenizer *t;
    if (tok_open(p->tokenizer, p->tokenizer_bytes, 1, &t, reterr))
        return NULL;
    json_t *eog = json_array();
    for (uint32_t i = 0; i < p->header->n_eog; i++)
        (void)json_array_append_new(eog, json_integer(p->header->eog[i]));
    json_t *value =
        json_pack("{s:i, s:i, s:s, s:b, s:b, s:o}", "tokens", (int)tok_count(t), "merges",
                  (int)tok_merge_count(t), "pre_tokenizer", tok_pre(t), "adds_bos", (int)tok_adds_bos(t),
                  "adds_eos", (int)tok_adds_eos(t), "end_of_generation", eog);
    tok_close(t);
    return value;
}

enum iso_err inspect_plan(const char *path, json_t **ret, struct iso_errinfo *reterr)
{
    struct plan p;
    enum iso_err err = plan_load(path, NULL, NULL, &p, reterr);
    if (err)
        return err;
    const struct plan_header *h = p.header;
    char hex[HASH_HEX_BYTES];
    hash128_hex(h->hash, hex);
    json_t *tokenizer = plan_tokenizer(&p, reterr);
    if (!tokenizer) {
        plan_close(&p);
        return reterr->code;
    }
    json_t *tensors = json_array(), *operations = json_array();
    for (uint32_t i = 0; i < h->n_tensors; i++)
        (void)json_array_append_new(tensors, plan_tensor(&p.tensors[i]));
    for (uint32_t i = 0; i < h->n_ops; i++)
        (void)json_array_append_new(operations, plan_operation(&p, &p.ops[i]));
    json_t *limits =
        json_pack("{s:i, s:i, s:i, s:s, s:s, s:s}", "max_seq_len", (int)h->limits.max_seq_len, "slots",
                  (int)h->limits.slots, "batch_tokens", (int)h->limits.batch_tokens, "kv",
                  h->limits.kv_type == KV_F16 ? "f16" : "q8", "quant", quant_name(h->limits.quant),
                  "quant_embedding", quant_name(h->limits.quant_head));
    json_t *text =
        p.chat_template.len ? cli_json_text(p.chat_template.ptr, p.chat_template.len) : json_null();
    *ret = json_pack("{s:s, s:i, s:I, s:s, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:o}", "format",
                     "Isochron plan", "version", (int)h->version, "bytes", (json_int_t)h->file_bytes, "hash",
                     hex, "model", plan_model(&h->model), "limits", limits, "arena_bytes",
                     (json_int_t)h->arena_bytes, "sections", plan_sections(h), "tokenizer", tokenizer,
                     "chat_template", text, "tensors", tensors, "operations", operations);
    plan_close(&p);
    return *ret ? ISO_OK : iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory");
}

// A string of the file on a terminal: no control characters but line feed and tab get there.
static void print_string(const char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)text[0], next = (unsigned char)text[1];
        bool is_c1 = c == 0xc2 && next >= 0x80 && next < 0xa0; // U+0080 to U+009F in UTF-8
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f || is_c1) {
            putchar('?');
            text += is_c1;
        } else {
            putchar(c);
        }
    }
}

// One line of text for a value; members of objects and elements of arrays side by side.
static void print_inline(const json_t *value)
{
    const char *key;
    json_t *member;
    size_t i;
    if (json_is_object(value)) {
        const char *between = "";
        json_object_foreach((json_t *)value, key, member)
        {
            fputs(between, stdout);
            print_string(key);
            putchar(' ');
            print_inline(member);
            between = "  ";
        }
    } else if (json_is_array(value)) {
        json_array_foreach(value, i, member)
        {
            fputs(i ? ", " : "", stdout);
            print_inline(member);
        }
    } else if (json_is_string(value)) {
        print_string(json_string_value(value));
    } else if (json_is_integer(value)) {
        printf("%" JSON_INTEGER_FORMAT, json_integer_value(value));
    } else if (json_is_real(value)) {
        printf("%.9g", json_real_value(value));
    } else {
        fputs(json_is_true(value) ? "yes" : json_is_false(value) ? "no" : "-", stdout);
    }
}

void inspect_print(const json_t *document)
{
    const char *key, *inner_key;
    json_t *value, *element;
    size_t i;
    json_object_foreach((json_t *)document, key, value)
    {
        printf("%s:", key);
        if (json_is_array(value)) {
            json_array_foreach(value, i, element)
            {
                printf("\n  %%%-5zu ", i);
                print_inline(element);
            }
        } else if (json_is_object(value)) {
            json_object_foreach(value, inner_key, element)
            {
                printf("\n  ");
                print_string(inner_key);
                printf("%*s", (int)num_max(1, 37 - num_min(strlen(inner_key), 36)), "");
                print_inline(element);
            }
        } else {
            putchar(' ');
            print_inline(value);
        }
        putchar('\n');
    }
}
