// Measuring a model's quality: how well it predicts a text, how far it is from another model, how often it prefers
// the right answer.
#pragma once

#include "cli/cli.h"
#include "cli/session.h"

#define EVAL_TOKENS_MAX 1048576

// A text as tokens, cut into windows that are scored each from its beginning.
struct eval_text {
    uint32_t *ids; // without edges
    uint32_t n;
    uint32_t window; // tokens of one, its BOS among them
};

// Reads and tokenizes the file, at most `tokens_max` tokens of it (0: all). Release with eval_text_close.
enum iso_err eval_text_open(struct session *s, const char *path, uint32_t window, uint32_t tokens_max,
                            struct eval_text *ret, struct iso_errinfo *reterr) ISO_MUST_USE;
void eval_text_close(struct eval_text *t);

// Of one model on a text. Sums in f64, in the order of the text.
struct eval_side {
    double nll;             // mean negative log probability of a token, nats
    double scoring, decode; // tokens/s, by eval_speed; 0 where the plan is too short for it
};

struct eval_result {
    uint32_t scored; // tokens whose probability was taken: all but the first of each window
    struct eval_side side[2];
    // Where there are two: of the second's distribution P and the first's Q, over the scored positions.
    double kl_mean, kl_p99; // sum P log(P / Q), nats
    double top1;            // share of positions at which both prefer the same token
    double nll_error;       // standard error of the mean difference of nll
};

// Whether two plans can be scored together: ISO_E_USAGE where their vocabulary, slots or batch tokens differ.
enum iso_err eval_check_pair(struct session *const *sessions, struct iso_errinfo *reterr) ISO_MUST_USE;
// Scores the text with one session, or with two that eval_check_pair lets through. Errors of one name its
// path.
enum iso_err eval_run(struct session *const *sessions, const char *const *paths, uint32_t n,
                      const struct eval_text *text, struct cli_progress *progress, struct eval_result *ret,
                      struct iso_errinfo *reterr) ISO_MUST_USE;

// Fills in tokens a second of scoring the first window, and of greedy decode of one sequence after the text's beginning. By
// itself, after eval_run: threads of a unit that has just computed still look for work, and would slow another's.
enum iso_err eval_speed(struct session *s, const struct eval_text *text, struct eval_side *side,
                        struct iso_errinfo *reterr) ISO_MUST_USE;

// Log probabilities of ids[from..n) after what stands before each: their sum. n is at most max_seq_len.
enum iso_err eval_continuation(struct session *s, const uint32_t *ids, uint32_t n, uint32_t from, double *ret,
                               struct iso_errinfo *reterr) ISO_MUST_USE;
