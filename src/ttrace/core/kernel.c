/* One fused pass over a pair of tensors.

   Enters: two contiguous arrays of bfloat16 bits or floats, and running sums. Leaves: the sums, grown
   by this pair. Knows nothing of Python, torch or shapes; kernel.py mirrors the struct and the enums.

   A block is summed in float, the blocks in double. That is right as long as no element is NaN or Inf
   and no square overflows or turns subnormal, and all of these show in the block's own sums: only a
   block that fails the test is measured again in double, so healthy blocks do not pay for it.

   Build with -O3 -fopenmp-simd -ffp-contract=fast: the pragmas permit the compiler to reorder these
   sums and nothing else, where -ffast-math would also drop the NaN tests. */

#include <stdint.h>
#include <string.h>

/* Raise it whenever the struct, an enum or a signature changes; kernel.py holds the same number. */
#define ABI 1

/* Elements summed in float: one accumulator over 4096 was measured to err by 1.2e-7, the lanes of a
   vector make it less. A pair of such blocks of floats is 32 KiB, which stays in the L1 cache. */
#define BLOCK 4096

/* A square below FLT_MIN = 2^-126 is rounded by up to 2^-150; 2^12 of them move a sum of 2^-108 by at
   most 2^-30 of it, less than float sums err anyway. Smaller sums are not trusted. */
#define SMALLEST_TRUSTED_SUM 0x1p-108f

#define INLINE static inline __attribute__((always_inline))

struct sums {
    double error_squared, reference_squared, candidate_squared, dot, error_sum, max_error;
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

/* Pair i of n / 2. Two bfloat16 in one word need a shift and a mask, not a widening shuffle each; the
   order within a block does not matter to the sums, so floats pair up across its halves. */
INLINE struct pair load_pair(enum type type, const char *data, int64_t i, int64_t n) {
    uint32_t both;
    if (type == FLOAT32) return (struct pair){load(type, data, i), load(type, data, i + n / 2)};
    memcpy(&both, data + 4 * i, sizeof both);
    return (struct pair){from_bits(both << 16), from_bits(both & 0xffff0000u)};
}

INLINE int is_finite(double value) {
    return value - value == 0;
}

INLINE float larger(float a, float b) {
    return a > b ? a : b;
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
        sums->dot += r * c;
        sums->error_sum += e;
        if (magnitude > sums->max_error) sums->max_error = magnitude;
    }
}

INLINE int add_same_bits(enum type type, const char *data, int n, struct sums *sums) {
    float squared = 0;
#pragma omp simd reduction(+ : squared)
    for (int i = 0; i < n / 2; i++) {
        struct pair value = load_pair(type, data, i, n);
        squared += value.first * value.first;
        squared += value.second * value.second;
    }
    if (!trusted(type, data, n, squared)) return 0;
    sums->reference_squared += squared;
    sums->candidate_squared += squared;
    sums->dot += squared;
    return 1;
}

INLINE int add_different(enum type type, const char *reference, const char *candidate, int n,
                         struct sums *sums) {
    float e2 = 0, r2 = 0, c2 = 0, dot = 0, error_sum = 0, max_error = 0;
    int unequal = 0;
#pragma omp simd reduction(+ : e2, r2, c2, dot, error_sum, unequal) reduction(max : max_error)
    for (int i = 0; i < n / 2; i++) {
        struct pair r = load_pair(type, reference, i, n), c = load_pair(type, candidate, i, n);
        struct pair e = {c.first - r.first, c.second - r.second};
        float magnitude = larger(__builtin_fabsf(e.first), __builtin_fabsf(e.second));
        /* Not x * x + y * y: one addition per product lets each become a fused multiply-add. */
        e2 += e.first * e.first;
        e2 += e.second * e.second;
        r2 += r.first * r.first;
        r2 += r.second * r.second;
        c2 += c.first * c.first;
        c2 += c.second * c.second;
        dot += r.first * c.first;
        dot += r.second * c.second;
        error_sum += e.first + e.second;
        unequal += (r.first != c.first) + (r.second != c.second);
        max_error = magnitude > max_error ? magnitude : max_error;
    }
    if (!trusted(type, reference, n, r2) || !trusted(type, candidate, n, c2)) return 0;
    if (!is_finite(e2) || (e2 < SMALLEST_TRUSTED_SUM && max_error > 0)) return 0;
    sums->error_squared += e2;
    sums->reference_squared += r2;
    sums->candidate_squared += c2;
    sums->dot += dot;
    sums->error_sum += error_sum;
    sums->unequal += unequal;
    if (max_error > sums->max_error) sums->max_error = max_error;
    return 1;
}

INLINE void add_blocks(enum type type, const char *reference, const char *candidate, int64_t count,
                       struct sums *sums) {
    for (int64_t start = 0; start < count; start += BLOCK) {
        const char *r = reference + size_bytes(type, start), *c = candidate + size_bytes(type, start);
        int n = count - start < BLOCK ? (int)(count - start) : BLOCK;
        int even = n & ~1;
        int64_t paired = size_bytes(type, even);
        int done = memcmp(r, c, (size_t)paired) == 0 ? add_same_bits(type, r, even, sums)
                                                     : add_different(type, r, c, even, sums);
        if (!done) add_carefully(type, r, c, even, sums);
        if (n != even) add_carefully(type, r + paired, c + paired, 1, sums);
    }
}

INLINE void add_any(int type, const char *r, const char *c, int64_t count, struct sums *sums) {
    if (type == BFLOAT16) add_blocks(BFLOAT16, r, c, count, sums);
    else add_blocks(FLOAT32, r, c, count, sums);
}

/* The same source for each instruction set: inlining takes on the caller's. */
static void add_baseline(int type, const char *r, const char *c, int64_t count, struct sums *sums) {
    add_any(type, r, c, count, sums);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void
add_avx2(int type, const char *r, const char *c, int64_t count, struct sums *sums) {
    add_any(type, r, c, count, sums);
}

__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))) static void
add_avx512(int type, const char *r, const char *c, int64_t count, struct sums *sums) {
    add_any(type, r, c, count, sums);
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
