// Products of rows with a weight that lies in panels: for each 2 LANES columns all their depth, in the order
// it is read. A panel's row is 2 LANES words: one place of the depth in float32, two in bfloat16.
#pragma once
#include "lanes.h"

// Memory that is soon needed: `step` bytes further are asked for with each row of a panel, so that it comes
// meanwhile.
struct Ahead {
    const char* from;
    int64_t step;
};

// Further on in the weight itself.
template <class W>
static inline Ahead beyond(const W* panel) {
    constexpr int64_t BYTES = 2048;
    return {reinterpret_cast<const char*>(panel) + BYTES, PANEL * sizeof(W)};
}

// rows[M][depth] times one panel; `put(row, first, second)` takes each result. Each sum runs over the depth in
// order, whatever M is: a row's result does not depend on the rows beside it.
template <class W, int M, class Put>
static void tile_into(const float* rows, int64_t stride, const W* panel, int64_t depth, Ahead ahead,
                      Put&& put) {
    Floats sums[M][2] = {};  // of this function, so that they stay in registers
    const auto add = [&](int64_t at, Floats first, Floats second) __attribute__((always_inline)) {
        __builtin_prefetch(ahead.from + at * ahead.step, 0, 2);
#pragma GCC unroll 12
        for (int row = 0; row < M; row++) {
            const Floats value = all(rows[row * stride + at]);
            sums[row][0] += value * first;
            sums[row][1] += value * second;
        }
    };
    const int64_t paired = depth / EACH<W> * EACH<W>;
    for (int64_t at = 0; at < paired; at += EACH<W>) {
        const Words first = load<Words>(panel + at * PANEL);
        const Words second = load<Words>(panel + at * PANEL + LANES * EACH<W>);
        add(at, lower(first, panel), lower(second, panel));
        if constexpr (EACH<W> > 1) add(at + 1, upper(first), upper(second));
    }
    if (paired < depth)
        add(paired, lower(load<Words>(panel + paired * PANEL), panel),
            lower(load<Words>(panel + paired * PANEL + LANES * EACH<W>), panel));
    for (int row = 0; row < M; row++) put(row, sums[row][0], sums[row][1]);
}

// As `tile_into`, for a height that is known at run time: from 1 to M.
template <class W, int M, class Put>
static inline void tile_of(int64_t height, const float* rows, int64_t stride, const W* panel, int64_t depth,
                           Ahead ahead, Put&& put) {
    if (height == M)
        tile_into<W, M>(rows, stride, panel, depth, ahead, put);
    else if constexpr (M > 1)
        tile_of<W, M - 1>(height, rows, stride, panel, depth, ahead, put);
}

// Rows in tiles of equal height times one panel; `put(row, first, second)` takes each result.
template <class W, class Put>
static inline void panel_product(const float* rows, int64_t count, int64_t stride, const W* panel,
                                 int64_t depth, Ahead ahead, Put&& put) {
    int64_t done = 0;
    for (int64_t tiles = (count + TILE_ROWS - 1) / TILE_ROWS; tiles > 0; tiles--) {
        const int64_t height = (count - done + tiles - 1) / tiles;
        const auto shifted = [&, done](int row, Floats a, Floats b) { put(done + row, a, b); };
        tile_of<W, TILE_ROWS>(height, rows + done * stride, stride, panel, depth, ahead, shifted);
        done += height;
    }
}

// The same to [count][distance], or onto what is there.
template <bool ONTO, class W>
static inline void panel_into(const float* rows, int64_t count, int64_t stride, const W* panel, int64_t depth,
                              Ahead ahead, float* to, int64_t distance) {
    panel_product(rows, count, stride, panel, depth, ahead, [&](int64_t row, Floats a, Floats b) {
        float* at = to + row * distance;
        store(at, ONTO ? load<Floats>(at) + a : a);
        store(at + LANES, ONTO ? load<Floats>(at + LANES) + b : b);
    });
}
