// The layers of a Llama-family model over the rows of one step, in the threads of one parallel region.
#pragma once
#include <vector>
#include "attention.h"
#include "model.h"

// The work of one step. All threads call `run`; each method ends with all of them behind it. `W`: what weights,
// keys and values are; `A`: what they are multiplied with.
template <class W, class A>
class Layers {
  public:
    Layers(const Model& model, const Step& step, const Cut& cut, float* room)
        : model_(model),
          step_(step),
          cut_(cut),
          group_(model.heads / model.kv_heads),
          wide_(model.heads + 2 * model.kv_heads) {
        const Room sizes(model, step, cut);
        const auto take = [&](int64_t floats) { return std::exchange(room, room + floats); };
        normed_ = reinterpret_cast<A*>(take(sizes.normed));
        qkv_ = take(sizes.qkv);
        mixed_ = reinterpret_cast<A*>(take(sizes.mixed));
        inner_ = reinterpret_cast<A*>(take(sizes.inner));
        partial_ = take(sizes.partial);
        desks_ = reinterpret_cast<Desk<A>*>(take(sizes.desks));
    }

    void run() {
        const int64_t hidden = model_.hidden, qkv = wide_ * model_.head_dim,
                      queries = model_.heads * model_.head_dim;
        fill_up(normed_, hidden, padded<A>(hidden), step_.rows);
        fill_up(mixed_, queries, padded<A>(queries), step_.rows);
        fill_up(inner_, model_.ffn, padded<A>(model_.ffn), step_.rows);
        for (int64_t number = 0; number < model_.count; number++) {
            const Layer& layer = model_.layers[number];
            norm_rows(step_.hidden, hidden, layer.input_norm, model_.eps, step_.rows, normed_);
            product<W>(layer.qkv, normed_, step_.rows, Into{qkv_, qkv, layer.qkv});
            keep(layer, number);
            mix(layer, number);
            product<W>(layer.output, mixed_, step_.rows, Onto{step_.hidden, hidden, layer.output});
            norm_rows(step_.hidden, hidden, layer.mlp_norm, model_.eps, step_.rows, normed_);
            product<W>(layer.gate_up, normed_, step_.rows,
                       Gated<A>{inner_, padded<A>(model_.ffn), layer.gate_up});
            product<W>(layer.down, inner_, step_.rows, Onto{step_.hidden, hidden, layer.down});
        }
    }

  private:
    // Norms and rotates queries and keys, and puts keys and values where the context has its place for them.
    void keep(const Layer& layer, int64_t number) {
        const int64_t head_dim = model_.head_dim;
#pragma omp for schedule(static)
        for (int64_t row = 0; row < step_.rows; row++) {
            const Part& part = step_.parts[cut_.part_of[row]];
            float* heads = qkv_ + row * wide_ * head_dim;
            for (int64_t head = 0; head < model_.heads + model_.kv_heads; head++) {
                const float* weight = head < model_.heads ? layer.q_norm : layer.k_norm;
                float* state = heads + head * head_dim;
                if (weight) norm(state, head_dim, weight, model_.eps, state);
                rotate(state, step_.cos + row * head_dim, step_.sin + row * head_dim, head_dim);
            }
            const float* key = heads + model_.heads * head_dim;
            W* to = static_cast<W*>(part.keys) + number * part.layer_stride +
                    (part.start + row - part.row) * head_dim;
            for (int64_t head = 0; head < model_.kv_heads; head++, to += part.head_stride, key += head_dim)
                for (int64_t at = 0; at < head_dim; at++) {
                    narrow(key[at], to + at);
                    narrow(key[at + model_.kv_heads * head_dim], to + part.value_offset + at);
                }
        }
    }

    void mix(const Layer& layer, int64_t number) {
        const int64_t units = int64_t(cut_.units.size()) * model_.kv_heads;
#pragma omp for schedule(dynamic)
        for (int64_t at = 0; at < units; at++)
            attend_unit(layer, number, cut_.units[at / model_.kv_heads], at % model_.kv_heads);
        if (cut_.floats == 0) return;
        const int64_t blocks = int64_t(cut_.blocks.size()) * model_.kv_heads;
#pragma omp for schedule(dynamic)
        for (int64_t at = 0; at < blocks; at++) {
            const Block& block = cut_.blocks[at / model_.kv_heads];
            if (block.room >= 0) gather(block, at % model_.kv_heads);
        }
    }

    void attend_unit(const Layer& layer, int64_t number, const Unit& unit, int64_t head) {
        const Block& block = cut_.blocks[unit.block];
        const Part& part = step_.parts[block.part];
        const int64_t head_dim = model_.head_dim, start = part.start + block.first_row,
                      rows = block.rows * group_;
        Desk<A>& desk = desks_[omp_get_thread_num()];
        const float scale = 1.0f / std::sqrt(float(head_dim));
        for (int64_t row = 0; row < block.rows; row++) {
            const float* query =
                qkv_ + ((part.row + block.first_row + row) * wide_ + head * group_) * head_dim;
            for (int64_t of = 0; of < group_; of++, query += head_dim)
                put_query(query, scale, desk.queries + (row * group_ + of) * whole<A>(head_dim));
        }
        const W* keys =
            static_cast<const W*>(part.keys) + number * part.layer_stride + head * part.head_stride;
        const int64_t seen_from = std::max<int64_t>(0, start + 1 - layer.window) / KEYS * KEYS;
        clear(desk.all, rows);
        for (int64_t piece = unit.first; piece < unit.last; piece++) {
            const Span span{std::max(piece * PIECE, seen_from), std::min((piece + 1) * PIECE, block.end),
                            layer.window};
            if (span.first < span.last)
                attend(desk, keys, keys + part.value_offset, head_dim, rows, group_, start, span);
            else
                clear(desk.piece, rows);
            if (block.room >= 0)
                keep_piece(block, piece, head, desk.piece);
            else
                add(desk.all, desk.piece.mixed, desk.piece.highest, desk.piece.total, rows);
        }
        if (block.room < 0) put(block, head, desk.all);
    }

    void put_query(const float* query, float scale, A* to) const {
        for (int64_t at = 0; at < model_.head_dim; at++) narrow(query[at] * scale, to + at);
        std::fill(to + model_.head_dim, to + whole<A>(model_.head_dim), A(0));
    }

    void gather(const Block& block, int64_t head) {
        const int64_t rows = block.rows * group_;
        Seen& all = desks_[omp_get_thread_num()].all;
        clear(all, rows);
        for (int64_t piece = 0; piece < block.pieces(); piece++) {
            const float* from = kept(block, piece, head);
            add(all, from + 2 * rows, from, from + rows, rows);
        }
        put(block, head, all);
    }

    void clear(Seen& seen, int64_t rows) const {
        std::fill(seen.mixed, seen.mixed + rows * Cut::width(model_), 0.0f);
        std::fill(seen.highest, seen.highest + rows, -INFINITY);
        std::fill(seen.total, seen.total + rows, 0.0f);
    }

    void add(Seen& all, const float* mixed, const float* highest, const float* total, int64_t rows) const {
        const int64_t width = Cut::width(model_);
        for (int64_t row = 0; row < rows; row++)
            merge(mixed + row * width, highest[row], total[row], width, all.mixed + row * width,
                  all.highest[row], all.total[row]);
    }

    // [highest of each row][total of each row][mixture of each row]
    float* kept(const Block& block, int64_t piece, int64_t head) const {
        return partial_ + block.room +
               (piece * model_.kv_heads + head) * block.rows * group_ * (Cut::width(model_) + 2);
    }

    void keep_piece(const Block& block, int64_t piece, int64_t head, const Seen& seen) const {
        const int64_t rows = block.rows * group_;
        float* to = kept(block, piece, head);
        std::copy(seen.highest, seen.highest + rows, to);
        std::copy(seen.total, seen.total + rows, to + rows);
        std::copy(seen.mixed, seen.mixed + rows * Cut::width(model_), to + 2 * rows);
    }

    void put(const Block& block, int64_t head, const Seen& seen) const {
        const int64_t first = step_.parts[block.part].row + block.first_row;
        for (int64_t row = 0; row < block.rows * group_; row++) {
            A* to = mixed_ + (first + row / group_) * padded<A>(model_.heads * model_.head_dim) +
                    (head * group_ + row % group_) * model_.head_dim;
            const float* from = seen.mixed + row * Cut::width(model_);
            for (int64_t at = 0; at < model_.head_dim; at++) narrow(from[at] / seen.total[row], to + at);
        }
    }

    const Model& model_;
    const Step& step_;
    const Cut& cut_;
    int64_t group_;
    int64_t wide_;  // heads of a fused row
    A* normed_;
    float* qkv_;
    A* mixed_;
    A* inner_;
    float* partial_;
    Desk<A>* desks_;
};
