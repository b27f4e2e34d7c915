// Chat templates on arbitrary bytes, rendered with a small conversation. Besides memory errors it looks for
// broken promises: valid UTF-8 in gives valid UTF-8 out, a second rendering gives the same bytes, a failure
// leaves the output as it was and says something.
#include <stdint.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/utf8.h"
#include "text/template.h"

#define OUTPUT_MAX (64 * KIB)
#define PREFIX     "before"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char CONTEXT[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \" B\\u00e9.\\n\"}, {\"role\": \"user\", "
    "\"content\": \"Hi\"},"
    " {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"type\": \"function\", \"function\":"
    " {\"name\": \"f\", \"arguments\": {\"x\": [1, 2.5, true, null]}}}]}, {\"role\": \"tool\", \"content\": "
    "\"\"}],"
    " \"tools\": [{\"name\": \"f\"}], \"add_generation_prompt\": true, \"bos_token\": \"<s>\", \"n\": -3}";

static json_t *context;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    context = json_loads(CONTEXT, 0, NULL);
    ASSERT(context);
    return 0;
}

static enum iso_err render(const struct tmpl *t, struct buf *out)
{
    struct iso_errinfo info = {0};
    buf_init(out, OUTPUT_MAX);
    enum iso_err err = buf_append_strv(out, STRV_LIT(PREFIX));
    ASSERT(!err);
    err = tmpl_render(t, context, out, &info);
    ASSERT(strv_starts(buf_strv(out), PREFIX));
    ASSERT(!err || (out->len == sizeof PREFIX - 1 && info.code == err));
    return err;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct iso_errinfo info = {0};
    struct tmpl *t = NULL;
    enum iso_err err = tmpl_open((struct strv){(const char *)data, size}, &t, &info);
    ASSERT(!err == (t != NULL));
    ASSERT(!err || (info.code == err && info.text[0] != '\0'));
    if (err)
        return 0;
    struct buf first, second;
    err = render(t, &first);
    enum iso_err again = render(t, &second);
    ASSERT(err == again && strv_equal(buf_strv(&first), buf_strv(&second)));
    ASSERT(utf8_is_valid(first.ptr, first.len));
    buf_deinit(&first);
    buf_deinit(&second);
    tmpl_close(t);
    return 0;
}
