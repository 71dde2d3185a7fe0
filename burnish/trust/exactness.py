"""Which operations are exact, which round, and which mean something else in another type.

Two correct computations of a rounded result differ in its last bits, and a float64 run shows which is closer. An exact
result (a copy, a select, a comparison, a count) has one correct value in its type, so it is compared with eager's bit
by bit. Where an operation's meaning depends on its type (the next number after x; the bits of x), float64 would compute
something else and is not used.

Casts are exact: each has one result, of whichever width. (In a graph that rounds anyway, the referee still skips casts,
because a float64 run with a cast to a half type would lose its precision.) Operations that are not listed here are
assumed to round.
"""

from __future__ import annotations

ROUNDED, EQUAL, BITWISE = 0, 1, 2  # EQUAL: except for the sign of a zero, which differs between processors

_MOVES = """
    view reshape view_as reshape_as permute transpose t T mT swapaxes swapdims movedim moveaxis expand expand_as
    broadcast_to squeeze unsqueeze flatten unflatten ravel narrow select chunk split tensor_split unbind getitem
    contiguous clone detach alias data cat concat concatenate stack hstack vstack dstack flip fliplr flipud roll rot90
    tile repeat repeat_interleave index_select gather take take_along_dim embedding masked_fill masked_select where
    pad constant_pad_nd tril triu diagonal diag_embed unfold index_fill
    zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full
""".split()
_CASTS = "to float half bfloat16 double int long short char byte bool type type_as".split()
_BIT_BY_BIT = """
    abs absolute neg negative pos positive floor ceil trunc fix round eq ne lt le gt ge isnan isinf isfinite signbit
    isneginf isposinf copysign nextafter logical_and logical_or logical_xor logical_not any all not_ is_nonzero
""".split()
EXTREMES = "relu relu6 clamp clip clamp_min clamp_max hardtanh maximum minimum max min amax amin fmax fmin sign".split()
_POSITIONS = "argmax argmin nonzero count_nonzero bincount".split()

EXACT: dict[str, int] = {
    **dict.fromkeys((*_MOVES, *_CASTS, *_BIT_BY_BIT, *_POSITIONS), BITWISE),
    **dict.fromkeys(EXTREMES, EQUAL),
}

# Exact for integers, which wrap around; rounded for other types.
EXACT_IN_INTEGERS = frozenset(
    """
    add sub rsub mul multiply subtract floordiv floor_divide div mod remainder fmod pow square lshift rshift
    bitwise_left_shift bitwise_right_shift and_ or_ xor invert bitwise_and bitwise_or bitwise_xor bitwise_not sum prod
    cumsum cumprod dot matmul mm bmm mv arange gcd lcm
    """.split()
)

# The meaning of these operations depends on their type.
DEPENDS_ON_TYPE = frozenset("nextafter frexp nan_to_num spacing".split())
