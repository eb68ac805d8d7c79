"""Draws by Gumbel noise from Philox4x32-10: argmax of logit / T + gumbel(u). Knows nothing of launch
settings.

The integers are those of `shared.kernels.philox`; the noise is float32 with a relative error near 1e-7.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def philox_word(seed, position, choice, tokens):
    """First output word of Philox4x32-10: key (seed), counter (position, choice, token id). uint32."""
    seed = seed.to(tl.uint64, bitcast=True)
    position = position.to(tl.uint64, bitcast=True)
    zero = (tokens * 0).to(tl.uint32)
    word, _, _, _ = tl.philox_impl(
        zero + (position & 0xFFFFFFFF).to(tl.uint32),
        zero + (position >> 32).to(tl.uint32),
        zero + choice.to(tl.uint32),
        tokens.to(tl.uint32),
        zero + (seed & 0xFFFFFFFF).to(tl.uint32),
        zero + (seed >> 32).to(tl.uint32),
    )
    return word


@triton.jit
def gumbel(word):
    """-log(-log(u)), u = (word + 0.5) / 2^32, float32.

    Above one half, u would lose the digits that decide a draw; there 1 - u is exact, and
    -log(1 - v) = 2 atanh(v / (2 - v)) needs no logarithm near 1.
    """
    UNIT: tl.constexpr = 2.3283064365386963e-10
    inverted = word ^ 0xFFFFFFFF
    high = word >= 0x80000000
    low_u = (tl.where(high, inverted, word).to(tl.float32) + 0.5) * UNIT
    s = low_u / (2.0 - low_u)
    s2 = s * s
    series = 1.0 / 17.0
    series = series * s2 + 1.0 / 15.0
    series = series * s2 + 1.0 / 13.0
    series = series * s2 + 1.0 / 11.0
    series = series * s2 + 1.0 / 9.0
    series = series * s2 + 1.0 / 7.0
    series = series * s2 + 1.0 / 5.0
    series = series * s2 + 1.0 / 3.0
    series = series * s2 + 1.0
    exponential = tl.where(high, 2.0 * s * series, -tl.log(low_u))
    return -tl.log(exponential)


@triton.jit(do_not_specialize=["temperature_ptr", "seeds_ptr", "positions_ptr", "choices_ptr", "vocabulary"])
def draw_chunk(
    logits_ptr,
    temperature_ptr,
    seeds_ptr,
    positions_ptr,
    choices_ptr,
    best_score_ptr,
    best_id_ptr,
    stride_logits_row: tl.int64,
    vocabulary: tl.int32,
    BLOCK_VOCABULARY: tl.constexpr,
):
    """The best score of one chunk of one row, and the lowest id that has it. Grid: (rows, chunks).

    An id with logit -inf is not kept. A chunk with nothing kept gives (-inf, -1), one with a NaN (+inf, -1).
    """
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    tokens = chunk * BLOCK_VOCABULARY + tl.arange(0, BLOCK_VOCABULARY)
    ptrs = logits_ptr + row * stride_logits_row + tokens
    logits = tl.load(ptrs, mask=tokens < vocabulary, other=float("-inf")).to(tl.float32)
    temperature = tl.load(temperature_ptr + row)
    scores = logits
    if temperature > 0.0:
        seed = tl.load(seeds_ptr + row)
        word = philox_word(seed, tl.load(positions_ptr + row), tl.load(choices_ptr + row), tokens)
        scores = logits / temperature + gumbel(word)
    best = tl.max(scores, 0)
    token = tl.min(tl.where(scores == best, tokens, 0x7FFFFFFF), 0)
    bad = tl.max((logits != logits).to(tl.int32), 0)
    token = tl.where((bad != 0) | (best == float("-inf")), -1, token)
    best = tl.where(bad != 0, float("inf"), best)
    cell = row * tl.num_programs(1) + chunk
    tl.store(best_score_ptr + cell, best)
    tl.store(best_id_ptr + cell, token.to(tl.int64))
