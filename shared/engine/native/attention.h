// Attention of new rows over the keys and values of one context, one key-value head at a time.
//
// Keys are taken KEYS at a time: they and their values become panels, so that scores and mixtures are the
// same products as those with weights; meanwhile the next ones are on their way from memory. Softmax is
// running (Milakov and Gimelshein, 2018), all sums are float32. A context is attended in pieces of PIECE
// positions, merged in order, always at the same places: so a row's result is the same to the last bit
// however the work is cut and whatever is beside it. On a matrix unit queries, and the weights of values, are
// rounded to bfloat16.
#pragma once
#include <algorithm>
#include <cmath>
#include "matrix_unit.h"

constexpr int KEYS = 64;
constexpr int MOST_ROWS = 96;  // query rows (new tokens times heads of a group) of one unit of work
constexpr int MOST_HEAD = 256;
constexpr int64_t PIECE = 512;  // positions
static_assert(KEYS % PANEL == 0 && PIECE % KEYS == 0 && MOST_ROWS % BLOCK_ROWS == 0);

// What rows have seen so far: sums of values, weighted relative to each row's highest score, and of the
// weights.
struct Seen {
    alignas(64) float mixed[MOST_ROWS * (MOST_HEAD + PANEL)];
    float highest[MOST_ROWS];
    float total[MOST_ROWS];
};

// What a thread works in. `A`: what rows are multiplied as, float or on a matrix unit Bf16.
template <class A>
struct Desk {
    alignas(64) A keys[KEYS * MOST_HEAD];
    alignas(64) A values[KEYS * (MOST_HEAD + PANEL)];
    alignas(64) A queries[MOST_ROWS * MOST_HEAD];
    alignas(64) float scores[MOST_ROWS * KEYS];
    Floats weights[MOST_ROWS];  // summed by lane
    Seen piece;
    Seen all;
};

// As many words of a row as there are, up to a vector; the rest 0.
template <class K>
static inline Words words(const K* from, int64_t left) {
    if (left >= int64_t(sizeof(Words) / sizeof(K))) return load<Words>(from);
    Words result{};
    std::memcpy(&result, from, left * sizeof(K));
    return result;
}

// Rows of a transposed square to a panel: one of float32 is a dimension, one of bfloat16 a pair of
// neighbouring ones.
static inline void spread(const Words& row, const float*, float* to) {
    std::memcpy(to, &row, sizeof row);
}
static inline void spread(const Words& row, const Bf16*, float* to) {
    store(to, (Floats)(row << 16));
    store(to + PANEL, (Floats)(row & 0xffff0000u));
}
static inline void spread(const Words& row, const Bf16*, Bf16* to) {
    std::memcpy(to, &row, sizeof row);
}

// [KEYS][head_dim], of which `count` are there, to panels [KEYS / PANEL][whole depth][PANEL]; the others'
// columns are 0.
template <class K, class A>
static inline void key_panels(const K* keys, int count, int head_dim, A* panels) {
    const int64_t depth = whole<A>(head_dim);
    for (int first = 0; first < KEYS; first += LANES) {
        A* to = panels + first / PANEL * PANEL * depth + first % PANEL * EACH<A>;
        for (int at = 0; at < head_dim; at += EACH<K> * LANES) {
            Words rows[LANES];
            const int width = std::min<int>(LANES, (depth - at) / EACH<K>);
            for (int key = 0; key < LANES; key++)
                rows[key] = first + key < count ? words(keys + (first + key) * head_dim + at, head_dim - at)
                                                : Words{};
            transpose(rows);
            for (int word = 0; word < width; word++)
                spread(rows[word], keys, to + (at + EACH<K> * word) * PANEL);
        }
    }
}

// The first `count` of [KEYS][head_dim] to panels [ceil(head_dim / PANEL)][KEYS][PANEL].
template <class K>
static inline void value_panels(const K* values, int count, int head_dim, float* panels) {
    for (int at = 0; at < head_dim; at += PANEL) {
        float* to = panels + int64_t(at) * KEYS;
        const int width = std::min(PANEL, head_dim - at);
        if (width < PANEL) std::fill(to, to + KEYS * PANEL, 0.0f);
        for (int key = 0; key < count; key++) {
            const K* from = values + int64_t(key) * head_dim + at;
            if (width == PANEL)
                for (int place = 0; place < PANEL; place++) to[key * PANEL + place] = wide(from[place]);
            else
                for (int place = 0; place < width; place++) to[key * PANEL + place] = wide(from[place]);
        }
    }
}

// The same in pairs of keys; what is missing is 0, up to a whole depth.
static inline void value_panels(const Bf16* values, int count, int head_dim, Bf16* panels) {
    for (int at = 0; at < head_dim; at += PANEL) {
        Bf16* to = panels + int64_t(at) * KEYS;
        for (int key = 0; key < whole<Bf16>(count); key += 2) {
            Words pair[2]{};  // neighbouring columns in a word
            for (int odd = 0; odd < 2; odd++)
                if (key + odd < count)
                    pair[odd] = words(values + int64_t(key + odd) * head_dim + at, head_dim - at);
            interleave(pair[0], pair[1], to + key * PANEL);
        }
    }
}

constexpr int LINE = 64;  // bytes of a cache line

// A piece of keys has as many bytes as its panels have rows, times LINE, if it is bfloat16: each row brings a
// line.
template <class K>
static inline Ahead next_piece(const K* piece, int64_t rows_before) {
    return {reinterpret_cast<const char*>(piece) + rows_before * LINE, LINE};
}

// One row's scores of KEYS keys to weights relative to the highest so far, in their place; a NaN stays one.
template <class A>
static inline void weigh(float* scores, float& highest, Floats& weights, float* mixed, int padded) {
    Floats best = load<Floats>(scores);
    for (int key = LANES; key < KEYS; key += LANES) best = larger(best, load<Floats>(scores + key));
    const float found = largest(best);
    if (found > highest) {  // what was summed before was relative to a lower one
        const float kept = std::exp(highest - found);
        weights *= kept;
        for (int place = 0; place < padded; place += LANES)
            store(mixed + place, load<Floats>(mixed + place) * kept);
        highest = found;
    }
    const float base = highest == -INFINITY ? 0.0f : highest;  // nothing seen so far
    Floats total = weights;
    for (int key = 0; key < KEYS; key += LANES) {
        const Floats weight = exponential_for<A>(load<Floats>(scores + key) - base);
        narrow(weight, reinterpret_cast<A*>(scores) + key);
        total += weight;
    }
    weights = total;
}

// Positions first .. last - 1 of a context, within one piece.
struct Span {
    int64_t first;
    int64_t last;
    int64_t window;  // how many positions up to its own a row sees
};

// Attends `rows` rows of desk.queries (scaled), row r at position start + r / group, to a span within a
// piece.
template <class K, class A>
static void attend(Desk<A>& desk, const K* keys, const K* values, int head_dim, int rows, int group,
                   int64_t start, Span span) {
    const int64_t depth = whole<A>(head_dim);
    const int padded = (head_dim + PANEL - 1) / PANEL * PANEL;
    Seen& piece = desk.piece;
    std::fill(piece.mixed, piece.mixed + rows * padded, 0.0f);
    std::fill(piece.highest, piece.highest + rows, -INFINITY);
    std::fill(desk.weights, desk.weights + rows, Floats{});
    for (int64_t at = span.first; at < span.last; at += KEYS) {
        const int count = int(std::min<int64_t>(KEYS, span.last - at));
        key_panels(keys + at * head_dim, count, head_dim, desk.keys);
        for (int panel = 0; panel * PANEL < count; panel++)
            panel_into<false>(desk.queries, rows, depth, desk.keys + panel * PANEL * depth, depth,
                              next_piece(keys + (at + KEYS) * head_dim, panel * head_dim),
                              desk.scores + panel * PANEL, KEYS);
        for (int row = 0; row < rows; row++) {
            const int64_t own = start + row / group;
            float* scores = desk.scores + row * KEYS;
            const int seen = int(std::clamp<int64_t>(own + 1 - at, 0, count));
            const int unseen = int(std::clamp<int64_t>(own + 1 - span.window - at, 0, seen));
            if (unseen > 0) std::fill(scores, scores + unseen, -INFINITY);
            if (seen < KEYS) std::fill(scores + seen, scores + KEYS, -INFINITY);
            weigh<A>(scores, piece.highest[row], desk.weights[row], piece.mixed + row * padded, padded);
        }
        value_panels(values + at * head_dim, count, head_dim, desk.values);
        for (int panel = 0; panel < padded; panel += PANEL)
            panel_into<true>(reinterpret_cast<const A*>(desk.scores), rows, KEYS * EACH<A>,
                             desk.values + int64_t(panel) * KEYS, whole<A>(count),
                             next_piece(values + (at + KEYS) * head_dim, panel / PANEL * KEYS),
                             piece.mixed + panel, padded);
    }
    for (int row = 0; row < rows; row++) piece.total[row] = sum(desk.weights[row]);
}

// What a row has seen of one piece, put to what it saw of those before.
inline void merge(const float* mixed, float highest, float total, int padded, float* all_mixed,
                  float& all_highest, float& all_total) {
    if (total == 0.0f) return;  // nothing
    const bool rises = highest > all_highest;
    const float before = rises ? std::exp(all_highest - highest) : 1.0f;
    const float share = rises || highest == all_highest ? 1.0f : std::exp(highest - all_highest);
    for (int at = 0; at < padded; at += LANES)
        store(all_mixed + at, load<Floats>(all_mixed + at) * before + load<Floats>(mixed + at) * share);
    all_total = all_total * before + total * share;
    if (rises) all_highest = highest;
}
