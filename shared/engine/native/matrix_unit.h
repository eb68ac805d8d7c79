// Products on the matrix unit of some x86 processors (Intel AMX), and what is computed to their precision. One
// instruction multiplies 16 rows by 32 of their depth with as much of the depth by 16 columns, all bfloat16,
// and adds that to float32. Of each 32 the even and the odd places are summed apart, in order, then both are
// added: a row's result does not depend on the rows beside it.
#pragma once
#include "product.h"

#if defined(__linux__) && defined(__AVX512F__) && defined(__AMX_TILE__) && defined(__AMX_BF16__)
#define HAS_MATRIX_UNIT
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

// What a thread has to be while it multiplies rows of a type.
template <class A>
struct Prepared {
    Prepared() {}
};

constexpr int UNIT_ROWS = 16;
constexpr int BLOCK_ROWS = 2 * UNIT_ROWS;  // with a panel's columns 4 sums, 2 of rows, 2 of the panel: all tiles

#ifdef HAS_MATRIX_UNIT

// Whether this process may use it; asks the kernel, whose answer is for good and for all threads.
inline bool matrix_unit_allowed() {
    constexpr unsigned BF16 = 1u << 22, TILE = 1u << 24;
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & BF16) || !(d & TILE)) return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

// Compilers do not know that what was stored is read by tiles: it is, after this.
static inline void seen_by_tiles(const void* stored) {
    asm volatile("" ::"r"(stored) : "memory");
}

template <>
struct Prepared<Bf16> {  // all tiles of 16 rows of 64 bytes
    Prepared() {
        struct alignas(64) {
            uint8_t palette, first, none[14];
            uint16_t bytes[16];
            uint8_t rows[16];
        } config{};
        config.palette = 1;
        for (int tile = 0; tile < 8; tile++) {
            config.bytes[tile] = 64;
            config.rows[tile] = UNIT_ROWS;
        }
        seen_by_tiles(&config);
        _tile_loadconfig(&config);
    }
    ~Prepared() { _tile_release(); }  // nothing is to be saved when threads take turns
    Prepared(const Prepared&) = delete;
    Prepared& operator=(const Prepared&) = delete;
};

// HIGH * UNIT_ROWS rows times one panel, to sums [rows][distance], or onto what is there.
template <int HIGH, bool ONTO>
static inline void block_product(const Bf16* rows, int64_t stride, const Bf16* panel, int64_t depth,
                                 Ahead ahead, float* sums, int64_t distance) {
    constexpr int PAIR = 2 * PANEL * sizeof(Bf16);
    float* lower = sums + UNIT_ROWS * distance;
    const int64_t between = distance * sizeof(float);
    seen_by_tiles(rows);
    if constexpr (ONTO) {
        _tile_loadd(0, sums, between);
        _tile_loadd(1, sums + LANES, between);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    if constexpr (HIGH > 1 && ONTO) {
        _tile_loadd(2, lower, between);
        _tile_loadd(3, lower + LANES, between);
    } else if constexpr (HIGH > 1) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t at = 0; at < depth; at += UNIT_DEPTH) {
        if (ahead.step)
            for (int64_t row = at; row < at + UNIT_DEPTH; row++)
                __builtin_prefetch(ahead.from + row * ahead.step, 0, 2);
        _tile_loadd(4, panel + at * PANEL, PAIR);
        _tile_loadd(5, panel + at * PANEL + PANEL, PAIR);
        _tile_loadd(6, rows + at, stride * sizeof(Bf16));
        _tile_dpbf16ps(0, 6, 4);
        _tile_dpbf16ps(1, 6, 5);
        if constexpr (HIGH > 1) {
            _tile_loadd(7, rows + UNIT_ROWS * stride + at, stride * sizeof(Bf16));
            _tile_dpbf16ps(2, 7, 4);
            _tile_dpbf16ps(3, 7, 5);
        }
    }
    _tile_stored(0, sums, between);
    _tile_stored(1, sums + LANES, between);
    if constexpr (HIGH > 1) {
        _tile_stored(2, lower, between);
        _tile_stored(3, lower + LANES, between);
    }
}

// As in `product.h`, of bfloat16 rows. Rows and results need memory up to a multiple of BLOCK_ROWS.
template <bool ONTO>
static inline void panel_into(const Bf16* rows, int64_t count, int64_t stride, const Bf16* panel,
                              int64_t depth, Ahead ahead, float* to, int64_t distance) {
    for (int64_t done = 0; done < count; done += BLOCK_ROWS) {
        const auto multiply = count - done > UNIT_ROWS ? block_product<2, ONTO> : block_product<1, ONTO>;
        multiply(rows + done * stride, stride, panel, depth, ahead, to + done * distance, distance);
        ahead = {};  // all of it was asked for
    }
}

template <class Put>
static inline void panel_product(const Bf16* rows, int64_t count, int64_t stride, const Bf16* panel,
                                 int64_t depth, Ahead ahead, Put&& put) {
    alignas(64) float sums[BLOCK_ROWS * PANEL];
    for (int64_t done = 0; done < count; done += BLOCK_ROWS) {
        const int64_t height = count - done < BLOCK_ROWS ? count - done : BLOCK_ROWS;
        panel_into<false>(rows + done * stride, height, stride, panel, depth, ahead, sums, PANEL);
        for (int64_t row = 0; row < height; row++)
            put(done + row, load<Floats>(sums + row * PANEL), load<Floats>(sums + row * PANEL + LANES));
        ahead = {};
    }
}

// To 2e-7: 2^floor(t) * p(t - floor(t)); p: minimax polynomial of 2^r on [0, 1] with p(0) = 1.
template <>
inline Floats exponential_for<Bf16>(Floats x) {
    constexpr int FLOOR = 1;
    const __m512 power = (__m512)(x * 1.44269504f);
    const Floats r = (Floats)_mm512_reduce_ps(power, FLOOR);
    Floats p = r * 0.00186713f + 0.00901703f;
    p = p * r + 0.05579991f;
    p = p * r + 0.24016444f;
    p = p * r + 0.6931513f;
    p = p * r + 1.0f;
    const __mmask16 kept = _mm512_cmp_ps_mask((__m512)x, (__m512)all(LEAST_EXPONENT), _CMP_NLT_UQ);
    return (Floats)_mm512_maskz_scalef_ps(kept, (__m512)p, power);
}

template <>
inline Floats silu_for<Bf16>(Floats x) {
    return x / (1.0f + exponential_for<Bf16>(-x));
}

#else

inline bool matrix_unit_allowed() {
    return false;
}

#endif
