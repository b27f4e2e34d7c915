// The plan that the plan's tests start from, and how a refusal is looked at. Include after cmocka.h.
#pragma once

#include "tiny_plan.h"

static struct tiny_plan base; // qwen2: biases, grouped weights, a chat template

static int make_base(void **state)
{
    (void)state;
    struct tiny_shape shape = TINY_QWEN2;
    static struct tiny_model m;
    struct compile_options options = {.max_seq_len = 32, .slots = 2, .batch_tokens = 8};
    shape.vocab = shape.hidden; // so that a hidden row could pass for logits
    tiny_init(&m, &shape);
    tiny_str(&m, "tokenizer.chat_template", "{{ messages[0]['content'] }}");
    base = tiny_plan_make(&m, &options);
    return 0;
}

static int free_base(void **state)
{
    (void)state;
    tiny_plan_free(&base);
    return 0;
}

static void assert_refused(const char *what, const struct tiny_plan *p, enum iso_err code, const char *field,
                           const char *says)
{
    struct plan plan;
    struct iso_errinfo e = {0};
    enum iso_err err = plan_attach(p->bytes, p->n, &plan, &e);
    if (err != code || e.code != code || strcmp(e.field, field) != 0 || !strstr(e.text, says))
        fail_msg("%s: %s, field \"%s\": \"%s\" instead of %s, \"%s\": \"...%s...\"", what, iso_err_name(err),
                 e.field, e.text, iso_err_name(code), field, says);
}
