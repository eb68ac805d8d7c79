// Vectors of the processor that this is compiled for, and the few functions over them that the rest needs.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int TILE_ROWS = 12;  // 24 sums, 2 weights and a broadcast fit into 32 registers
#elif defined(__AVX2__)
constexpr int LANES = 8;
constexpr int TILE_ROWS = 6;  // 12 sums of 16 registers
#else
constexpr int LANES = 4;
constexpr int TILE_ROWS = 8;
#endif
constexpr int PANEL = 2 * LANES;  // columns of a weight that are computed together

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint16_t Bf16;

template <class V, class T>
static inline V load(const T* from) {
    V value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

static inline void store(float* to, Floats value) {
    std::memcpy(to, &value, sizeof value);
}

// A difference to 0 is the value, -0 too, so that nothing is computed; a sum with 0 would be.
static inline Floats all(float value) {
    return value - Floats{};
}

static inline Floats larger(Floats a, Floats b) {
    return a > b ? a : b;
}

// Each lane's neighbour at a distance of HALF, where halves change places.
template <int HALF, int... LANE>
static inline Floats swapped(Floats value, std::integer_sequence<int, LANE...>) {
    return __builtin_shufflevector(value, value, (LANE ^ HALF)...);
}

template <int HALF = LANES / 2>
static inline float sum(Floats value) {
    value += swapped<HALF>(value, std::make_integer_sequence<int, LANES>{});
    if constexpr (HALF > 1) return sum<HALF / 2>(value);
    return value[0];
}

template <int HALF = LANES / 2>
static inline float largest(Floats value) {
    value = larger(value, swapped<HALF>(value, std::make_integer_sequence<int, LANES>{}));
    if constexpr (HALF > 1) return largest<HALF / 2>(value);
    return value[0];
}

static inline float wide(Bf16 value) {
    const uint32_t bits = uint32_t(value) << 16;
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}
static inline float wide(float value) {
    return value;
}

static inline void narrow(float value, float* to) {
    *to = value;
}
static inline void narrow(float value, Bf16* to) {  // to the nearest, ties to even; NaN stays NaN
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    *to = value != value ? 0x7fc0 : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Two vectors from one row of a panel: 2 LANES columns.
static inline void columns(const float* row, Floats& first, Floats& second) {
    first = load<Floats>(row);
    second = load<Floats>(row + LANES);
}
static inline void columns(const Bf16* row, Floats& first, Floats& second) {
    const Words both =
        load<Words>(row);  // column i in the lower half of word i, column i + LANES in the upper
    first = (Floats)(both << 16);
    second = (Floats)(both & 0xffff0000u);
}

// e^x for x <= 0, to 2 ulp: 2^n * p(r), |r| <= ln(2) / 2, p the Taylor polynomial of degree 7. 0 below -60:
// beside 1 that does not show, and products with what is smaller would be denormal, which takes a processor a
// hundred times as long.
static inline Floats exponential(Floats x) {
    constexpr float LEAST = -60.0f;
    const Floats bounded = larger(x, all(LEAST));
    const Floats shifted = bounded * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer
    const Floats n = shifted - 12582912.0f;
    const Floats r = bounded - n * 0.693359375f + n * 2.12194440e-4f;  // ln(2) in two parts
    Floats p = all(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const Ints exponent = ((Ints)shifted - 0x4b400000 + 127) << 23;
    const Floats result = p * (Floats)exponent;
    return x < LEAST ? Floats{} : x != x ? x : result;
}

// x / (1 + e^-x), computed from e^-|x| so that nothing overflows.
static inline Floats silu(Floats x) {
    const Floats small = exponential(x < 0 ? x : -x);
    return x < 0 ? x * small / (1.0f + small) : x / (1.0f + small);
}

template <int STEP, int... LANE>
static inline void exchange(Words& a, Words& b, std::integer_sequence<int, LANE...>) {
    const Words low = __builtin_shufflevector(a, b, ((LANE & STEP) ? LANES + LANE - STEP : LANE)...);
    b = __builtin_shufflevector(a, b, ((LANE & STEP) ? LANES + LANE : LANE + STEP)...);
    a = low;
}

template <int STEP>
static inline void transpose_steps(Words (&rows)[LANES]) {
    for (int row = 0; row < LANES; row++)
        if (!(row & STEP))
            exchange<STEP>(rows[row], rows[row + STEP], std::make_integer_sequence<int, LANES>{});
    if constexpr (STEP > 1) transpose_steps<STEP / 2>(rows);
}

static inline void transpose(Words (&rows)[LANES]) {
    transpose_steps<LANES / 2>(rows);
}
