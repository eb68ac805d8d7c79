// The functions that the engine calls. One call computes all layers of a step in threads of its own, so
// nothing is done per layer outside. Threads share a product by its columns and attention by context, head,
// rows and piece of the context. No sum's order depends on any of that: a row's result is the same to the
// last bit in whatever step, beside whatever rows and with however many threads it is computed. Activations
// are float32; weights, keys and values bfloat16 or float32.
#include "draw.h"
#include "layers.h"

extern "C" {

int32_t native_lanes() {
    return LANES;
}

// Floats that `native_extend` needs to work in, 64 bytes aligned.
int64_t native_room(const Model* model, const Step* step) {
    return Room(*model, *step, Cut(*model, *step)).all();
}

void native_extend(const Model* model, const Step* step, float* room) {
    const Cut cut(*model, *step);
    if (model->narrow) {
        Layers<Bf16> layers(*model, *step, cut, room);
#pragma omp parallel num_threads(step->threads)
        layers.run();
    } else {
        Layers<float> layers(*model, *step, cut, room);
#pragma omp parallel num_threads(step->threads)
        layers.run();
    }
}

// scores [rows][columns] of states [rows][depth], which are normed into room [rows][padded(depth)].
void native_scores(const Weight* head, const float* norm_weight, float eps, int32_t narrow,
                   const float* states, int64_t rows, float* scores, float* room, int32_t threads) {
    const int64_t stride = padded(head->depth);
#pragma omp parallel num_threads(threads)
    {
        norm_rows(states, head->depth, norm_weight, eps, rows, room, stride);
        if (narrow)
            product<Bf16>(*head, room, stride, rows, Into{scores, head->columns, *head});
        else
            product<float>(*head, room, stride, rows, Into{scores, head->columns, *head});
    }
}

// Ids that a draw can choose: see `contenders`.
int64_t native_contenders(const double* scores, int64_t count, const uint32_t* counter, uint32_t key_0,
                          uint32_t key_1, float* keys, int64_t* ids) {
    return contenders(scores, count, counter, key_0, key_1, keys, ids);
}
}
