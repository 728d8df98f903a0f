/* One fused pass over a pair of tensors.

   Enters: two contiguous arrays of bfloat16 bits or floats, and running sums. Leaves: the sums,
   grown by this pair. Knows nothing of Python, torch or shapes; kernel.py mirrors the struct and
   the enums.

   A block is summed in float, the blocks in double. That is right as long as no element is NaN or
   Inf and no square overflows or turns subnormal, and all of these show in the block's own sums:
   only a block that fails the test is measured again in double, so healthy blocks do not pay for
   it.

   Build with -O3 -fopenmp-simd -ffp-contract=fast: the pragmas permit the compiler to reorder these
   sums and nothing else, where -ffast-math would also drop the NaN tests. */

#include <stdint.h>
#include <string.h>

/* Raise it whenever the struct, an enum or a signature changes; kernel.py holds the same number. */
#define ABI 1

/* Elements summed in float, by the lanes (4 in SSE and NEON, 8 or more in AVX) that share them. A
   sum of squares erred by at most 7e-7 over normal, uniform and lognormal data; the worst case is a
   constant, whose roundings all go one way: 4e-6 among 3,000 of them, so 2e-6 of a norm. Both grow
   with the length. Halving the AVX blocks costs about 7% of the speed. All measured. */
#define BLOCK_OF_4_LANES 2048
#define BLOCK_OF_8_LANES 4096

/* A square below FLT_MIN = 2^-126 is rounded by up to 2^-150; 2^12 of them move a sum of 2^-108 by
   at most 2^-30 of it, less than float sums err anyway. Smaller sums are not trusted. */
#define SMALLEST_TRUSTED_SUM 0x1p-108f

#define INLINE static inline __attribute__((always_inline))

/* error_dot is <error, reference>: the dot of both tensors is reference_squared + error_dot. Summed
   by itself it would err by 1e-7, which is more than the distance of a float32 gain from 1. */
struct sums {
    double error_squared, reference_squared, candidate_squared, error_dot, error_sum, max_error;
    int64_t nonfinite_reference, nonfinite_candidate, unequal;
};

enum type { BFLOAT16, FLOAT32 };
enum level { BASELINE, AVX2, AVX512 };

INLINE int64_t size_bytes(enum type type, int64_t elements) {
    return elements * (type == BFLOAT16 ? 2 : 4);
}

INLINE float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE float load(enum type type, const char *data, int64_t i) {
    uint16_t half;
    float whole;
    if (type == BFLOAT16) {
        memcpy(&half, data + 2 * i, sizeof half);
        return from_bits((uint32_t)half << 16);
    }
    memcpy(&whole, data + 4 * i, sizeof whole);
    return whole;
}

struct pair {
    float first, second;
};

/* Pair i of n / 2. Two bfloat16 in one word need a shift and a mask, not a widening shuffle each;
   the order within a block does not matter to the sums, so floats pair up across its halves. */
INLINE struct pair load_pair(enum type type, const char *data, int64_t i, int64_t n) {
    uint32_t both;
    if (type == FLOAT32) return (struct pair){load(type, data, i), load(type, data, i + n / 2)};
    memcpy(&both, data + 4 * i, sizeof both);
    return (struct pair){from_bits(both << 16), from_bits(both & 0xffff0000u)};
}

INLINE int is_finite(double value) {
    return value - value == 0;
}

INLINE int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* Ordered as the magnitudes are. clang vectorises a maximum of integers, but none of floats, where
   NaN would make the order matter. */
INLINE int32_t magnitude_bits(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffff;
}

INLINE int all_zero(enum type type, const char *data, int n) {
    int nonzero = 0;
#pragma omp simd reduction(| : nonzero)
    for (int i = 0; i < n; i++) nonzero |= load(type, data, i) != 0.0f;
    return !nonzero;
}

INLINE int trusted(enum type type, const char *data, int n, float squared) {
    return is_finite(squared) && (squared >= SMALLEST_TRUSTED_SUM || all_zero(type, data, n));
}

/* A pair with a NaN or Inf on either side is counted and left out of every sum. */
INLINE void add_carefully(enum type type, const char *reference, const char *candidate, int n,
                          struct sums *sums) {
    for (int i = 0; i < n; i++) {
        double r = load(type, reference, i), c = load(type, candidate, i), e = c - r;
        double magnitude = e < 0 ? -e : e;
        sums->nonfinite_reference += !is_finite(r);
        sums->nonfinite_candidate += !is_finite(c);
        sums->unequal += !(r == c || (r != r && c != c));
        if (!is_finite(r) || !is_finite(c)) continue;
        sums->error_squared += e * e;
        sums->reference_squared += r * r;
        sums->candidate_squared += c * c;
        sums->error_dot += e * r;
        sums->error_sum += e;
        if (magnitude > sums->max_error) sums->max_error = magnitude;
    }
}

INLINE int add_same_bits(enum type type, const char *data, int n, struct sums *sums) {
    float squared1 = 0, squared2 = 0;
#pragma omp simd reduction(+ : squared1, squared2)
    for (int i = 0; i < n / 2; i++) {
        struct pair value = load_pair(type, data, i, n);
        squared1 += value.first * value.first;
        squared2 += value.second * value.second;
    }
    if (!trusted(type, data, n, squared1 + squared2)) return 0;
    sums->reference_squared += squared1 + squared2;
    sums->candidate_squared += squared1 + squared2;
    return 1;
}

INLINE int add_different(enum type type, const char *reference, const char *candidate, int n,
                         struct sums *sums) {
    float ee1 = 0, rr1 = 0, cc1 = 0, er1 = 0, ee2 = 0, rr2 = 0, cc2 = 0, er2 = 0;
    float sum1 = 0, sum2 = 0;
    int unequal = 0;
    int32_t max_bits = 0;
#pragma omp simd reduction(+ : ee1, rr1, cc1, er1, ee2, rr2, cc2, er2, sum1, sum2, unequal) \
    reduction(max : max_bits)
    for (int i = 0; i < n / 2; i++) {
        struct pair r = load_pair(type, reference, i, n), c = load_pair(type, candidate, i, n);
        struct pair e = {c.first - r.first, c.second - r.second};
        int32_t bits = larger(magnitude_bits(e.first), magnitude_bits(e.second));
        ee1 += e.first * e.first;
        ee2 += e.second * e.second;
        rr1 += r.first * r.first;
        rr2 += r.second * r.second;
        cc1 += c.first * c.first;
        cc2 += c.second * c.second;
        er1 += e.first * r.first;
        er2 += e.second * r.second;
        sum1 += e.first;
        sum2 += e.second;
        unequal += (r.first != c.first) + (r.second != c.second);
        max_bits = bits > max_bits ? bits : max_bits;
    }
    float ee = ee1 + ee2, rr = rr1 + rr2, cc = cc1 + cc2, max_error = from_bits((uint32_t)max_bits);
    if (!trusted(type, reference, n, rr) || !trusted(type, candidate, n, cc)) return 0;
    if (!is_finite(ee) || (ee < SMALLEST_TRUSTED_SUM && max_error > 0)) return 0;
    sums->error_squared += ee;
    sums->reference_squared += rr;
    sums->candidate_squared += cc;
    sums->error_dot += er1 + er2;
    sums->error_sum += sum1 + sum2;
    sums->unequal += unequal;
    if (max_error > sums->max_error) sums->max_error = max_error;
    return 1;
}

INLINE void add_blocks(enum type type, int block, const char *reference, const char *candidate,
                       int64_t count, struct sums *sums) {
    for (int64_t start = 0; start < count; start += block) {
        const char *r = reference + size_bytes(type, start);
        const char *c = candidate + size_bytes(type, start);
        int n = count - start < block ? (int)(count - start) : block;
        int even = n & ~1;
        int64_t paired = size_bytes(type, even);
        int done = memcmp(r, c, (size_t)paired) == 0 ? add_same_bits(type, r, even, sums)
                                                     : add_different(type, r, c, even, sums);
        if (!done) add_carefully(type, r, c, even, sums);
        if (n != even) add_carefully(type, r + paired, c + paired, 1, sums);
    }
}

INLINE void add_any(int type, int block, const char *r, const char *c, int64_t count,
                    struct sums *sums) {
    if (type == BFLOAT16) add_blocks(BFLOAT16, block, r, c, count, sums);
    else add_blocks(FLOAT32, block, r, c, count, sums);
}

/* The same source for each instruction set: inlining takes on the caller's. */
static void add_baseline(int type, const char *r, const char *c, int64_t count, struct sums *sums) {
    add_any(type, BLOCK_OF_4_LANES, r, c, count, sums);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void
add_avx2(int type, const char *r, const char *c, int64_t count, struct sums *sums) {
    add_any(type, BLOCK_OF_8_LANES, r, c, count, sums);
}

__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))) static void
add_avx512(int type, const char *r, const char *c, int64_t count, struct sums *sums) {
    add_any(type, BLOCK_OF_8_LANES, r, c, count, sums);
}
#endif

int ttrace_kernel_abi(void) {
    return ABI;
}

int ttrace_kernel_best_level(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    return BASELINE;
}

void ttrace_kernel_add(int type, int level, const char *reference, const char *candidate,
                       int64_t count, struct sums *sums) {
    switch (level) {
#if defined(__x86_64__)
    case AVX512: add_avx512(type, reference, candidate, count, sums); return;
    case AVX2: add_avx2(type, reference, candidate, count, sums); return;
#endif
    default: add_baseline(type, reference, candidate, count, sums);
    }
}
