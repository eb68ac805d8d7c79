// Which ids a seeded draw can choose: noise in float32 for all of them, so that the exact one is made for
// few.
#pragma once
#include <algorithm>
#include <cmath>
#include "lanes.h"

// First output word of Philox4x32-10 (Salmon et al., SC 2011) for counters that differ in their last word.
static inline Words philox(const uint32_t* counter, Words last, uint32_t key_0, uint32_t key_1) {
    typedef uint64_t Longs __attribute__((vector_size(LANES * 8)));
    Words words[4] = {Words{} + counter[0], Words{} + counter[1], Words{} + counter[2], last};
    for (int round = 0; round < 10; round++) {
        const Longs a = __builtin_convertvector(words[0], Longs) * uint64_t(0xD2511F53);
        const Longs b = __builtin_convertvector(words[2], Longs) * uint64_t(0xCD9E8D57);
        words[0] = __builtin_convertvector(b >> 32, Words) ^ words[1] ^ key_0;
        words[2] = __builtin_convertvector(a >> 32, Words) ^ words[3] ^ key_1;
        words[1] = __builtin_convertvector(b, Words);
        words[3] = __builtin_convertvector(a, Words);
        key_0 += 0x9E3779B9;
        key_1 += 0xBB67AE85;
    }
    return words[0];
}

// log(x) for normal x > 0: e * ln(2) + 2 atanh((m - 1) / (m + 1)), m from sqrt(1/2) to sqrt(2).
static inline Floats logarithm(Floats x) {
    const Ints exponent = ((Ints)x - 0x3f3504f3) >> 23;
    const Floats m = (Floats)((Ints)x - (exponent << 23));
    const Floats s = (m - 1.0f) / (m + 1.0f), s2 = s * s;
    const Floats series = 1.0f + s2 * (1.0f / 3 + s2 * (1.0f / 5 + s2 * (1.0f / 7 + s2 * (1.0f / 9))));
    return __builtin_convertvector(exponent, Floats) * 0.693147181f + 2.0f * s * series;
}

// -log(-log(u)), u = (word + 0.5) / 2^32, to 1e-6. Above one half -log(u) is taken from 1 - u, which is exact
// there.
static inline Floats gumbel(Words word) {
    const Words inverted = ~word;
    const auto high = word >= 0x80000000u;
    const Floats u =
        (__builtin_convertvector(high ? inverted : word, Floats) + 0.5f) * 2.3283064365386963e-10f;
    const Floats s = u / (2.0f - u), s2 = s * s;  // -log(1 - u) = 2 atanh(u / (2 - u))
    Floats series = all(1.0f / 17);
    for (int term = 15; term > 0; term -= 2) series = series * s2 + 1.0f / term;
    const Floats near_one = 2.0f * s * series;
    return -logarithm((Ints)high ? near_one : -logarithm(u));
}

constexpr float DRAW_MARGIN = 1e-3f;  // a hundred times what float32 can be wrong by for scores below 100

// Ids whose key, scores + noise, is within the margin of the best one; returns how many. `keys`: room for as
// many.
static inline int64_t contenders(const double* scores, int64_t count, const uint32_t* counter, uint32_t key_0,
                                 uint32_t key_1, float* keys, int64_t* ids) {
    typedef double Doubles __attribute__((vector_size(LANES * 8)));
    Words last;
    for (int lane = 0; lane < LANES; lane++) last[lane] = uint32_t(lane);
    Floats bests = all(-INFINITY), sizes = all(0.0f);
    for (int64_t at = 0; at < count; at += LANES, last += LANES) {
        double some[LANES];
        const int64_t width = std::min<int64_t>(LANES, count - at);
        if (width < LANES) std::fill(std::copy(scores + at, scores + count, some), some + LANES, -INFINITY);
        const Floats score =
            __builtin_convertvector(load<Doubles>(width < LANES ? some : scores + at), Floats);
        const Floats key = score + gumbel(philox(counter, last, key_0, key_1));
        std::memcpy(keys + at, &key, width * sizeof(float));
        bests = larger(bests, key);
        sizes = larger(sizes, score > -INFINITY ? larger(score, -score) : Floats{});
    }
    const float best = ::largest(bests), largest_score = ::largest(sizes);
    if (best == -INFINITY) return 0;
    const float edge = best - DRAW_MARGIN * std::max(1.0f, largest_score / 100);
    int64_t found = 0;
    for (int64_t at = 0; at < count; at++)
        if (keys[at] >= edge) ids[found++] = at;
    return found;
}
