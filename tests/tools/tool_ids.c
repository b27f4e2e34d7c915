// Prints the token ids of a text, without edges.
//
//   tool_ids PLAN TEXT-FILE
#include <stdio.h>
#include <stdlib.h>

#include "isochron.h"

#define TEXT_BYTES_MAX 65536

int main(int argc, char **argv)
{
    iso_plan *plan;
    iso_error error;
    static char text[TEXT_BYTES_MAX];
    static uint32_t ids[TEXT_BYTES_MAX];
    size_t n = 0;
    FILE *f = argc == 3 ? fopen(argv[2], "rb") : NULL;
    if (!f)
        return 2;
    size_t bytes = fread(text, 1, sizeof text, f);
    fclose(f);
    if (iso_plan_open(argv[1], &plan, &error) ||
        iso_encode(plan, text, bytes, 0, ids, TEXT_BYTES_MAX, &n, &error)) {
        fprintf(stderr, "tool_ids: %s\n", error.text);
        return 1;
    }
    for (size_t i = 0; i < n; i++)
        printf("%u\n", ids[i]);
    iso_plan_close(plan);
    return 0;
}
