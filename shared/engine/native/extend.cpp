// The functions that the engine calls. One call computes all layers of a step in threads of its own, so
// nothing is done per layer outside. Threads share a product by its columns and attention by context, head,
// rows and piece of the context. No sum's order depends on any of that: a row's result is the same to the
// last bit in whatever step, beside whatever rows and with however many threads it is computed. Activations
// are float32; weights, keys and values bfloat16 or float32. On a matrix unit activations are rounded to
// bfloat16 where they are multiplied, for one row as for many.
#include "draw.h"
#include "layers.h"

template <class W, class A>
static void extend(const Model& model, const Step& step, float* room) {
    const Cut cut(model, step);
    Layers<W, A> layers(model, step, cut, room);
#pragma omp parallel num_threads(step.threads)
    {
        const Prepared<A> thread;
        layers.run();
    }
}

template <class W, class A>
static void score(const Weight& head, const float* norm_weight, float eps, const float* states, int64_t rows,
                  float* scores, float* room, int32_t threads) {
    A* normed = reinterpret_cast<A*>(room);
#pragma omp parallel num_threads(threads)
    {
        const Prepared<A> thread;
        fill_up(normed, head.depth, padded<A>(head.depth), rows);
        norm_rows(states, head.depth, norm_weight, eps, rows, normed);
        product<W>(head, normed, rows, Into{scores, head.columns, head});
    }
}

extern "C" {

int32_t native_lanes() {
    return LANES;
}

// Whether this process may compute on a matrix unit.
int32_t native_matrix_unit() {
    return matrix_unit_allowed();
}

// Floats that `native_extend` needs to work in, 64 bytes aligned.
int64_t native_room(const Model* model, const Step* step) {
    return Room(*model, *step, Cut(*model, *step)).all();
}

void native_extend(const Model* model, const Step* step, float* room) {
#ifdef HAS_MATRIX_UNIT
    if (model->matrix_unit) return extend<Bf16, Bf16>(*model, *step, room);
#endif
    model->narrow ? extend<Bf16, float>(*model, *step, room) : extend<float, float>(*model, *step, room);
}

// scores [rows][columns] of states [rows][depth], which are normed into room: rows up to a multiple of
// BLOCK_ROWS, of padded(depth) floats.
void native_scores(const Model* model, const Weight* head, const float* norm_weight, const float* states,
                   int64_t rows, float* scores, float* room, int32_t threads) {
#ifdef HAS_MATRIX_UNIT
    if (model->matrix_unit)
        return score<Bf16, Bf16>(*head, norm_weight, model->eps, states, rows, scores, room, threads);
#endif
    const auto with = model->narrow ? score<Bf16, float> : score<float, float>;
    with(*head, norm_weight, model->eps, states, rows, scores, room, threads);
}

// Ids that a draw can choose: see `contenders`.
int64_t native_contenders(const double* scores, int64_t count, const uint32_t* counter, uint32_t key_0,
                          uint32_t key_1, float* keys, int64_t* ids) {
    return contenders(scores, count, counter, key_0, key_1, keys, ids);
}
}
