/* One fused pass over a pair of tensors.

   Enters: two contiguous matrices of bfloat16 bits or floats, and running sums. Leaves: the sums,
   grown by this pair, and the squared error of every row and of every column. Knows nothing of
   Python, torch or more than two dims; kernel.py mirrors the struct and the enums.

   A run (a part of a row) is summed in float, the runs in double; columns are summed in float over
   the few rows of a panel. That is right as long as no element is NaN or Inf and no square
   overflows or turns subnormal, and all of these show in the run's own sums: only a panel that
   fails the test is measured again in double, so healthy panels do not pay for it.

   Build with -O3 -fopenmp-simd -ffp-contract=fast: the pragmas permit the compiler to reorder these
   sums and nothing else, where -ffast-math would also drop the NaN tests. */

#include <stdint.h>
#include <string.h>

/* Raise it whenever the struct, an enum or a signature changes; kernel.py holds the same number. */
#define ABI 2

/* Elements summed in float, by the lanes (4 in SSE and NEON, 8 or more in AVX) that share them. A
   sum of squares erred by at most 7e-7 over normal, uniform and lognormal data; the worst case is a
   constant, whose roundings all go one way: 4e-6 among 3,000 of them, so 2e-6 of a norm. Both grow
   with the length. Halving the AVX blocks costs about 7% of the speed. All measured. */
#define BLOCK_OF_4_LANES 2048
#define BLOCK_OF_8_LANES 4096

/* Rows whose columns are summed in float before they are added to doubles: that costs a 64th of the
   pass, and a sum of 64 squares errs by at most 64 * 2^-24 = 4e-6 of itself. */
#define PANEL_ROWS 64

/* Rows up to this length share a run, and are told apart afterwards: the dozen sums of a run take as
   long to finish as 200 elements take to add (measured). */
#define SHORT_ROW 1024
#define SHORT_ROWS 256 /* as PANEL_ROWS, for rows that fill few runs: 2e-5 */

/* A square below FLT_MIN = 2^-126 is rounded by up to 2^-150; 2^12 of them move a sum of 2^-108 by
   at most 2^-30 of it, less than float sums err anyway. Smaller sums are not trusted. */
#define SMALLEST_TRUSTED_SUM 0x1p-108f

#define INLINE static inline __attribute__((always_inline))

/* error_dot is <error, reference>: the dot of both tensors is reference_squared + error_dot. Summed
   by itself it would err by 1e-7, which is more than the distance of a float32 gain from 1. */
struct sums {
    double error_squared, reference_squared, candidate_squared, error_dot, error_sum, max_error;
    int64_t nonfinite_reference, nonfinite_candidate, unequal, different_bits, max_ulp;
    int64_t worst; /* the element of max_error, counted from the start of this call's matrices */
};

/* Where the squared errors of one panel go: rows[i] and columns[j] are grown. */
struct slices {
    double *rows, *columns;
};

enum type { BFLOAT16, FLOAT32 };
/* What becomes of the squares of a run: only summed; added to its columns; or kept. */
enum squares { SUMMED, ADDED, KEPT };
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

/* A pair with a NaN or Inf on either side is counted and left out of every sum. */
INLINE void add_carefully(enum type type, const char *reference, const char *candidate, int n,
                          int64_t place, double *row, double *columns, struct sums *sums) {
    for (int i = 0; i < n; i++) {
        float wide_r = load(type, reference, i), wide_c = load(type, candidate, i);
        double r = wide_r, c = wide_c, e = c - r, magnitude = e < 0 ? -e : e;
        sums->nonfinite_reference += !is_finite(r);
        sums->nonfinite_candidate += !is_finite(c);
        sums->unequal += !(r == c || (r != r && c != c));
        if (!is_finite(r) || !is_finite(c)) continue;
        int64_t ulp = ulp_distance(wide_r, wide_c) >> (type == BFLOAT16 ? 16 : 0);
        sums->error_squared += e * e;
        sums->reference_squared += r * r;
        sums->candidate_squared += c * c;
        sums->error_dot += e * r;
        sums->error_sum += e;
        if (row) *row += e * e;
        if (columns) columns[i] += e * e;
        if (ulp > sums->max_ulp) sums->max_ulp = ulp;
        if (magnitude > sums->max_error) {
            sums->max_error = magnitude;
            sums->worst = place + i;
        }
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

INLINE int find_error(enum type type, const char *reference, const char *candidate, int n,
                      int32_t bits) {
    for (int i = 0; i < n; i++)
        if (magnitude_bits(load(type, candidate, i) - load(type, reference, i)) == bits) return i;
    return 0;
}

/* One run; `first` and `second` take the squares of its pairs. */
INLINE int add_different(enum type type, enum squares squares, const char *reference,
                         const char *candidate, int n, int64_t place, double *row,
                         float *restrict first, float *restrict second, struct sums *sums) {
    float ee1 = 0, rr1 = 0, cc1 = 0, er1 = 0, ee2 = 0, rr2 = 0, cc2 = 0, er2 = 0;
    float sum1 = 0, sum2 = 0;
    int unequal = 0;
    int32_t max_bits = 0;
    uint32_t max_ulp = 0;
#pragma omp simd reduction(+ : ee1, rr1, cc1, er1, ee2, rr2, cc2, er2, sum1, sum2, unequal) \
    reduction(max : max_bits, max_ulp)
    for (int i = 0; i < n / 2; i++) {
        struct pair r = load_pair(type, reference, i, n), c = load_pair(type, candidate, i, n);
        struct pair e = {c.first - r.first, c.second - r.second};
        int32_t bits = larger(magnitude_bits(e.first), magnitude_bits(e.second));
        uint32_t ulp1 = ulp_distance(r.first, c.first), ulp2 = ulp_distance(r.second, c.second);
        uint32_t ulp = ulp1 > ulp2 ? ulp1 : ulp2;
        float square1 = e.first * e.first, square2 = e.second * e.second;
        ee1 += square1;
        ee2 += square2;
        if (squares == ADDED) {
            first[i] += square1;
            second[i] += square2;
        } else if (squares == KEPT) {
            first[i] = square1;
            second[i] = square2;
        }
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
        max_ulp = ulp > max_ulp ? ulp : max_ulp;
    }
    float ee = ee1 + ee2, rr = rr1 + rr2, cc = cc1 + cc2, max_error = from_bits((uint32_t)max_bits);
    int64_t ulp = max_ulp >> (type == BFLOAT16 ? 16 : 0);
    if (!trusted(type, reference, n, rr) || !trusted(type, candidate, n, cc)) return 0;
    if (!is_finite(ee) || (ee < SMALLEST_TRUSTED_SUM && max_error > 0)) return 0;
    sums->error_squared += ee;
    sums->reference_squared += rr;
    sums->candidate_squared += cc;
    sums->error_dot += er1 + er2;
    sums->error_sum += sum1 + sum2;
    sums->unequal += unequal;
    if (row) *row += ee;
    if (ulp > sums->max_ulp) sums->max_ulp = ulp;
    if (max_error > sums->max_error) {
        sums->max_error = max_error;
        sums->worst = place + find_error(type, reference, candidate, n, max_bits);
    }
    return 1;
}

struct matrix {
    const char *reference, *candidate;
    int64_t place, stride; /* of the first element in the whole, and from row to row */
    int rows, columns;
};

INLINE const char *row_of(enum type type, const char *data, struct matrix panel, int row) {
    return data + size_bytes(type, row * panel.stride);
}

INLINE void add_columns(enum type type, const float *first, const float *second, int half,
                        double *columns) {
    for (int i = 0; i < half; i++) {
        columns[type == BFLOAT16 ? 2 * i : i] += first[i];
        columns[type == BFLOAT16 ? 2 * i + 1 : i + half] += second[i];
    }
}

/* An even number of columns; 0 if a run cannot be trusted, and then nothing was added. */
INLINE int add_panel(enum type type, int by_column, struct matrix panel, struct slices slices,
                     struct sums *sums) {
    float first[by_column ? BLOCK_OF_8_LANES / 2 : 1], second[by_column ? BLOCK_OF_8_LANES / 2 : 1];
    double rows[PANEL_ROWS] = {0};
    struct sums grown = *sums;
    int half = panel.columns / 2, differs = 0;
    if (by_column) {
        memset(first, 0, sizeof *first * half);
        memset(second, 0, sizeof *second * half);
    }
    for (int row = 0; row < panel.rows; row++) {
        const char *r = row_of(type, panel.reference, panel, row);
        const char *c = row_of(type, panel.candidate, panel, row);
        int64_t place = panel.place + row * panel.stride;
        int same = memcmp(r, c, (size_t)size_bytes(type, panel.columns)) == 0;
        int done = same ? add_same_bits(type, r, panel.columns, &grown)
                        : add_different(type, by_column ? ADDED : SUMMED, r, c, panel.columns,
                                        place, &rows[row], first, second, &grown);
        if (!done) return 0;
        differs |= !same;
    }
    *sums = grown;
    sums->different_bits |= differs;
    for (int row = 0; slices.rows && row < panel.rows; row++) slices.rows[row] += rows[row];
    if (!by_column || !differs) return 1;
    add_columns(type, first, second, half, slices.columns);
    return 1;
}

/* Whole rows of an even number of columns, in one run; returns as add_panel does. */
INLINE int add_short_rows(enum type type, struct matrix panel, struct slices slices,
                          struct sums *sums) {
    float kept[BLOCK_OF_8_LANES], first[SHORT_ROW / 2] = {0}, second[SHORT_ROW / 2] = {0};
    int n = panel.rows * panel.columns, half = panel.columns / 2;
    const char *r = panel.reference, *c = panel.candidate;
    if (memcmp(r, c, (size_t)size_bytes(type, n)) == 0) return add_same_bits(type, r, n, sums);
    if (!add_different(type, KEPT, r, c, n, panel.place, 0, kept, kept + n / 2, sums)) return 0;
    sums->different_bits = 1;
    for (int row = 0; row < panel.rows; row++) {
        const float *one = kept + (type == BFLOAT16 ? row * half : 2 * row * half);
        const float *two = one + (type == BFLOAT16 ? n / 2 : half);
        float squared1 = 0, squared2 = 0;
#pragma omp simd reduction(+ : squared1, squared2)
        for (int i = 0; i < half; i++) {
            squared1 += one[i];
            squared2 += two[i];
            first[i] += one[i];
            second[i] += two[i];
        }
        slices.rows[row] += squared1 + squared2;
    }
    add_columns(type, first, second, half, slices.columns);
    return 1;
}

INLINE void add_panel_carefully(enum type type, struct matrix panel, struct slices slices,
                                struct sums *sums) {
    for (int row = 0; row < panel.rows; row++) {
        const char *r = row_of(type, panel.reference, panel, row);
        const char *c = row_of(type, panel.candidate, panel, row);
        sums->different_bits |= memcmp(r, c, (size_t)size_bytes(type, panel.columns)) != 0;
        add_carefully(type, r, c, panel.columns, panel.place + row * panel.stride,
                      slices.rows ? &slices.rows[row] : 0, slices.columns, sums);
    }
}

INLINE struct matrix part(enum type type, struct matrix panel, int column, int columns) {
    panel.reference += size_bytes(type, column);
    panel.candidate += size_bytes(type, column);
    panel.place += column;
    panel.columns = columns;
    return panel;
}

INLINE void add_matrix(enum type type, int by_column, int block, const char *reference,
                       const char *candidate, int64_t rows, int64_t columns, struct slices slices,
                       struct sums *sums) {
    int brief = by_column && slices.rows && columns <= SHORT_ROW && columns % 2 == 0;
    int fitting = brief && block / columns < SHORT_ROWS ? block / (int)columns : SHORT_ROWS;
    int at_once = brief ? fitting : PANEL_ROWS;
    for (int64_t row = 0; row < rows; row += at_once)
        for (int64_t column = 0; column < columns; column += block) {
            int64_t place = row * columns + column;
            struct matrix panel = {
                reference + size_bytes(type, place),
                candidate + size_bytes(type, place),
                place,
                columns,
                rows - row < at_once ? (int)(rows - row) : at_once,
                columns - column < block ? (int)(columns - column) : block,
            };
            struct slices here = {
                slices.rows ? slices.rows + row : 0,
                by_column ? slices.columns + column : 0,
            };
            int even = panel.columns & ~1;
            struct matrix paired = part(type, panel, 0, even);
            if (brief) {
                if (!add_short_rows(type, panel, here, sums))
                    add_panel_carefully(type, panel, here, sums);
                continue;
            }
            if (!add_panel(type, by_column, paired, here, sums))
                add_panel_carefully(type, paired, here, sums);
            if (even == panel.columns) continue;
            if (by_column) here.columns += even;
            add_panel_carefully(type, part(type, panel, even, 1), here, sums);
        }
}

/* What the entry points take; a null pointer means that these slices are not wanted. */
#define ARGUMENTS                                                                              \
    const char *reference, const char *candidate, int64_t rows, int64_t columns,               \
        struct slices slices, struct sums *sums

INLINE void add_any(int type, int block, ARGUMENTS) {
    if (type == BFLOAT16 && slices.columns)
        add_matrix(BFLOAT16, 1, block, reference, candidate, rows, columns, slices, sums);
    else if (type == BFLOAT16)
        add_matrix(BFLOAT16, 0, block, reference, candidate, rows, columns, slices, sums);
    else if (slices.columns)
        add_matrix(FLOAT32, 1, block, reference, candidate, rows, columns, slices, sums);
    else add_matrix(FLOAT32, 0, block, reference, candidate, rows, columns, slices, sums);
}

/* The same source for each instruction set: inlining takes on the caller's. */
static void add_baseline(int type, ARGUMENTS) {
    add_any(type, BLOCK_OF_4_LANES, reference, candidate, rows, columns, slices, sums);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void add_avx2(int type, ARGUMENTS) {
    add_any(type, BLOCK_OF_8_LANES, reference, candidate, rows, columns, slices, sums);
}

__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))) static void
add_avx512(int type, ARGUMENTS) {
    add_any(type, BLOCK_OF_8_LANES, reference, candidate, rows, columns, slices, sums);
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
                       int64_t rows, int64_t columns, double *row_squares, double *column_squares,
                       struct sums *sums) {
    struct slices slices = {row_squares, column_squares};
    switch (level) {
#if defined(__x86_64__)
    case AVX512: add_avx512(type, reference, candidate, rows, columns, slices, sums); return;
    case AVX2: add_avx2(type, reference, candidate, rows, columns, slices, sums); return;
#endif
    default: add_baseline(type, reference, candidate, rows, columns, slices, sums);
    }
}
