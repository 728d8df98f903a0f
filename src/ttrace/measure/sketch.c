/* One pass over a tensor that leaves the sums of its cells (cells.py) and a few of the whole.

   Enters: a tensor seen as [outer, rows, inner, columns], its elements as bfloat16 bits or floats
   and the words of memory that they were, signs and keys. Leaves: the sums, grown. A NaN or an
   infinity spoils its cell and the sums of the whole; squares that float cannot hold do the latter.

   Cells are summed in double, where floats come in; else runs of a row are summed in float. Build it
   with kernel.c. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* Elements summed in float: of a sum of squares, 256 err by at most 256 * 2^-24 = 2e-5 without lanes,
   16 times less with those of AVX512. */
#define RUN 256

enum type { BFLOAT16, FLOAT32 };

/* sketch.py mirrors both structs. */
struct view {
    int64_t outer, rows, inner, columns;
    int64_t row_size, column_size, row_shift, column_shift; /* of cells */
};

struct totals {
    double squares, sum, peak;
    uint32_t digest;
};

struct tensor {
    const char *values;
    const char *words;
    int word_bytes;
    const float *row_signs, *column_signs; /* [2, row_size], [2, column_size] */
    const uint32_t *column_keys;
    uint32_t *exponents; /* how many elements have each exponent, in steps of 4; may be null */
};

INLINE float value_at(enum type type, const char *values, int64_t i) {
    uint32_t bits;
    uint16_t half;
    float value;
    if (type == BFLOAT16) {
        memcpy(&half, values + 2 * i, sizeof half);
        bits = (uint32_t)half << 16;
        memcpy(&value, &bits, sizeof value);
    } else {
        memcpy(&value, values + 4 * i, sizeof value);
    }
    return value;
}

INLINE uint32_t word_at(int word_bytes, const char *words, int64_t i) {
    uint32_t word;
    uint16_t half;
    if (word_bytes == 4) {
        memcpy(&word, words + 4 * i, sizeof word);
        return word;
    }
    if (word_bytes == 2) {
        memcpy(&half, words + 2 * i, sizeof half);
        return half;
    }
    return (uint8_t)words[i];
}

/* The finaliser of MurmurHash3, made odd: a change of one element then always changes the digest. */
INLINE uint32_t key_of(uint32_t x) {
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    x ^= x >> 16;
    return x | 1;
}

INLINE void add_run(enum type type, int word_bytes, const struct tensor *tensor, int64_t first,
                    int64_t place, int64_t column_size, int n, double *pair, uint32_t row_key,
                    struct totals *totals) {
    const float *a_signs = tensor->column_signs + place, *b_signs = a_signs + column_size;
    const uint32_t *keys = tensor->column_keys + place;
    float a = 0, b = 0, squares = 0, sum = 0, peak = 0;
    double wide_a = 0, wide_b = 0, wide_squares = 0;
    uint32_t digest = 0;
#pragma omp simd reduction(+ : a, b, wide_a, wide_b, squares, wide_squares, sum, digest) reduction(max : peak)
    for (int i = 0; i < n; i++) {
        float x = value_at(type, tensor->values, first + i), magnitude = fabsf(x);
        if (type == FLOAT32) {
            wide_a += a_signs[i] * x;
            wide_b += b_signs[i] * x;
            wide_squares += (double)x * x;
        } else {
            a += a_signs[i] * x;
            b += b_signs[i] * x;
            squares += x * x;
        }
        sum += x;
        peak = magnitude > peak ? magnitude : peak;
        digest += word_at(word_bytes, tensor->words, first + i) * keys[i];
    }
    pair[0] += type == FLOAT32 ? wide_a : a;
    pair[1] += type == FLOAT32 ? wide_b : b;
    totals->squares += type == FLOAT32 ? wide_squares : squares;
    totals->sum += sum;
    totals->peak = peak > totals->peak ? peak : totals->peak;
    totals->digest += digest * row_key;
}

INLINE void count_exponents(enum type type, const struct tensor *tensor, int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float value = value_at(type, tensor->values, first + i);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        tensor->exponents[(bits >> 25) & 63]++;
    }
}

INLINE void add_row(enum type type, int word_bytes, const struct tensor *tensor,
                    const struct view *view, int64_t number, int64_t cell_row, int64_t row_place,
                    double *sums, struct totals *totals) {
    int64_t column_cells =
        (view->column_shift + view->columns + view->column_size - 1) / view->column_size;
    int has_rows = view->row_size > 1;
    double a_row = has_rows ? tensor->row_signs[row_place] : 1;
    double b_row = has_rows ? tensor->row_signs[view->row_size + row_place] : 1;
    for (int64_t cell = 0; cell < column_cells; cell++) {
        int64_t start = cell * view->column_size - view->column_shift;
        int64_t low = start < 0 ? 0 : start, high = start + view->column_size;
        high = high > view->columns ? view->columns : high;
        uint32_t row_key = key_of((uint32_t)(number * column_cells + cell));
        double pair[2] = {0, 0};
        for (int64_t at = low; at < high; at += RUN) {
            int n = (int)(high - at < RUN ? high - at : RUN);
            add_run(type, word_bytes, tensor, number * view->columns + at, at - start,
                    view->column_size, n, pair, row_key, totals);
        }
        double *into = sums + (cell_row * column_cells + cell) * (has_rows ? 4 : 2);
        into[0] += a_row * pair[0];
        into[1] += a_row * pair[1];
        if (has_rows) {
            into[2] += b_row * pair[0];
            into[3] += b_row * pair[1];
        }
    }
    if (tensor->exponents)
        count_exponents(type, tensor, number * view->columns, view->columns);
}

INLINE void add_all(enum type type, int word_bytes, const struct tensor *tensor,
                    const struct view *view, double *sums, struct totals *totals) {
    int64_t row_cells = (view->row_shift + view->rows + view->row_size - 1) / view->row_size;
    for (int64_t outer = 0; outer < view->outer; outer++)
        for (int64_t row = 0; row < view->rows; row++) {
            int64_t at = row + view->row_shift, cell = at / view->row_size;
            for (int64_t inner = 0; inner < view->inner; inner++)
                add_row(type, word_bytes, tensor, view,
                        (outer * view->rows + row) * view->inner + inner,
                        (outer * row_cells + cell) * view->inner + inner, at % view->row_size, sums,
                        totals);
        }
}

/* One function for each form of memory, so that the inner loop knows it. */
#define ARGUMENTS                                                                                   \
    int type, const struct tensor *tensor, const struct view *view, double *sums,                  \
        struct totals *totals
#define BODY                                                                                       \
    {                                                                                              \
        if (type == BFLOAT16) add_all(BFLOAT16, 2, tensor, view, sums, totals);                    \
        else if (tensor->word_bytes == 4) add_all(FLOAT32, 4, tensor, view, sums, totals);         \
        else if (tensor->word_bytes == 2) add_all(FLOAT32, 2, tensor, view, sums, totals);         \
        else add_all(FLOAT32, 1, tensor, view, sums, totals);                                      \
    }

static void sketch_baseline(ARGUMENTS) BODY
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void sketch_avx2(ARGUMENTS) BODY
__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))) static void
sketch_avx512(ARGUMENTS) BODY
#endif

/* Levels are those of kernel.c. */
void ttrace_sketch(int level, ARGUMENTS) {
    switch (level) {
#if defined(__x86_64__)
    case 2: sketch_avx512(type, tensor, view, sums, totals); return;
    case 1: sketch_avx2(type, tensor, view, sums, totals); return;
#endif
    default: sketch_baseline(type, tensor, view, sums, totals);
    }
}
