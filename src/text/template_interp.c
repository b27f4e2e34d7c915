#include "text/template_interp.h"

#include "base/assert.h"
#include "text/template_builtin.h"
#include "text/template_ops.h"
#include "text/template_write.h"

#define NAMES_PER_STEP 16 // variables looked at

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

static enum iso_err eval(struct tmpl_run *r, uint32_t n, struct tmpl_val *ret);

static const struct tmpl_node *node_of(const struct tmpl_run *r, uint32_t n)
{
    ASSERT(n > 0 && n < r->t->node_count);
    return &r->t->nodes[n];
}

static struct strv text_of(const struct tmpl_run *r, const struct tmpl_node *node)
{
    return tmpl_text(r->t, node->a, node->b);
}

// ---- variables

static enum iso_err eval_name(struct tmpl_run *r, struct strv name, struct tmpl_val *ret)
{
    enum iso_err err = tmpl_charge(r, r->var_count / NAMES_PER_STEP);
    if (err)
        return err;
    for (uint32_t i = r->var_count; i > 0; i--) {
        if (i == r->hidden_end && (i = r->outermost) == 0) // past the caller's
            break;
        if (strv_equal(r->vars[i - 1].name, name)) {
            *ret = r->vars[i - 1].value;
            return ISO_OK;
        }
    }
    const struct tmpl_pair *pair;
    err = tmpl_find_key(r, r->context.pairs, r->context.len, tmpl_str(name), &pair);
    if (err)
        return err;
    bool is_clock = strv_is(name, TMPL_CLOCK); // a function where the caller gave the time, else undefined
    int row = (pair != NULL) == is_clock ? tmpl_builtin_find(tmpl_functions, name) : -1;
    if (pair && !is_clock)
        *ret = pair->value;
    else if (row >= 0)
        *ret = (struct tmpl_val){.kind = VAL_FUNCTION, .sub = (uint8_t)row};
    else
        *ret = tmpl_undefined(VAL_ABSENT, name);
    return ISO_OK;
}

static enum iso_err set_name(struct tmpl_run *r, struct strv name, struct tmpl_val value)
{
    for (uint32_t i = r->scope_start; i < r->var_count; i++) {
        if (strv_equal(r->vars[i].name, name)) {
            r->vars[i].value = value;
            return ISO_OK;
        }
    }
    if (r->var_count == TMPL_VARS_MAX)
        return tmpl_fail(r, ISO_E_LIMIT, "more than %d variables", TMPL_VARS_MAX);
    r->vars[r->var_count++] = (struct tmpl_binding){name, value};
    return ISO_OK;
}

static enum iso_err assign(struct tmpl_run *r, uint32_t target, struct tmpl_val value);

static uint32_t open_scope(struct tmpl_run *r)
{
    uint32_t outer = r->scope_start;
    if (r->scopes++ == 0)
        r->outermost = r->var_count;
    r->scope_start = r->var_count;
    return outer;
}

static void close_scope(struct tmpl_run *r, uint32_t outer)
{
    r->scopes--;
    r->var_count = r->scope_start;
    r->scope_start = outer;
}

static enum iso_err unpack(struct tmpl_run *r, const struct tmpl_node *tuple, struct tmpl_val value)
{
    const struct tmpl_val *items;
    uint32_t len, i = 0;
    if (value.kind == VAL_UNDEFINED)
        return tmpl_fail_undefined(r, value);
    enum iso_err err = tmpl_iterate(r, value, &items, &len);
    if (!err && len != tuple->b)
        return tmpl_fail(r, ISO_E_FORMAT, "%u values for %u names", len, tuple->b);
    for (uint32_t target = tuple->a; target && !err; target = node_of(r, target)->next)
        err = assign(r, target, items[i++]);
    return err;
}

static enum iso_err assign_member(struct tmpl_run *r, const struct tmpl_node *node, struct tmpl_val value)
{
    struct tmpl_val space;
    enum iso_err err = eval_name(r, text_of(r, node), &space);
    if (!err && space.kind == VAL_UNDEFINED)
        return tmpl_fail_undefined(r, space);
    if (!err && space.kind != VAL_NAMESPACE)
        return tmpl_fail(r, ISO_E_FORMAT, "only a namespace's attributes can be set");
    return err ? err : tmpl_set_member(r, space.space, tmpl_str(tmpl_text(r->t, node->c, node->d)), value);
}

static enum iso_err assign(struct tmpl_run *r, uint32_t target, struct tmpl_val value)
{
    const struct tmpl_node *node = node_of(r, target);
    enum iso_err err = tmpl_charge(r, 1);
    r->at = node->at;
    if (err)
        return err;
    if (node->kind == NODE_TUPLE)
        return unpack(r, node, value);
    return node->kind == NODE_MEMBER ? assign_member(r, node, value) : set_name(r, text_of(r, node), value);
}

// ---- expressions

static enum iso_err eval_items(struct tmpl_run *r, const struct tmpl_node *node, struct tmpl_val *ret)
{
    struct tmpl_val *items = tmpl_alloc(r, node->b, sizeof *items);
    enum iso_err err = items ? ISO_OK : ISO_E_LIMIT;
    uint32_t len = 0;
    for (uint32_t n = node->a; n && !err; n = node_of(r, n)->next)
        err = eval(r, n, &items[len++]);
    if (!err)
        *ret = (struct tmpl_val){
            .kind = node->kind == NODE_LIST ? VAL_LIST : VAL_TUPLE, .len = len, .items = items};
    return err;
}

static enum iso_err eval_dict(struct tmpl_run *r, const struct tmpl_node *node, struct tmpl_val *ret)
{
    struct tmpl_pair *pairs = tmpl_alloc(r, node->b, sizeof *pairs);
    enum iso_err err = pairs ? ISO_OK : ISO_E_LIMIT;
    uint32_t len = 0;
    for (uint32_t n = node->a; n && !err; n = node_of(r, n)->next) {
        struct tmpl_val key, value;
        err = eval(r, node_of(r, n)->a, &key);
        if (!err)
            err = eval(r, node_of(r, n)->b, &value);
        r->at = node_of(r, n)->at;
        if (!err)
            err = tmpl_set_key(r, pairs, &len, key, value);
    }
    if (!err)
        *ret = (struct tmpl_val){.kind = VAL_DICT, .len = len, .pairs = pairs};
    return err;
}

static enum iso_err eval_arith(struct tmpl_run *r, const struct tmpl_node *node, struct tmpl_val *ret)
{
    struct tmpl_val left, right;
    enum iso_err err = eval(r, node->a, &left);
    for (uint32_t n = node->b; n && !err; n = node_of(r, n)->next) {
        const struct tmpl_node *operand = node_of(r, n);
        err = eval(r, operand->a, &right);
        r->at = operand->at;
        if (!err)
            err = tmpl_arith(r, operand->op, left, right, &left);
    }
    if (!err)
        *ret = left;
    return err;
}

static enum iso_err eval_compare(struct tmpl_run *r, const struct tmpl_node *node, struct tmpl_val *ret)
{
    struct tmpl_val left, right;
    bool holds = true;
    enum iso_err err = eval(r, node->a, &left);
    for (uint32_t n = node->b; n && holds && !err; n = node_of(r, n)->next) {
        const struct tmpl_node *operand = node_of(r, n);
        err = eval(r, operand->a, &right);
        r->at = operand->at;
        if (!err)
            err = tmpl_compare(r, operand->op, left, right, &holds);
        if (!err)
            left = right;
    }
    if (!err)
        *ret = tmpl_bool(holds);
    return err;
}

// The first of the parts that decides, or the last.
static enum iso_err eval_logic(struct tmpl_run *r, const struct tmpl_node *node, struct tmpl_val *ret)
{
    bool decides = node->kind == NODE_OR;
    struct tmpl_val v = {0};
    enum iso_err err = ISO_OK;
    for (uint32_t n = node->a; n && !err; n = node_of(r, n)->next) {
        err = eval(r, n, &v);
        if (!err && tmpl_truth(v) == decides)
            break;
    }
    if (!err)
        *ret = v;
    return err;
}

static enum iso_err eval_cond(struct tmpl_run *r, const struct tmpl_node *node, struct tmpl_val *ret)
{
    struct tmpl_val test;
    enum iso_err err = eval(r, node->a, &test);
    if (err)
        return err;
    if (tmpl_truth(test))
        return eval(r, node->b, ret);
    if (node->c)
        return eval(r, node->c, ret);
    *ret = tmpl_undefined(VAL_ABSENT, STRV_LIT("if without else"));
    return ISO_OK;
}

static enum iso_err eval_args(struct tmpl_run *r, const struct tmpl_node *node, struct tmpl_args *ret)
{
    enum iso_err err = ISO_OK;
    ret->count = 0;
    for (uint32_t n = node->a; n && !err; n = node_of(r, n)->next) {
        const struct tmpl_node *arg = node_of(r, n);
        bool keyword = arg->kind == NODE_KWARG;
        ASSERT(ret->count < TMPL_ARGS_MAX);
        ret->names[ret->count] = keyword ? text_of(r, arg) : (struct strv){0};
        err = eval(r, keyword ? arg->c : n, &ret->values[ret->count++]);
    }
    r->at = node->at;
    return err;
}

static enum iso_err exec(struct tmpl_run *r, uint32_t first, enum flow *ret_flow);

// The macro's parameters become variables: the arguments, else the defaults, else undefined.
static enum iso_err bind_parameters(struct tmpl_run *r, const struct tmpl_node *macro,
                                    const struct tmpl_args *args)
{
    uint32_t given = 0, position = 0;
    enum iso_err err = ISO_OK;
    for (uint32_t n = macro->c; n && !err; n = node_of(r, n)->next, position++) {
        const struct tmpl_node *param = node_of(r, n);
        struct strv name = text_of(r, param);
        struct tmpl_val v = tmpl_undefined(VAL_ABSENT, name);
        uint32_t found = 0;
        // Compared with every argument and every parameter before it.
        err = tmpl_charge_bytes(r, (uint64_t)name.len * (position + args->count + 1));
        if (err)
            return err;
        for (uint32_t i = 0; i < args->count; i++)
            if (args->names[i].ptr ? strv_equal(args->names[i], name) : i == position)
                v = args->values[i], found++;
        given += found;
        if (found > 1)
            return tmpl_fail(r, ISO_E_FORMAT, "macro '%.*s' has its parameter '%.*s' twice",
                             STRV_ARG(text_of(r, macro)), STRV_ARG(name));
        if (!found && param->c)
            err = eval(r, param->c, &v);
        if (!err)
            err = set_name(r, name, v);
    }
    if (!err && given < args->count)
        return tmpl_fail(r, ISO_E_FORMAT, "macro '%.*s' takes no such argument", STRV_ARG(text_of(r, macro)));
    return err;
}

// A macro sees its parameters and the template's own variables; its value is the text that it writes.
static enum iso_err call_macro(struct tmpl_run *r, uint32_t node, const struct tmpl_args *args,
                               struct tmpl_val *ret)
{
    const struct tmpl_node *macro = node_of(r, node);
    if (r->macros == TMPL_MACROS_MAX)
        return tmpl_fail(r, ISO_E_LIMIT, "macros call each other deeper than %d", TMPL_MACROS_MAX);
    struct buf text, *out = r->out;
    uint32_t hidden_end = r->hidden_end, outer = open_scope(r);
    enum flow flow = FLOW_NEXT;
    buf_init(&text, TMPL_MEMORY_MAX);
    r->macros++;
    r->hidden_end = r->var_count > r->outermost ? r->var_count : 0;
    r->out = &text;
    enum iso_err err = bind_parameters(r, macro, args);
    if (!err)
        err = exec(r, macro->d, &flow);
    r->out = out;
    r->hidden_end = hidden_end;
    r->macros--;
    close_scope(r, outer);
    if (!err)
        err = tmpl_concat(r, (struct strv){0}, buf_strv(&text), ret);
    buf_deinit(&text);
    return err;
}

// A call, filter or test applied to *v, which takes the result.
static enum iso_err apply_call(struct tmpl_run *r, const struct tmpl_node *node, struct tmpl_val *v)
{
    struct tmpl_args args;
    enum iso_err err = eval_args(r, node, &args);
    if (err)
        return err;
    if (node->kind == NODE_FILTER)
        return tmpl_builtin_call(r, &tmpl_filters[node->op], *v, &args, v);
    if (node->kind == NODE_TEST) {
        err = tmpl_builtin_call(r, &tmpl_tests[node->op], *v, &args, v);
        if (!err && node->c)
            v->b = !v->b;
        return err;
    }
    switch (v->kind) {
    case VAL_FUNCTION:
        return tmpl_builtin_call(r, &tmpl_functions[v->sub], *v, &args, v);
    case VAL_METHOD:
        return tmpl_builtin_call(r, &tmpl_methods_of(v->self->kind)[v->sub], *v->self, &args, v);
    case VAL_MACRO:
        return call_macro(r, v->node, &args, v);
    case VAL_UNDEFINED:
        return tmpl_fail_undefined(r, *v);
    default:
        return tmpl_fail(r, ISO_E_FORMAT, "%s cannot be called", tmpl_kind_name(v->kind));
    }
}

static enum iso_err apply_slice(struct tmpl_run *r, const struct tmpl_node *node, struct tmpl_val *v)
{
    const uint32_t nodes[3] = {node->a, node->b, node->c};
    struct tmpl_val parts[3];
    enum iso_err err = ISO_OK;
    for (int i = 0; i < 3 && !err; i++) {
        parts[i] = (struct tmpl_val){.kind = VAL_NONE};
        if (nodes[i])
            err = eval(r, nodes[i], &parts[i]);
    }
    r->at = node->at;
    return err ? err : tmpl_slice(r, *v, parts, v);
}

static enum iso_err eval_postfix(struct tmpl_run *r, const struct tmpl_node *node, struct tmpl_val *ret)
{
    struct tmpl_val v, key;
    enum iso_err err = eval(r, node->a, &v);
    for (uint32_t n = node->b; n && !err; n = node_of(r, n)->next) {
        const struct tmpl_node *part = node_of(r, n);
        err = tmpl_charge(r, 1);
        r->at = part->at;
        if (err)
            break;
        if (part->kind == NODE_ATTR) {
            err = tmpl_attr(r, v, text_of(r, part), &v);
        } else if (part->kind == NODE_ITEM) {
            err = eval(r, part->a, &key);
            r->at = part->at;
            if (!err)
                err = tmpl_item(r, v, key, &v);
        } else if (part->kind == NODE_SLICE) {
            err = apply_slice(r, part, &v);
        } else {
            err = apply_call(r, part, &v);
        }
    }
    if (!err)
        *ret = v;
    return err;
}

static enum iso_err eval_not(struct tmpl_run *r, const struct tmpl_node *node, struct tmpl_val *ret)
{
    struct tmpl_val v;
    enum iso_err err = eval(r, node->a, &v);
    if (!err)
        *ret = tmpl_bool(!tmpl_truth(v));
    return err;
}

static enum iso_err eval_sign(struct tmpl_run *r, const struct tmpl_node *node, struct tmpl_val *ret)
{
    struct tmpl_val v;
    enum iso_err err = eval(r, node->a, &v);
    r->at = node->at;
    return err ? err : tmpl_sign(r, node->op, v, ret);
}

static enum iso_err eval(struct tmpl_run *r, uint32_t n, struct tmpl_val *ret)
{
    const struct tmpl_node *node = node_of(r, n);
    enum iso_err err = tmpl_charge(r, 1);
    r->at = node->at;
    if (err)
        return err;
    switch (node->kind) {
    case NODE_NONE:
        *ret = (struct tmpl_val){.kind = VAL_NONE};
        return ISO_OK;
    case NODE_BOOL:
        *ret = tmpl_bool(node->a != 0);
        return ISO_OK;
    case NODE_INT:
        *ret = tmpl_int(node->i);
        return ISO_OK;
    case NODE_FLOAT:
        *ret = tmpl_float(node->f);
        return ISO_OK;
    case NODE_STR:
        *ret = tmpl_str(text_of(r, node));
        return ISO_OK;
    case NODE_NAME:
        return eval_name(r, text_of(r, node), ret);
    case NODE_LIST:
    case NODE_TUPLE:
        return eval_items(r, node, ret);
    case NODE_DICT:
        return eval_dict(r, node, ret);
    case NODE_NOT:
        return eval_not(r, node, ret);
    case NODE_SIGN:
        return eval_sign(r, node, ret);
    case NODE_AND:
    case NODE_OR:
        return eval_logic(r, node, ret);
    case NODE_ARITH:
        return eval_arith(r, node, ret);
    case NODE_COMPARE:
        return eval_compare(r, node, ret);
    case NODE_COND:
        return eval_cond(r, node, ret);
    default:
        ASSERT(node->kind == NODE_POSTFIX);
        return eval_postfix(r, node, ret);
    }
}

// ---- statements

static enum iso_err exec_print(struct tmpl_run *r, const struct tmpl_node *node)
{
    struct tmpl_val v;
    enum iso_err err = eval(r, node->a, &v);
    r->at = node->at;
    return err ? err : tmpl_write_str(r, r->out, v);
}

static enum iso_err exec_if(struct tmpl_run *r, const struct tmpl_node *node, enum flow *ret_flow)
{
    for (uint32_t n = node->a; n; n = node_of(r, n)->next) {
        const struct tmpl_node *branch = node_of(r, n);
        struct tmpl_val test = tmpl_bool(true);
        enum iso_err err = branch->a ? eval(r, branch->a, &test) : ISO_OK;
        if (err)
            return err;
        if (tmpl_truth(test))
            return exec(r, branch->b, ret_flow);
    }
    return ISO_OK;
}

static enum iso_err exec_set(struct tmpl_run *r, const struct tmpl_node *node)
{
    struct tmpl_val v;
    enum iso_err err = eval(r, node->b, &v);
    return err ? err : assign(r, node->a, v);
}

// The body's text becomes the value. A break or continue in it drops the text.
static enum iso_err exec_set_block(struct tmpl_run *r, const struct tmpl_node *node, enum flow *ret_flow)
{
    struct buf text, *out = r->out;
    struct tmpl_val v;
    buf_init(&text, TMPL_MEMORY_MAX);
    r->out = &text;
    uint32_t outer = open_scope(r);
    enum iso_err err = exec(r, node->b, ret_flow);
    close_scope(r, outer);
    r->out = out;
    if (!err && *ret_flow == FLOW_NEXT) {
        err = tmpl_concat(r, (struct strv){0}, buf_strv(&text), &v);
        if (!err)
            err = assign(r, node->a, v);
    }
    buf_deinit(&text);
    return err;
}

static enum iso_err exec_scope(struct tmpl_run *r, const struct tmpl_node *node, enum flow *ret_flow)
{
    uint32_t outer = open_scope(r);
    enum iso_err err = exec(r, node->a, ret_flow);
    close_scope(r, outer);
    return err;
}

// The items for which the loop's filter holds.
static enum iso_err filter_items(struct tmpl_run *r, const struct tmpl_node *node,
                                 const struct tmpl_val **items, uint32_t *len)
{
    struct tmpl_val *kept = tmpl_alloc(r, *len, sizeof *kept);
    uint32_t kept_len = 0;
    enum iso_err err = kept ? ISO_OK : ISO_E_LIMIT;
    for (uint32_t i = 0; i < *len && !err; i++) {
        struct tmpl_val test = {0};
        uint32_t outer = open_scope(r);
        err = assign(r, node->a, (*items)[i]);
        if (!err)
            err = eval(r, node->c, &test);
        if (!err && tmpl_truth(test))
            kept[kept_len++] = (*items)[i];
        close_scope(r, outer);
    }
    if (err)
        return err;
    *items = kept;
    *len = kept_len;
    return ISO_OK;
}

static enum iso_err exec_for(struct tmpl_run *r, const struct tmpl_node *node, enum flow *ret_flow)
{
    struct tmpl_val iterable;
    const struct tmpl_val *items = NULL;
    uint32_t len = 0;
    enum iso_err err = eval(r, node->b, &iterable);
    r->at = node->at;
    if (!err)
        err = tmpl_iterate(r, iterable, &items, &len);
    if (!err && node->c)
        err = filter_items(r, node, &items, &len);
    if (err)
        return err;
    struct tmpl_loop *loop = tmpl_alloc(r, 1, sizeof *loop);
    if (!loop)
        return ISO_E_LIMIT;
    *loop = (struct tmpl_loop){.items = items, .len = len};
    // As in jinja2, an iteration counts for else only where it came to its end.
    bool complete = false;
    enum flow flow = FLOW_NEXT;
    for (uint32_t i = 0; i < len && !err && flow != FLOW_BREAK; i++) {
        loop->index0 = i;
        uint32_t outer = open_scope(r);
        err = set_name(r, STRV_LIT("loop"), (struct tmpl_val){.kind = VAL_LOOP, .loop = loop});
        if (!err)
            err = assign(r, node->a, items[i]);
        flow = FLOW_NEXT;
        if (!err)
            err = exec(r, node_of(r, node->d)->a, &flow);
        complete = complete || flow == FLOW_NEXT;
        close_scope(r, outer);
    }
    if (err || complete)
        return err;
    uint32_t outer = open_scope(r);
    err = exec(r, node_of(r, node->d)->b, ret_flow); // break and continue here are the outer loop's
    close_scope(r, outer);
    return err;
}

static enum iso_err exec_one(struct tmpl_run *r, const struct tmpl_node *node, enum flow *ret_flow)
{
    enum iso_err err = tmpl_charge(r, 1);
    r->at = node->at;
    if (err)
        return err;
    switch (node->kind) {
    case NODE_DATA:
        return tmpl_put(r, r->out, text_of(r, node));
    case NODE_PRINT:
        return exec_print(r, node);
    case NODE_IF:
        return exec_if(r, node, ret_flow);
    case NODE_FOR:
        return exec_for(r, node, ret_flow);
    case NODE_SET:
        return exec_set(r, node);
    case NODE_SET_BLOCK:
        return exec_set_block(r, node, ret_flow);
    case NODE_SCOPE:
        return exec_scope(r, node, ret_flow);
    case NODE_MACRO:
        return set_name(r, text_of(r, node),
                        (struct tmpl_val){.kind = VAL_MACRO, .node = (uint32_t)(node - r->t->nodes)});
    case NODE_BREAK:
        *ret_flow = FLOW_BREAK;
        return ISO_OK;
    default:
        ASSERT(node->kind == NODE_CONTINUE);
        *ret_flow = FLOW_CONTINUE;
        return ISO_OK;
    }
}

// Statements from `first` (0 for none) on, until one breaks or continues the loop around.
static enum iso_err exec(struct tmpl_run *r, uint32_t first, enum flow *ret_flow)
{
    enum iso_err err = ISO_OK;
    for (uint32_t n = first; n && !err && *ret_flow == FLOW_NEXT; n = node_of(r, n)->next)
        err = exec_one(r, node_of(r, n), ret_flow);
    return err;
}

enum iso_err tmpl_interpret(struct tmpl_run *r)
{
    enum flow flow = FLOW_NEXT;
    return exec(r, r->t->body, &flow);
}
