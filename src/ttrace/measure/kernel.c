/* One fused pass over a pair of tensors.

   Enters: two contiguous matrices of bfloat16 bits or floats, and running sums. Leaves: the sums,
   grown by this pair, and the squared error of every row and of every column. Knows nothing of
   Python, torch or more than two dims; kernel.py mirrors the struct and the enums.

   A run (some rows, or a part of a long one) is summed in float, the runs in double; columns are
   summed in float over the few rows of a panel. That is right as long as no element is NaN or Inf
   and no square overflows or turns subnormal, and all of these show in the run's own sums: only a
   panel that fails the test is measured again in double, so healthy panels do not pay for it.

   Here is what is done once in a while; kernel_lanes.h has the inner loop. Build with -O3
   -fopenmp-simd -ffp-contract=fast: the pragmas permit the compiler to reorder these sums and
   nothing else, where -ffast-math would also drop the NaN tests. */

#include <stdint.h>
#include <string.h>

/* Raise it whenever the struct, an enum or a signature changes; kernel.py holds the same number. */
#define ABI 7

/* Elements summed in float, by the lanes (4 in SSE and NEON, 8 or more in AVX) that share them. A
   sum of squares erred by at most 7e-7 over normal, uniform and lognormal data; the worst case is a
   constant, whose roundings all go one way: 4e-6 among 3,000 of them, so 2e-6 of a norm. Both grow
   with the length. Halving the AVX blocks costs about 7% of the speed. All measured. */
#define BLOCK_OF_4_LANES 2048
#define BLOCK_OF_8_LANES 4096

/* Rows whose columns are summed in float before they are added to doubles: that costs a 64th of the
   pass, and a sum of 64 squares errs by at most 64 * 2^-24 = 4e-6 of itself. */
#define PANEL_ROWS 64

/* A square below FLT_MIN = 2^-126 is rounded by up to 2^-150; 2^12 of them move a sum of 2^-108 by
   at most 2^-30 of it, less than float sums err anyway. Smaller sums are not trusted. */
#define SMALLEST_TRUSTED_SUM 0x1p-108f

#define INLINE static inline __attribute__((always_inline))

/* error_dot is <error, reference>: the dot of both tensors is reference_squared + error_dot. Summed
   by itself it would err by 1e-7, which is more than the distance of a float32 gain from 1. */
struct sums {
    double error_squared, reference_squared, candidate_squared, error_dot, error_sum, max_error;
    double peak; /* the largest magnitude of the reference */
    int64_t nonfinite_reference, nonfinite_candidate, unequal, max_ulp;
    int64_t worst; /* the element of max_error, counted from the start of this call's matrices */
    uint64_t reference_grain, candidate_grain; /* mantissa bits set anywhere, as in a double */
};

/* Where the squared errors of one panel go: rows[i] and columns[j] are grown. */
struct slices {
    double *rows, *columns;
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

INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The mantissa of a float at its place in a double. */
INLINE uint64_t grain_of(uint32_t bits) {
    return (uint64_t)(bits & 0x7fffff) << 29;
}

INLINE int is_finite(double value) {
    return value - value == 0;
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

/* Floats of either sign in one order, in which neighbours differ by 1 and -0 is 0. */
INLINE int32_t in_order(float value) {
    int32_t bits, sign;
    memcpy(&bits, &value, sizeof bits);
    sign = bits >> 31;
    return ((bits & 0x7fffffff) ^ sign) - sign;
}

/* Below 2^32: finite floats of either sign lie within 2^31 of zero. bfloat16 are every 2^16th. */
INLINE uint32_t ulp_distance(float a, float b) {
    int32_t i = in_order(a), j = in_order(b);
    return i > j ? (uint32_t)i - (uint32_t)j : (uint32_t)j - (uint32_t)i;
}

/* A pair with a NaN or Inf on either side is left out of every sum, and counted unless both are the
 * same infinity: a mask. */
INLINE void add_carefully(enum type type, const char *reference, const char *candidate, int n,
                          int64_t place, double *row, double *columns, struct sums *sums) {
    for (int i = 0; i < n; i++) {
        float wide_r = load(type, reference, i), wide_c = load(type, candidate, i);
        double r = wide_r, c = wide_c, e = c - r, magnitude = e < 0 ? -e : e;
        sums->nonfinite_reference += !is_finite(r) && r != c;
        sums->nonfinite_candidate += !is_finite(c) && r != c;
        sums->unequal += !(r == c || (r != r && c != c));
        if (!is_finite(r) || !is_finite(c)) continue;
        sums->reference_grain |= grain_of(bits_of(wide_r));
        sums->candidate_grain |= grain_of(bits_of(wide_c));
        int64_t ulp = ulp_distance(wide_r, wide_c) >> (type == BFLOAT16 ? 16 : 0);
        sums->error_squared += e * e;
        sums->reference_squared += r * r;
        sums->candidate_squared += c * c;
        sums->error_dot += e * r;
        sums->error_sum += e;
        if (sums->peak < r) sums->peak = r;
        if (sums->peak < -r) sums->peak = -r;
        if (row) *row += e * e;
        if (columns) columns[i] += e * e;
        if (ulp > sums->max_ulp) sums->max_ulp = ulp;
        if (magnitude > sums->max_error) {
            sums->max_error = magnitude;
            sums->worst = place + i;
        }
    }
}

/* Rows of a matrix, or parts of rows. */
struct matrix {
    const char *reference, *candidate;
    int64_t place, stride; /* of the first element in the whole, and from row to row */
    int64_t rows, columns;
};

INLINE const char *row_of(enum type type, const char *data, struct matrix panel, int64_t row) {
    return data + size_bytes(type, row * panel.stride);
}

INLINE struct matrix part(enum type type, struct matrix whole, int64_t row, int64_t rows,
                          int64_t column, int64_t columns) {
    int64_t start = row * whole.stride + column;
    return (struct matrix){
        whole.reference + size_bytes(type, start),
        whole.candidate + size_bytes(type, start),
        whole.place + start,
        whole.stride,
        rows < whole.rows - row ? rows : whole.rows - row,
        columns < whole.columns - column ? columns : whole.columns - column,
    };
}

/* What a run summed in float, and counted. */
struct totals {
    float ee, rr, er, sum, largest; /* largest: the largest squared error */
    float peak;
    double cc;
    uint32_t ulp, unequal;
    uint32_t reference_bits, candidate_bits; /* of floats, set anywhere */
    int signs; /* of float32: whether some differ, and then ulp and unequal do not hold */
};

INLINE void count_again(struct matrix run, struct totals *totals) {
    int n = (int)(run.rows * run.columns);
    uint32_t ulp = 0, unequal = 0;
#pragma omp simd reduction(max : ulp) reduction(+ : unequal)
    for (int i = 0; i < n; i++) {
        uint32_t distance =
            ulp_distance(load(FLOAT32, run.reference, i), load(FLOAT32, run.candidate, i));
        ulp = distance > ulp ? distance : ulp;
        unequal += distance != 0;
    }
    totals->ulp = ulp;
    totals->unequal = unequal;
}

INLINE void find_worst(enum type type, struct matrix run, struct sums *sums) {
    for (int i = 0; i < run.rows * run.columns; i++) {
        double e = (double)load(type, run.candidate, i) - load(type, run.reference, i);
        double magnitude = e < 0 ? -e : e;
        if (magnitude <= sums->max_error) continue;
        sums->max_error = magnitude;
        sums->worst = run.place + i;
    }
}

/* 0 if it cannot be trusted, and then nothing was added. */
INLINE int add_totals(enum type type, struct matrix run, struct totals totals, struct sums *sums) {
    int n = (int)(run.rows * run.columns);
    if (!trusted(type, run.reference, n, totals.rr) || !is_finite(totals.ee)) return 0;
    if (!trusted(type, run.candidate, n, (float)totals.cc)) return 0;
    if (totals.signs) count_again(run, &totals);
    if (totals.ee < SMALLEST_TRUSTED_SUM && totals.unequal) return 0;
    sums->error_squared += totals.ee;
    sums->reference_squared += totals.rr;
    sums->candidate_squared += totals.cc;
    sums->error_dot += totals.er;
    sums->error_sum += totals.sum;
    sums->unequal += totals.unequal;
    sums->reference_grain |= grain_of(totals.reference_bits);
    sums->candidate_grain |= grain_of(totals.candidate_bits);
    if (totals.peak > sums->peak) sums->peak = totals.peak;
    if (totals.ulp > sums->max_ulp) sums->max_ulp = totals.ulp;
    float before = (float)sums->max_error;
    if (totals.largest > before * before) find_worst(type, run, sums);
    return 1;
}

/* The sum of the squares of one tensor, its largest magnitude, and the bits set anywhere. */
struct size {
    float squared, peak;
    uint32_t bits;
};

INLINE int add_same_bits(enum type type, struct matrix run, struct size size, struct sums *sums) {
    if (!trusted(type, run.reference, (int)(run.rows * run.columns), size.squared)) return 0;
    sums->reference_squared += size.squared;
    sums->candidate_squared += size.squared;
    sums->reference_grain |= grain_of(size.bits);
    sums->candidate_grain |= grain_of(size.bits);
    if (size.peak > sums->peak) sums->peak = size.peak;
    return 1;
}

INLINE void add_panel_carefully(enum type type, struct matrix panel, struct slices slices,
                                struct sums *sums) {
    for (int64_t row = 0; row < panel.rows; row++) {
        struct matrix run = part(type, panel, row, 1, 0, panel.columns);
        add_carefully(type, run.reference, run.candidate, (int)run.columns, run.place,
                      slices.rows ? &slices.rows[row] : 0, slices.columns, sums);
    }
}

/* What the entry points take; a null pointer means that these slices are not wanted. */
#define ARGUMENTS int type, struct matrix whole, struct slices slices, struct sums *sums

#define NAMED(name) name##_baseline
#define TARGET
#define LANES 4
#define BLOCK BLOCK_OF_4_LANES
#include "kernel_lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define NAMED(name) name##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define LANES 8
#define BLOCK BLOCK_OF_8_LANES
#define INTRINSIC(name, type, a, b) ((type)_mm256_##name((__m256i)(a), (__m256i)(b)))
#include "kernel_lanes.h"

#define NAMED(name) name##_avx512
#define TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#define LANES 16
#define BLOCK BLOCK_OF_8_LANES
#define INTRINSIC(name, type, a, b) ((type)_mm512_##name((__m512i)(a), (__m512i)(b)))
#include "kernel_lanes.h"
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
                       int64_t rows, int64_t columns, double *row_squares, double *column_squares,
                       struct sums *sums) {
    struct slices slices = {row_squares, column_squares};
    struct matrix whole = {reference, candidate, 0, columns, rows, columns};
    switch (level) {
#if defined(__x86_64__)
    case AVX512: add_any_avx512(type, whole, slices, sums); return;
    case AVX2: add_any_avx2(type, whole, slices, sums); return;
#endif
    default: add_any_baseline(type, whole, slices, sums);
    }
}
