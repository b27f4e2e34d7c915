// Shows the bounds of a running unit's memory, for tests/property/test_bounded.py.
//
//   tool_bounded account PLAN THREADS TEXT-BYTES
//       loads a plan, its tokenizer and a unit, computes a little, and prints the account's rows beside what
//       the system says is resident, by kind of mapping
//   tool_bounded fit PLAN POOL-BYTES
//       what fit and unit_open say of a pool of this size: ends with the error's exit code
//   tool_bounded load PLAN THREADS REQUESTS [malloc|mmap]
//       REQUESTS requests at varied times, some cancelled, on a unit that is ready: counts calls of malloc and
//       its like, and the system kills the process at any system call but futex, pread64, write and
//       exit_group. With a last word it breaks the rule at the end.
#include <fcntl.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/num.h"
#include "plan/plan.h"
#include "text/tokenizer.h"
#include "unit/account.h"
#include "unit/unit.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#endif

static _Atomic uint64_t allocations;

#ifndef SANITIZED
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

// These stand before the C library's for the whole process, its own code included.
__attribute__((visibility("default"))) void *malloc(size_t n)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_malloc(n);
}

__attribute__((visibility("default"))) void *calloc(size_t count, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_calloc(count, size);
}

__attribute__((visibility("default"))) void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_realloc(p, n);
}

__attribute__((visibility("default"))) void *aligned_alloc(size_t align, size_t n)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_memalign(align, n);
}

__attribute__((visibility("default"))) int posix_memalign(void **ret, size_t align, size_t n)
{
    atomic_fetch_add(&allocations, 1);
    *ret = __libc_memalign(align, n);
    return *ret ? 0 : 12;
}

__attribute__((visibility("default"))) void free(void *p)
{
    atomic_fetch_add(&allocations, p != NULL);
    __libc_free(p);
}
#endif

_Noreturn static void fail_with(const struct iso_errinfo *e)
{
    fprintf(stderr, "%s: %s\n", iso_err_name(e->code), e->text);
    exit(iso_err_exit_code(e->code));
}

_Noreturn static void fail(const char *what)
{
    fprintf(stderr, "tool_bounded: %s\n", what);
    exit(2);
}

static uint64_t number(const char *text)
{
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    if (end == text || *end)
        fail("a number is expected");
    return n;
}

// What account_of says of a plan of which only the header has been read.
static struct account account_of_file(const char *path, uint32_t threads, uint64_t text_bytes,
                                      struct plan_header *ret)
{
    struct iso_errinfo e;
    if (plan_peek(path, ret, &e))
        fail_with(&e);
    uint64_t weights = ret->sections[PLAN_WEIGHTS].bytes;
    return account_of(ret, weights, num_align(ret->file_bytes, PLAN_ALIGN) - weights, threads, text_bytes);
}

// ---- account ----

// Kilobytes resident, by what is mapped.
struct resident {
    uint64_t plan, pool, heap, main_stack, other_anonymous, files, total, pss;
};

static uint64_t *row_of(struct resident *r, const char *name)
{
    if (strstr(name, "isochron-plan"))
        return &r->plan;
    if (strstr(name, "isochron-pool"))
        return &r->pool;
    if (!strcmp(name, "[heap]"))
        return &r->heap;
    if (!strcmp(name, "[stack]"))
        return &r->main_stack;
    return name[0] == '/' ? &r->files : &r->other_anonymous;
}

// Plan and pool show their names only where the kernel keeps names, so they are known by their place too.
static struct resident read_resident(const void *plan, const void *pool)
{
    struct resident r = {0};
    char line[4096], name[4096] = "";
    uint64_t begin = 0, end = 0, kib;
    FILE *f = fopen("/proc/self/smaps", "r");
    if (!f)
        fail("/proc/self/smaps cannot be read");
    while (fgets(line, sizeof line, f)) {
        uint64_t b, e;
        int at = 0;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %*s %*s %n", &b, &e, &at) == 2 && at > 0) {
            line[strcspn(line, "\n")] = 0;
            memcpy(name, line + at, strlen(line + at) + 1);
            begin = b;
            end = e;
        } else if (sscanf(line, "Rss: %" SCNu64, &kib) == 1) {
            bool is_plan = (uintptr_t)plan >= begin && (uintptr_t)plan < end;
            bool is_pool = (uintptr_t)pool >= begin && (uintptr_t)pool < end;
            *(is_plan ? &r.plan : is_pool ? &r.pool : row_of(&r, name)) += kib;
            r.total += kib;
        } else if (sscanf(line, "Pss: %" SCNu64, &kib) == 1) {
            r.pss += kib;
        }
    }
    fclose(f);
    return r;
}

// Reads a text as long as the tokenizer takes, so that its whole workspace is used.
static void encode_longest(struct tokenizer *t, uint64_t text_bytes)
{
    struct iso_errinfo e;
    char *text = malloc(text_bytes);
    uint32_t *ids = malloc(text_bytes * sizeof *ids);
    size_t n;
    if (!text || !ids)
        fail("no memory");
    for (uint64_t i = 0; i < text_bytes; i++)
        text[i] = (char)('a' + i % 7);
    if (tok_encode(t, (struct strv){text, text_bytes}, TOK_PLAIN, false, ids, text_bytes, &n, &e))
        fail_with(&e);
    free(text);
    free(ids);
}

static void generate(struct unit *u, uint32_t n_prompt, uint32_t n_output)
{
    struct iso_errinfo e;
    uint32_t slot, *prompt = calloc(n_prompt, sizeof *prompt);
    struct unit_request request = {.prompt = prompt,
                                   .n_prompt = n_prompt,
                                   .max_output = n_output,
                                   .sampling = {.temperature = 1, .top_p = 0.9f, .repeat_penalty = 1.1f},
                                   .ignore_eog = true};
    if (!prompt || unit_submit(u, &request, &slot, NULL, &e))
        fail("the request was refused");
    while (unit_step(u).rows > 0)
        continue;
    free(prompt);
}

static int show_account(char **argv)
{
    struct iso_errinfo e;
    struct plan_header header;
    struct plan plan;
    struct tokenizer *tokenizer;
    struct unit *unit = NULL;
    struct unit_config config = {.threads = (uint32_t)number(argv[1])};
    uint64_t text_bytes = number(argv[2]);
    config.extra_bytes = tok_runtime_bytes(text_bytes);
    struct account a = account_of_file(argv[0], config.threads, config.extra_bytes, &header);
    config.pool_bytes_max = account_total(&a);
    if (plan_load(argv[0], NULL, NULL, &plan, &e))
        fail_with(&e);
    if (tok_open(plan.tokenizer, plan.tokenizer_bytes, text_bytes, &tokenizer, &e))
        fail_with(&e);
    if (unit_open(&plan, &config, &unit, &e))
        fail_with(&e);
    encode_longest(tokenizer, text_bytes);
    generate(unit, 8, 3);
    struct resident r = read_resident(plan.header, unit);
    printf("{\"total\": %" PRIu64 ", \"weights\": %" PRIu64 ", \"activations\": %" PRIu64 ", \"kv\": %" PRIu64
           ", \"runtime\": %" PRIu64 ", \"tables\": %" PRIu64 ", \"plan_rest\": %" PRIu64
           ", \"stacks\": %" PRIu64 ", \"text\": %" PRIu64 ", \"image\": %" PRIu64 ", \"pool\": %" PRIu64
           ",\n",
           account_total(&a), a.weights, a.activations, a.kv, a.runtime, a.runtime_tables, a.runtime_plan,
           a.runtime_stacks, a.runtime_text, a.runtime_image, unit_pool_bytes(&header));
    printf(" \"rss\": %" PRIu64 ", \"pss\": %" PRIu64 ", \"rss_plan\": %" PRIu64 ", \"rss_pool\": %" PRIu64
           ", \"rss_heap\": %" PRIu64 ", \"rss_main_stack\": %" PRIu64 ", \"rss_other_anonymous\": %" PRIu64
           ", \"rss_files\": %" PRIu64 "}\n",
           r.total * KIB, r.pss * KIB, r.plan * KIB, r.pool * KIB, r.heap * KIB, r.main_stack * KIB,
           r.other_anonymous * KIB, r.files * KIB);
    unit_close(unit);
    tok_close(tokenizer);
    plan_close(&plan);
    return 0;
}

// ---- fit ----

static int show_fit(char **argv)
{
    struct iso_errinfo e;
    struct plan_header header;
    struct plan plan;
    struct unit *unit;
    struct unit_config config = {.threads = 1, .pool_bytes_max = number(argv[1])};
    struct account a = account_of_file(argv[0], config.threads, 0, &header);
    printf("{\"total\": %" PRIu64 ", \"kv_block\": %" PRIu64 "}\n", account_total(&a), a.kv_block_bytes);
    if (plan_load(argv[0], NULL, NULL, &plan, &e))
        fail_with(&e);
    fflush(stdout);
    enum iso_err err = unit_open(&plan, &config, &unit, &e);
    if (err)
        fail_with(&e);
    unit_close(unit);
    plan_close(&plan);
    return 0;
}

// ---- load ----

static void seal(void)
{
#define ALLOW(number) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_futex),
        ALLOW(SYS_pread64),
        ALLOW(SYS_write),
        ALLOW(SYS_exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {.len = ARRAY_LEN(filter), .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program))
        fail("the system refused the filter of system calls");
}

// Pages resident; fd is /proc/self/statm, whose second number it is.
static uint64_t resident_pages(int fd)
{
    char text[256];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n <= 0)
        _exit(3);
    text[n] = 0;
    return strtoull(strchr(text, ' '), NULL, 10);
}

static uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

// A prompt of which a part is often the same as another's, greedy or sampled, now and then scored.
static bool submit_one(struct unit *u, uint64_t *random, uint32_t *prompt)
{
    const struct plan_header *h = unit_plan(u)->header;
    struct unit_request r = {
        .prompt = prompt, .ignore_eog = random_next(random) & 1, .sampling = SAMPLING_GREEDY};
    r.n_prompt = 1 + (uint32_t)(random_next(random) % (h->limits.max_seq_len / 2));
    r.max_output = 1 + (uint32_t)(random_next(random) % 8);
    r.score = random_next(random) % 16 == 0;
    if (random_next(random) & 1)
        r.sampling = (struct sampling){.temperature = 0.8f,
                                       .top_p = 0.9f,
                                       .min_p = 0.01f,
                                       .repeat_penalty = 1.2f,
                                       .top_k = 40,
                                       .seed = *random};
    uint32_t shared = (uint32_t)(random_next(random) % (r.n_prompt + 1));
    for (uint32_t i = 0; i < r.n_prompt; i++)
        prompt[i] = (i < shared ? i * 7 : (uint32_t)random_next(random)) % h->model.vocab;
    uint32_t slot;
    return unit_submit(u, &r, &slot, NULL, NULL) == ISO_OK;
}

static int run_load(int argc, char **argv)
{
    static char text[512]; // printing must not allocate
    struct iso_errinfo e;
    struct plan plan;
    struct unit *unit = NULL;
    struct unit_config config = {.threads = (uint32_t)number(argv[1])};
    uint64_t requests = number(argv[2]), done = 0, steps = 0, random = 1, first_pages = 0, most_pages = 0;
    if (plan_load(argv[0], NULL, NULL, &plan, &e))
        fail_with(&e);
    if (unit_open(&plan, &config, &unit, &e))
        fail_with(&e);
    uint32_t *prompt = calloc(plan.header->limits.max_seq_len, sizeof *prompt);
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (!prompt || fd < 0)
        fail("no memory");
    seal();
    uint64_t before = atomic_load(&allocations);
    while (done < requests) {
        done += submit_one(unit, &random, prompt);
        for (uint64_t n = random_next(&random) % 4; n > 0; n--)
            steps += unit_step(unit).rows > 0;
        if (random_next(&random) % 8 == 0)
            unit_cancel(unit, (uint32_t)(random_next(&random) % plan.header->limits.slots));
        if (done == requests / 10 && first_pages == 0)
            first_pages = resident_pages(fd);
        if (done > requests / 10)
            most_pages = num_max(most_pages, resident_pages(fd));
    }
    if (argc > 3 && !strcmp(argv[3], "malloc"))
        free(malloc(64));
    if (argc > 3 && !strcmp(argv[3], "mmap"))
        (void)mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t counted = atomic_load(&allocations) - before;
    int n = snprintf(text, sizeof text,
                     "{\"requests\": %" PRIu64 ", \"steps\": %" PRIu64 ", \"allocations\": %" PRIu64
                     ", \"pages\": %" PRIu64 ", \"most_pages\": %" PRIu64 "}\n",
                     done, steps, counted, first_pages, most_pages);
    _exit(write(STDOUT_FILENO, text, (size_t)n) == n ? 0 : 3);
}

int main(int argc, char **argv)
{
#ifdef SANITIZED
    fail("a sanitizer allocates for itself: use a build without");
#endif
    if (argc == 5 && !strcmp(argv[1], "account"))
        return show_account(argv + 2);
    if (argc == 4 && !strcmp(argv[1], "fit"))
        return show_fit(argv + 2);
    if ((argc == 5 || argc == 6) && !strcmp(argv[1], "load"))
        return run_load(argc - 2, argv + 2);
    fail("usage: tool_bounded account|fit|load ...");
}
