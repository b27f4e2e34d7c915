// The filters and methods of strings.
#pragma once

#include "text/template_builtin.h"

extern const struct tmpl_builtin tmpl_string_methods[];

tmpl_builtin_fn tmpl_filter_lower, tmpl_filter_upper, tmpl_filter_replace, tmpl_filter_trim;
