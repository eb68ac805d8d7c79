// What the caller hands over, how a step is cut into work, and the operations of a layer that are not
// attention.
#pragma once
#include <omp.h>
#include <cmath>
#include <vector>
#include "attention.h"

// A weight in panels [ceil(columns / PANEL)][whole depth][PANEL], zero beyond `columns` and `depth`; of
// bfloat16 two places of the depth are side by side in each column. A gated one has LANES columns of the gate
// and LANES of what it gates in each panel; its `columns` are those of the result.
struct Weight {
    const void* panels;
    const float* bias;  // in the order of the panels' columns, as many as they have; or null
    int64_t columns;
    int64_t depth;
    int64_t count;  // panels
};

struct Layer {
    const float* input_norm;
    Weight qkv;
    const float* q_norm;  // null where heads are not normed
    const float* k_norm;
    Weight output;
    const float* mlp_norm;
    Weight gate_up;
    Weight down;
    int64_t window;  // positions that a row sees, its own among them
};

struct Model {
    const Layer* layers;
    int64_t count;
    int64_t hidden;
    int64_t heads;
    int64_t kv_heads;
    int64_t head_dim;
    int64_t ffn;
    float eps;
    int32_t narrow;  // weights, keys and values are bfloat16, not float32
    int32_t matrix_unit;  // and so is what they are multiplied with, on a matrix unit
};

// One context's new tokens; distances in elements.
struct Part {
    void* keys;            // of the first layer and head: [capacity][head_dim]
    int64_t value_offset;  // from a key to its value
    int64_t layer_stride;
    int64_t head_stride;
    int64_t row;  // the first of its rows in the step
    int64_t rows;
    int64_t start;  // position of that row
};

struct Step {
    const Part* parts;
    int64_t count;
    int64_t rows;
    float* hidden;     // [rows][hidden]: embeddings before, states after
    const float* cos;  // [rows][head_dim]
    const float* sin;  // the same, negative for the first half of a head
    int32_t threads;
};

constexpr int64_t CACHED_BYTES = 1 << 20;  // so much of rows stays in a core's cache while weights pass

// From one row to the next: whole cache lines, and never a multiple of a page, so that rows lie in different
// cache sets.
template <class A = float>
inline int64_t padded(int64_t count) {
    constexpr int64_t OF_LINE = LINE / sizeof(A);
    return (count + OF_LINE - 1) / OF_LINE * OF_LINE + OF_LINE;
}

struct Block {  // rows of one part that are attended together
    int64_t part;
    int64_t first_row;
    int64_t rows;
    int64_t end;   // of what the last of them sees
    int64_t room;  // where what each piece gave waits, in floats; -1: one unit of work does all pieces
    int64_t pieces() const { return (end + PIECE - 1) / PIECE; }
};

struct Unit {  // of work: for each head, pieces first .. last - 1 of a block
    int64_t block;
    int64_t first;
    int64_t last;
};

// How attention of a step is cut: where there are few blocks for the threads, their pieces are shared as
// well.
class Cut {
  public:
    Cut(const Model& model, const Step& step) {
        const int64_t group = model.heads / model.kv_heads, most = std::max<int64_t>(1, MOST_ROWS / group);
        part_of.resize(step.rows);
        for (int64_t number = 0; number < step.count; number++) {
            const Part& part = step.parts[number];
            std::fill_n(part_of.begin() + part.row, part.rows, number);
            for (int64_t row = 0; row < part.rows; row += most) {
                const int64_t rows = std::min(most, part.rows - row);
                blocks.push_back({number, row, rows, part.start + row + rows, -1});
            }
        }
        const bool few = int64_t(blocks.size()) * model.kv_heads < 4 * step.threads;
        for (int64_t number = 0; number < int64_t(blocks.size()); number++) {
            Block& block = blocks[number];
            const int64_t pieces = block.pieces(), shared = few && pieces > 1;
            if (shared) {
                block.room = floats;
                floats += pieces * block.rows * model.heads * (width(model) + 2);
            }
            for (int64_t piece = 0; piece < pieces; piece += shared ? 1 : pieces)
                units.push_back({number, piece, shared ? piece + 1 : pieces});
        }
    }
    static int64_t width(const Model& model) { return (model.head_dim + PANEL - 1) / PANEL * PANEL; }

    std::vector<int64_t> part_of;  // of each row
    std::vector<Block> blocks;
    std::vector<Unit> units;
    int64_t floats = 0;  // of what waits
};

// Floats of each buffer of a step: whole cache lines, rows up to a multiple of a matrix unit's blocks, and
// enough for either type of what is multiplied.
struct Room {
    Room(const Model& model, const Step& step, const Cut& cut)
        : rows((step.rows + BLOCK_ROWS - 1) / BLOCK_ROWS * BLOCK_ROWS),
          normed(rows * padded(model.hidden)),
          qkv(padded(step.rows * (model.heads + 2 * model.kv_heads) * model.head_dim)),
          mixed(rows * padded(model.heads * model.head_dim)),
          inner(rows * padded(model.ffn)),
          partial(padded(cut.floats)),
          desks(step.threads * int64_t(sizeof(Desk<float>) / sizeof(float))) {}
    int64_t all() const { return normed + qkv + mixed + inner + partial + desks; }

    int64_t rows, normed, qkv, mixed, inner, partial, desks;
};

template <class A>
inline void norm(const float* from, int64_t count, const float* weight, float eps, A* to) {
    Floats squares{};
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES) squares += load<Floats>(from + at) * load<Floats>(from + at);
    float total = sum(squares);
    for (; at < count; at++) total += from[at] * from[at];
    const float scale = 1.0f / std::sqrt(total / float(count) + eps);
    for (at = 0; at < count; at++) narrow(from[at] * scale * weight[at], to + at);
}

// Zeros from `count` to the whole depth of each row.
template <class A>
inline void fill_up(A* rows, int64_t count, int64_t stride, int64_t number) {
    if (whole<A>(count) == count) return;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < number; row++)
        std::fill(rows + row * stride + count, rows + row * stride + whole<A>(count), A(0));
}

template <class A>
inline void norm_rows(const float* from, int64_t count, const float* weight, float eps, int64_t rows, A* to) {
    const int64_t stride = padded<A>(count);
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++) norm(from + row * count, count, weight, eps, to + row * stride);
}

inline void rotate(float* head, const float* cos, const float* sin, int64_t count) {
    const int64_t half = count / 2;
    for (int64_t at = 0; at < half; at++) {
        const float low = head[at], high = head[at + half];
        head[at] = low * cos[at] + high * sin[at];
        head[at + half] = high * cos[at + half] + low * sin[at + half];
    }
}

// Where a product's results go: two vectors of one row, from the panel's first column on.
struct Into {
    float* rows;
    int64_t stride;
    const Weight& weight;
    void operator()(int64_t row, int64_t panel, Floats first, Floats second) const {
        float* to = rows + row * stride + panel * PANEL;
        const int64_t left = weight.columns - panel * PANEL;
        if (weight.bias) {
            first += load<Floats>(weight.bias + panel * PANEL);
            second += load<Floats>(weight.bias + panel * PANEL + LANES);
        }
        if (left >= PANEL) {
            store(to, first);
            store(to + LANES, second);
        } else {
            for (int64_t lane = 0; lane < left; lane++)
                to[lane] = lane < LANES ? first[lane] : second[lane - LANES];
        }
    }
};

struct Onto {  // added to what is there
    float* rows;
    int64_t stride;
    const Weight& weight;
    void operator()(int64_t row, int64_t panel, Floats first, Floats second) const {
        alignas(64) float found[PANEL];
        Into{found, 0, {nullptr, weight.bias ? weight.bias + panel * PANEL : nullptr, PANEL, 0, 0}}(
            0, 0, first, second);
        float* to = rows + row * stride + panel * PANEL;
        const int64_t left = std::min<int64_t>(PANEL, weight.columns - panel * PANEL);
        for (int64_t lane = 0; lane < left; lane++) to[lane] += found[lane];
    }
};

template <class A>
struct Gated {  // silu(first) * second
    A* rows;
    int64_t stride;
    const Weight& weight;
    void operator()(int64_t row, int64_t panel, Floats first, Floats second) const {
        if (weight.bias) {
            first += load<Floats>(weight.bias + panel * PANEL);
            second += load<Floats>(weight.bias + panel * PANEL + LANES);
        }
        const Floats result = silu_for<A>(first) * second;
        A* to = rows + row * stride + panel * LANES;
        const int64_t left = weight.columns - panel * LANES;
        if (left >= LANES)
            narrow(result, to);
        else
            for (int64_t lane = 0; lane < left; lane++) narrow(result[lane], to + lane);
    }
};

// rows [count][padded depth] times a weight; each thread takes neighbouring panels, so that it reads one run
// of memory.
template <class W, class A, class Put>
void product(const Weight& weight, const A* rows, int64_t count, const Put& put) {
    const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    const int64_t first = weight.count * thread / threads, last = weight.count * (thread + 1) / threads;
    constexpr int64_t HEIGHT = sizeof(A) == sizeof(Bf16) ? BLOCK_ROWS : TILE_ROWS;
    const int64_t stride = padded<A>(weight.depth), length = whole<W>(weight.depth) * PANEL;
    const int64_t most = CACHED_BYTES / int64_t(sizeof(A)) / weight.depth;
    const int64_t block = std::max(HEIGHT, most / HEIGHT * HEIGHT);
    const W* panels = static_cast<const W*>(weight.panels);
    for (int64_t done = 0; done < count; done += block)
        for (int64_t panel = first; panel < last; panel++)
            panel_product(rows + done * stride, std::min(block, count - done), stride,
                          panels + panel * length, whole<A>(weight.depth), beyond(panels + panel * length),
                          [&](int64_t row, Floats a, Floats b) { put(done + row, panel, a, b); });
#pragma omp barrier
}
