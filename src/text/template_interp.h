// The interpreter: walks the syntax tree, whose depth the parser has bounded.
//
// Scopes: a for body has its own, made anew for each iteration, as have its else and a set block; an if block
// has none. A name is a variable that was set, else a member of the context, else a function, else undefined.
#pragma once

#include "text/template_value.h"

// Renders the template to r->out. The run's memory and variables are ready.
enum iso_err tmpl_interpret(struct tmpl_run *r) ISO_MUST_USE;
