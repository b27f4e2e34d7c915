/* The smallest program on libisochron: continues a text with a plan.
 *
 *     cc generate.c $(pkg-config --cflags --libs isochron) -o generate
 *     ./generate model.plan "Once upon a time" 32
 */
#include <isochron.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const iso_error *error)
{
    fprintf(stderr, "%s\n", error->text);
    return (int)error->code;
}

static int answer(iso_plan *plan, iso_unit *unit, const char *prompt, uint32_t max_output)
{
    iso_error error;
    iso_plan_info info;
    iso_result result;
    size_t n = 0, bytes;
    iso_plan_get_info(plan, &info);
    uint32_t slot, *ids = malloc(info.max_seq_len * sizeof *ids);
    if (!ids)
        return 1;
    iso_code code =
        iso_encode(plan, prompt, strlen(prompt), ISO_ENCODE_EDGES, ids, info.max_seq_len, &n, &error);
    iso_request request = {.prompt = ids, .n_prompt = (uint32_t)n, .max_output = max_output};
    if (!code)
        code = iso_submit(unit, &request, &slot, &error);
    free(ids);
    if (code)
        return fail(&error);
    for (iso_step(unit, &result); result.rows > 0; iso_step(unit, &result)) {
        for (uint32_t i = 0; i < result.n; i++) {
            if (result.events[i].finish == ISO_FINISH_NONFINITE)
                return fprintf(stderr, "a logit is not finite\n"), ISO_CODE_NONFINITE;
            const char *text = iso_token_bytes(plan, result.events[i].token, &bytes);
            if (result.events[i].finish != ISO_FINISH_END)
                fwrite(text, 1, bytes, stdout);
            fflush(stdout);
        }
    }
    return putchar('\n') == EOF;
}

int main(int argc, char **argv)
{
    iso_error error;
    iso_plan *plan;
    iso_unit *unit;
    if (argc != 4)
        return fprintf(stderr, "usage: generate PLAN TEXT TOKENS\n"), 2;
    if (iso_plan_open(argv[1], &plan, &error) || iso_unit_open(plan, NULL, &unit, &error))
        return fail(&error);
    int code = answer(plan, unit, argv[2], (uint32_t)strtoul(argv[3], NULL, 10));
    iso_unit_close(unit);
    iso_plan_close(plan);
    return code;
}
