// Vectors of the processor that this is compiled for, and the few functions over them that the rest needs.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

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
constexpr int UNIT_DEPTH = 32;    // panels of bfloat16 are filled up to a multiple of it, with zeros

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

static inline void narrow(Floats value, float* to) {
    store(to, value);
}
static inline void narrow(Floats value, Bf16* to) {
#if defined(__AVX512F__) && defined(__AVX512BF16__)
    const __m256bh halves = _mm512_cvtneps_pbh((__m512)value);  // which is 0 for denormal ones
    std::memcpy(to, &halves, sizeof halves);
#else
    for (int lane = 0; lane < LANES; lane++) narrow(value[lane], to + lane);
#endif
}

// What a word of a panel holds of one column: a float32, or bfloat16 of two neighbouring places of the depth.
template <class W>
constexpr int EACH = sizeof(float) / sizeof(W);

// The first of them, and the second.
static inline Floats lower(Words words, const float*) {
    return (Floats)words;
}
static inline Floats lower(Words words, const Bf16*) {
    return (Floats)(words << 16);
}
static inline Floats upper(Words words) {
    return (Floats)(words & 0xffff0000u);
}

// The depth that a panel has room for, and rows that are to be multiplied on a matrix unit.
template <class W>
constexpr int64_t whole(int64_t depth) {
    constexpr int64_t UNIT = sizeof(W) == sizeof(Bf16) ? UNIT_DEPTH : 1;
    return (depth + UNIT - 1) / UNIT * UNIT;
}

// e^x for x <= 0, to 2 ulp: 2^n * p(r), |r| <= ln(2) / 2, p the Taylor polynomial of degree 7. 0 below -60:
// beside 1 that does not show, and products with what is smaller would be denormal, which takes a processor a
// hundred times as long.
constexpr float LEAST_EXPONENT = -60.0f;
static inline Floats exponential(Floats x) {
    const Floats bounded = larger(x, all(LEAST_EXPONENT));
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
    return x < LEAST_EXPONENT ? Floats{} : x != x ? x : result;
}

// x / (1 + e^-x), computed from e^-|x| so that nothing overflows.
static inline Floats silu(Floats x) {
    const Floats small = exponential(x < 0 ? x : -x);
    return x < 0 ? x * small / (1.0f + small) : x / (1.0f + small);
}

// The same, for results that are multiplied as `A`.
template <class A>
inline Floats exponential_for(Floats x) {
    return exponential(x);
}
template <class A>
inline Floats silu_for(Floats x) {
    return silu(x);
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

template <int... PLACE>
static inline void interleave(const Words& a, const Words& b, Bf16* to,
                              std::integer_sequence<int, PLACE...>) {
    typedef Bf16 Halves __attribute__((vector_size(LANES * 4)));
    constexpr int FROM_B = 2 * LANES;
    const Halves first = (Halves)a, second = (Halves)b;
    const Halves low = __builtin_shufflevector(first, second, (PLACE / 2 + PLACE % 2 * FROM_B)...);
    const Halves high = __builtin_shufflevector(first, second, (PLACE / 2 + LANES + PLACE % 2 * FROM_B)...);
    std::memcpy(to, &low, sizeof low);
    std::memcpy(to + FROM_B, &high, sizeof high);
}

// 2 LANES halves of each, one of a before one of b.
static inline void interleave(const Words& a, const Words& b, Bf16* to) {
    interleave(a, b, to, std::make_integer_sequence<int, 2 * LANES>{});
}
