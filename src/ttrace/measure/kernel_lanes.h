/* The pass over panels that hold nothing unusual, once for every instruction set.

   kernel.c includes this with LANES (floats in a vector), BLOCK (elements summed in float), NAMED
   (the names of this set), TARGET (an attribute of its functions) and INTRINSIC, if there is one.

   The sums of a run stay in vectors until it ends; only the squared error is told apart by row, and
   its lanes are added up when the panel is done. A loop left to the compiler adds up the lanes of a
   dozen sums at the end of every row, which takes as long as 200 elements (measured). */

#define STEP (2 * LANES) /* elements of one turn: pairs of sums do not wait for each other */

typedef float NAMED(floats) __attribute__((vector_size(4 * LANES)));
typedef int32_t NAMED(ints) __attribute__((vector_size(4 * LANES)));
typedef uint32_t NAMED(words) __attribute__((vector_size(4 * LANES)));
typedef int16_t NAMED(shorts) __attribute__((vector_size(4 * LANES)));
typedef uint16_t NAMED(halves) __attribute__((vector_size(4 * LANES)));
#define floats NAMED(floats)
#define ints NAMED(ints)
#define words NAMED(words)
#define shorts NAMED(shorts)
#define halves NAMED(halves)

/* The compilers do not find these instructions in a comparison, which is -1 or 0 in every lane. */
#ifdef INTRINSIC
#define EXTREME(type, name, order, a, b) INTRINSIC(name, type, a, b)
#else
#define EXTREME(type, name, order, a, b) \
    (((type)((a)order(b)) & (a)) | (~(type)((a)order(b)) & (b)))
#endif
#define LARGER_INTS(a, b) EXTREME(ints, max_epi32, >, a, b)
#define SMALLER_INTS(a, b) EXTREME(ints, min_epi32, <, a, b)
#define SMALLER_WORDS(a, b) EXTREME(words, min_epu32, <, a, b)
#define LARGER_SHORTS(a, b) EXTREME(shorts, max_epi16, >, a, b)
#define SMALLER_SHORTS(a, b) EXTREME(shorts, min_epi16, <, a, b)
#define LARGER_HALVES(a, b) EXTREME(halves, max_epu16, >, a, b)
#define SMALLER_HALVES(a, b) EXTREME(halves, min_epu16, <, a, b)

struct NAMED(sums) {
    floats rr[2], er[2], sum[2];
    ints largest;      /* the bits of the largest square: of floats >= 0 they are ordered alike */
    ints most, least;  /* float32: differences of bits, which are ULPs if the signs are the same */
    ints signs;        /* float32: negative where signs were not the same */
    halves ulp, apart; /* bfloat16: the largest distance, and how often it was not 0 */
    words differ;      /* float32: how often bits were not the same */
    ints peak;         /* the bits of the largest magnitude of the reference */
    words expected, found; /* the bits that are set anywhere */
};

TARGET INLINE floats NAMED(load)(const char *data) {
    floats loaded;
    memcpy(&loaded, data, sizeof loaded);
    return loaded;
}

/* Into the second level of cache, from which a turn is read faster than it is added up. */
TARGET INLINE void NAMED(prefetch)(enum type type, const char *turn) {
    for (int64_t line = 0; line < size_bytes(type, STEP); line += 64)
        __builtin_prefetch(turn + line, 0, 2);
}

/* As in_order, for bfloat16. */
TARGET INLINE shorts NAMED(order)(floats pairs) {
    shorts bits = (shorts)pairs, sign = bits >> 15;
    return ((bits & 0x7fff) ^ sign) - sign;
}

/* Two bfloat16 in one word need a shift and a mask, not a shuffle each: even ones come first. */
TARGET INLINE void NAMED(widen)(floats pairs, floats wide[2]) {
    wide[0] = (floats)((words)pairs << 16);
    wide[1] = (floats)((words)pairs & 0xffff0000u);
}

/* Magnitudes are ordered as their bits are; of a pair of bfloat16, as those of both halves. */
TARGET INLINE ints NAMED(higher)(enum type type, ints peak, floats reference) {
    if (type == BFLOAT16)
        return (ints)LARGER_SHORTS((shorts)peak, (shorts)reference & 0x7fff);
    return LARGER_INTS(peak, (ints)reference & 0x7fffffff);
}

TARGET INLINE float NAMED(highest)(enum type type, ints peak) {
    int32_t whole[LANES], top = 0;
    memcpy(whole, &peak, sizeof whole);
    for (int i = 0; i < LANES; i++) {
        int32_t high = type == BFLOAT16 ? whole[i] & (int32_t)0x7fff0000 : whole[i];
        int32_t low = type == BFLOAT16 ? (int32_t)((uint32_t)whole[i] << 16) : 0;
        if (high > top) top = high;
        if (low > top) top = low;
    }
    return from_bits((uint32_t)top);
}

/* Of floats; two bfloat16 in one word are the upper halves of two. */
TARGET INLINE uint32_t NAMED(set_bits)(enum type type, words set) {
    uint32_t lane[LANES], bits = 0;
    memcpy(lane, &set, sizeof lane);
    for (int i = 0; i < LANES; i++) bits |= lane[i];
    return type == BFLOAT16 ? bits << 16 | (bits & 0xffff0000u) : bits;
}

/* One turn of STEP elements. */
TARGET INLINE void NAMED(add)(enum type type, int by_column, const char *reference,
                              const char *candidate, floats *squares, floats *row,
                              struct NAMED(sums) * sums) {
    floats r[2], c[2], one = NAMED(load)(reference), other = NAMED(load)(candidate);
    if (type == BFLOAT16) {
        NAMED(widen)(one, r);
        NAMED(widen)(other, c);
        sums->peak = NAMED(higher)(type, sums->peak, one);
        sums->expected |= (words)one;
        sums->found |= (words)other;
        shorts a = NAMED(order)(one), b = NAMED(order)(other);
        halves distance = (halves)LARGER_SHORTS(a, b) - (halves)SMALLER_SHORTS(a, b);
        sums->ulp = LARGER_HALVES(sums->ulp, distance);
        sums->apart += SMALLER_HALVES(distance, (halves){0} + 1);
    } else {
        r[0] = one, r[1] = NAMED(load)(reference + sizeof one);
        c[0] = other, c[1] = NAMED(load)(candidate + sizeof one);
        for (int i = 0; i < 2; i++) {
            ints distance = (ints)c[i] - (ints)r[i];
            sums->peak = NAMED(higher)(type, sums->peak, r[i]);
            sums->expected |= (words)r[i];
            sums->found |= (words)c[i];
            sums->most = LARGER_INTS(sums->most, distance);
            sums->least = SMALLER_INTS(sums->least, distance);
            sums->signs |= (ints)c[i] ^ (ints)r[i];
            sums->differ += SMALLER_WORDS((words)distance, (words){0} + 1);
        }
    }
    for (int i = 0; i < 2; i++) {
        floats e = c[i] - r[i], square = e * e;
        row[i] += square;
        if (by_column) squares[i] += square;
        sums->rr[i] += r[i] * r[i];
        sums->er[i] += e * r[i];
        sums->sum[i] += e;
        sums->largest = LARGER_INTS(sums->largest, (ints)square);
    }
}

TARGET INLINE float NAMED(lanes)(floats vector) {
    float sum = 0, lane[LANES];
    memcpy(lane, &vector, sizeof lane);
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < LANES; i++) sum += lane[i];
    return sum;
}

TARGET INLINE struct size NAMED(size)(enum type type, const char *data, int n) {
    floats sum[2] = {0};
    ints peak = {0};
    words set = {0};
    uint32_t bits = 0;
    float rest = 0, top = 0;
    int whole = n - n % STEP;
    for (int i = 0; i < whole; i += STEP) {
        const char *turn = data + size_bytes(type, i);
        floats loaded = NAMED(load)(turn), r[2] = {loaded};
        peak = NAMED(higher)(type, peak, loaded);
        set |= (words)loaded;
        if (type == BFLOAT16) NAMED(widen)(loaded, r);
        else {
            r[1] = NAMED(load)(turn + sizeof loaded);
            peak = NAMED(higher)(type, peak, r[1]);
            set |= (words)r[1];
        }
        sum[0] += r[0] * r[0];
        sum[1] += r[1] * r[1];
    }
    for (int i = whole; i < n; i++) {
        float value = load(type, data, i), magnitude = value < 0 ? -value : value;
        rest += value * value;
        bits |= bits_of(value);
        if (magnitude > top) top = magnitude;
    }
    float high = NAMED(highest)(type, peak), squared = NAMED(lanes)(sum[0] + sum[1]) + rest;
    return (struct size){squared, high > top ? high : top, bits | NAMED(set_bits)(type, set)};
}

TARGET INLINE struct totals NAMED(finish)(enum type type, floats ee,
                                          struct NAMED(sums) * sums) {
    struct totals totals = {
        .ee = NAMED(lanes)(ee),
        .rr = NAMED(lanes)(sums->rr[0] + sums->rr[1]),
        .er = NAMED(lanes)(sums->er[0] + sums->er[1]),
        .sum = NAMED(lanes)(sums->sum[0] + sums->sum[1]),
        .peak = NAMED(highest)(type, sums->peak),
        .reference_bits = NAMED(set_bits)(type, sums->expected),
        .candidate_bits = NAMED(set_bits)(type, sums->found),
    };
    int32_t largest[LANES], most[LANES], least[LANES], signs[LANES], top = 0;
    uint32_t differ[LANES];
    uint16_t ulp[STEP], apart[STEP];
    memcpy(largest, &sums->largest, sizeof largest);
    memcpy(most, &sums->most, sizeof most);
    memcpy(least, &sums->least, sizeof least);
    memcpy(signs, &sums->signs, sizeof signs);
    memcpy(differ, &sums->differ, sizeof differ);
    memcpy(ulp, &sums->ulp, sizeof ulp);
    memcpy(apart, &sums->apart, sizeof apart);
    for (int i = 0; i < LANES; i++) {
        if (largest[i] > top) top = largest[i];
        if (type == BFLOAT16) continue;
        if ((uint32_t)most[i] > totals.ulp) totals.ulp = (uint32_t)most[i];
        if (-(uint32_t)least[i] > totals.ulp) totals.ulp = -(uint32_t)least[i];
        totals.unequal += differ[i];
        totals.signs |= signs[i] < 0;
    }
    for (int i = 0; type == BFLOAT16 && i < STEP; i++) {
        if (ulp[i] > totals.ulp) totals.ulp = ulp[i];
        totals.unequal += apart[i];
    }
    totals.largest = from_bits((uint32_t)top);
    return totals;
}

/* Whole rows, or a part of one; `ahead` bytes further on is what will be read next. */
TARGET INLINE struct totals NAMED(add_run)(enum type type, int by_column, struct matrix run,
                                           int64_t ahead, floats *squares, floats *rows) {
    struct NAMED(sums) sums = {0};
    floats ee = {0};
    int columns = (int)run.columns, whole = columns - columns % STEP;
    for (int row = 0; row < run.rows; row++) {
        const char *r = row_of(type, run.reference, run, row);
        const char *c = row_of(type, run.candidate, run, row);
        floats errors[2] = {0};
        for (int i = 0; i < whole; i += STEP) {
            int64_t at = size_bytes(type, i);
            NAMED(prefetch)(type, r + at + ahead);
            NAMED(prefetch)(type, c + at + ahead);
            NAMED(add)(type, by_column, r + at, c + at, squares + i / LANES, errors, &sums);
        }
        if (whole < columns) {
            char filled[2][8 * LANES] = {{0}}; /* with zeros, which add nothing */
            size_t rest = (size_t)size_bytes(type, columns - whole);
            memcpy(filled[0], r + size_bytes(type, whole), rest);
            memcpy(filled[1], c + size_bytes(type, whole), rest);
            NAMED(add)(type, by_column, filled[0], filled[1], squares + whole / LANES, errors,
                       &sums);
        }
        rows[row] = errors[0] + errors[1];
        ee += rows[row];
    }
    struct totals totals = NAMED(finish)(type, ee, &sums);
    /* The candidate's squares follow from the others, unless next to nothing is left of them. */
    totals.cc = totals.rr + 2 * (double)totals.er + totals.ee;
    if (totals.cc <= totals.rr / 16)
        totals.cc = NAMED(size)(type, run.candidate, (int)(run.rows * run.columns)).squared;
    return totals;
}

/* Neighbours are added until there is one lane to a row. */
TARGET INLINE void NAMED(add_rows)(const floats *rows, int count, double *sums) {
    float lane[PANEL_ROWS * LANES], half[PANEL_ROWS * LANES / 2];
    memcpy(lane, rows, sizeof *rows * (size_t)count);
    for (int left = count * LANES / 2; left >= count; left /= 2) {
        for (int i = 0; i < left; i++) half[i] = lane[2 * i] + lane[2 * i + 1];
        memcpy(lane, half, sizeof *half * (size_t)left);
    }
    for (int row = 0; row < count; row++) sums[row] += lane[row];
}

TARGET INLINE void NAMED(add_columns)(enum type type, const floats *squares, int columns,
                                      double *sums) {
    float lane[STEP];
    for (int start = 0; start < columns; start += STEP, squares += 2) {
        int count = columns - start < STEP ? columns - start : STEP;
        memcpy(lane, squares, sizeof lane);
        if (type == FLOAT32)
            for (int i = 0; i < count; i++) sums[start + i] += lane[i];
        else
            for (int i = 0; i < count; i++) sums[start + i] += lane[i / 2 + (i % 2 ? LANES : 0)];
    }
}

/* 0 if a run cannot be trusted, and then nothing was added. */
TARGET INLINE int NAMED(add_panel)(enum type type, int by_column, struct matrix panel,
                                   struct slices slices, struct sums *sums) {
    floats squares[BLOCK / LANES], rows[PANEL_ROWS] = {{0}};
    struct sums grown = *sums;
    int differs = 0, several = panel.columns == panel.stride && panel.columns < BLOCK;
    int64_t at_once = several ? BLOCK / panel.columns : 1;
    if (by_column) memset(squares, 0, sizeof squares);
    for (int64_t row = 0; row < panel.rows; row += at_once) {
        struct matrix run = part(type, panel, row, at_once, 0, panel.columns);
        size_t bytes = (size_t)size_bytes(type, run.rows * run.columns);
        int same = memcmp(run.reference, run.candidate, bytes) == 0;
        /* What is read next: more rows, or the columns beside this panel. */
        int more = several || row + 1 < panel.rows;
        int64_t ahead =
            size_bytes(type, more ? at_once * panel.stride : panel.columns - row * panel.stride);
        int n = (int)(run.rows * run.columns);
        int done;
        if (same) done = add_same_bits(type, run, NAMED(size)(type, run.reference, n), &grown);
        else {
            struct totals totals =
                NAMED(add_run)(type, by_column, run, ahead, squares, rows + row);
            done = add_totals(type, run, totals, &grown);
        }
        if (!done) return 0;
        differs |= !same;
    }
    *sums = grown;
    if (!differs) return 1;
    if (slices.rows) NAMED(add_rows)(rows, (int)panel.rows, slices.rows);
    if (by_column) NAMED(add_columns)(type, squares, (int)panel.columns, slices.columns);
    return 1;
}

TARGET INLINE void NAMED(add_matrix)(enum type type, int by_column, struct matrix whole,
                                     struct slices slices, struct sums *sums) {
    for (int64_t row = 0; row < whole.rows; row += PANEL_ROWS)
        for (int64_t column = 0; column < whole.columns; column += BLOCK) {
            struct matrix panel = part(type, whole, row, PANEL_ROWS, column, BLOCK);
            struct slices here = {
                slices.rows ? slices.rows + row : 0,
                by_column ? slices.columns + column : 0,
            };
            if (!NAMED(add_panel)(type, by_column, panel, here, sums))
                add_panel_carefully(type, panel, here, sums);
        }
}

TARGET static void NAMED(add_any)(ARGUMENTS) {
    if (type == BFLOAT16 && slices.columns)
        NAMED(add_matrix)(BFLOAT16, 1, whole, slices, sums);
    else if (type == BFLOAT16) NAMED(add_matrix)(BFLOAT16, 0, whole, slices, sums);
    else if (slices.columns) NAMED(add_matrix)(FLOAT32, 1, whole, slices, sums);
    else NAMED(add_matrix)(FLOAT32, 0, whole, slices, sums);
}

#undef NAMED
#undef TARGET
#undef LANES
#undef BLOCK
#undef INTRINSIC
#undef STEP
#undef EXTREME
#undef floats
#undef ints
#undef words
#undef shorts
#undef halves
