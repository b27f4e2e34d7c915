// The machine's own limits, to hold speeds against: bytes read per second from memory, and 8-bit integer
// operations per second (a multiply-add counts as two) of the widest dot product instruction, on registers.
// Prints one JSON object.
//
//   peak THREADS [MIB]
#include <immintrin.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/pages.h"

#define THREADS_MAX 64
#define ROUNDS      5
#define DOT_ROUNDS  5000000
#define CHAINS      12 // independent sums: more than the instruction's latency times its ports
#define MIB_DEFAULT 512

struct worker {
    const uint8_t *memory;
    size_t bytes;
    uint64_t sink;
};

__attribute__((target("avx2"))) static void *read_memory(void *context)
{
    struct worker *w = context;
    __m256i sum[4] = {{0}};
    for (size_t i = 0; i + 256 <= w->bytes; i += 256)
        for (size_t j = 0; j < 8; j++)
            sum[j % 4] =
                _mm256_xor_si256(sum[j % 4], _mm256_load_si256((const __m256i *)(w->memory + i + 32 * j)));
    __m256i all = _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
    w->sink = (uint64_t)_mm256_extract_epi64(all, 0);
    return NULL;
}

__attribute__((target("avx512f,avx512vnni"))) static void *multiply_avx512(void *context)
{
    struct worker *w = context;
    __m512i sum[CHAINS], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(2);
    for (int c = 0; c < CHAINS; c++)
        sum[c] = _mm512_set1_epi32(c);
    for (int i = 0; i < DOT_ROUNDS; i++) {
        for (int c = 0; c < CHAINS; c++)
            sum[c] = _mm512_dpbusd_epi32(sum[c], a, b);
        __asm__ volatile("" : "+v"(a), "+v"(b)); // or the compiler would multiply instead of adding
    }
    for (int c = 0; c < CHAINS; c++)
        w->sink += (uint64_t)_mm512_reduce_add_epi32(sum[c]);
    return NULL;
}

__attribute__((target("avx2"))) static void *multiply_avx2(void *context)
{
    struct worker *w = context;
    __m256i sum[CHAINS], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(2), ones = _mm256_set1_epi16(1);
    for (int c = 0; c < CHAINS; c++)
        sum[c] = _mm256_set1_epi32(c);
    for (int i = 0; i < DOT_ROUNDS; i++) {
        for (int c = 0; c < CHAINS; c++)
            sum[c] = _mm256_add_epi32(sum[c], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
        __asm__ volatile("" : "+x"(a), "+x"(b));
    }
    for (int c = 0; c < CHAINS; c++)
        w->sink += (uint64_t)_mm256_extract_epi64(sum[c], 0);
    return NULL;
}

static double best_seconds(struct worker *workers, int threads, void *(*function)(void *))
{
    uint64_t best = UINT64_MAX;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t handles[THREADS_MAX];
        uint64_t start = clock_now_ns();
        for (int i = 1; i < threads; i++)
            if (pthread_create(&handles[i], NULL, function, &workers[i]))
                exit(8);
        function(&workers[0]);
        for (int i = 1; i < threads; i++)
            pthread_join(handles[i], NULL);
        uint64_t took = clock_now_ns() - start;
        best = took < best ? took : best;
    }
    return (double)best * 1e-9;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    size_t bytes = (size_t)(argc > 2 ? atoi(argv[2]) : MIB_DEFAULT) << 20;
    if (threads < 1 || threads > THREADS_MAX || bytes == 0) {
        fprintf(stderr, "usage: peak THREADS [MIB]\n");
        return 2;
    }
    uint8_t *memory = pages_map(bytes, "isochron-peak"); // on huge pages, as weights are
    if (!memory)
        return 8;
    memset(memory, 1, bytes);
    struct worker workers[THREADS_MAX];
    size_t share = bytes / (size_t)threads / 4096 * 4096;
    for (int i = 0; i < threads; i++)
        workers[i] = (struct worker){.memory = memory + share * (size_t)i, .bytes = share};
    int wide = __builtin_cpu_supports("avx512vnni");
    double read_s = best_seconds(workers, threads, read_memory);
    double dot_s = best_seconds(workers, threads, wide ? multiply_avx512 : multiply_avx2);
    double operations = (double)threads * DOT_ROUNDS * CHAINS * (wide ? 64 : 32) * 2;
    printf("{\"threads\": %d, \"read_gb_per_s\": %.2f, \"int8_gop_per_s\": %.1f, \"instruction\": \"%s\"}\n",
           threads, (double)(share * (size_t)threads) * 1e-9 / read_s, operations * 1e-9 / dot_s,
           wide ? "vpdpbusd zmm" : "vpmaddubsw ymm");
    pages_unmap(memory, bytes);
    return 0;
}
