// What a file holds, as a JSON document that is printed as it is or as text. Internal to cli/.
#pragma once

#include <jansson.h>

#include "base/err.h"

// Errors do not name the file; those of a folder do.
enum iso_err inspect_gguf(const char *path, json_t **ret, struct iso_errinfo *reterr) ISO_MUST_USE;
enum iso_err inspect_folder(const char *path, json_t **ret, struct iso_errinfo *reterr) ISO_MUST_USE;
enum iso_err inspect_plan(const char *path, json_t **ret, struct iso_errinfo *reterr) ISO_MUST_USE;

// As text: members of the document in order; elements of arrays one a line.
void inspect_print(const json_t *document);
