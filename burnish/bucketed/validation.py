"""A proof is tested once on real numbers: the traced graph, run in eager on a call's inputs and on the same inputs,
padded. The results must be equal but for rounding, as the referee understands it (`burnish/trust/referee.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from burnish.bucketed.form import Padded
from burnish.bucketed.results import Cut, ResultsDiffer, padded, sliced
from burnish.trust.referee import InFloat64, judge

_MORE = 3  # elements of padding
Run = Callable[..., Any]


def padding_error(
    run: Run,
    inputs: Sequence[Any],
    paddings: Sequence[Padded],
    sizes: Sequence[Sequence[Any]],
    cuts: Callable[[Mapping[Any, int]], Sequence[Cut]],
) -> str:
    """What is wrong with a padded run; empty if nothing is. `sizes[k]` has the expressions of input k's sizes; `cuts`
    gives the sizes and strides of the results for the values of these.

    The inputs are padded. If the graph does not take larger ones (a table of positions has an end), they are shortened
    and padded to their own sizes."""
    for more, fewer in ((_MORE, 0), (0, 1)):
        shorter = _resized(inputs, paddings, sizes, -fewer)
        values = _values(shorter, sizes)
        larger = _resized(shorter, paddings, sizes, more + fewer)
        try:
            results = run(*larger)
        except Exception as error:
            problem = f"it raises {type(error).__name__}: {error}"
            continue
        return _difference(run, shorter, results, cuts(values))
    return problem


def _difference(run: Run, inputs: Sequence[Any], results: Sequence[Any], cuts: Sequence[Cut]) -> str:
    try:
        ours = [sliced(x, *cut).detach() for x, cut in zip(results, cuts, strict=True)]
    except ResultsDiffer:
        return "a result has another size"

    def exact(wide: InFloat64) -> list[torch.Tensor]:
        args = wide.arguments(inputs, frozenset())
        with torch.no_grad(), wide:
            return [x.detach() for x in run(*args)]

    def eager() -> list[torch.Tensor]:
        return [x.detach() for x in run(*inputs)]

    return judge(ours, eager(), exact=exact, eager_again=eager, returned=len(ours)).wrong


def _values(inputs: Sequence[Any], sizes: Sequence[Sequence[Any]]) -> dict[Any, int]:
    values: dict[Any, int] = {}
    for x, expressions in zip(inputs, sizes, strict=True):
        if isinstance(x, torch.Tensor):
            values |= {e: size for e, size in zip(expressions, x.shape, strict=True) if not isinstance(e, int)}
    return values


def _resized(inputs: Sequence[Any], paddings: Sequence[Padded], sizes: Sequence[Sequence[Any]], by: int) -> list[Any]:
    """The inputs with so many elements more, or fewer, in each dimension that is padded. Sizes stay above 1."""
    if by == 0:
        return list(inputs)
    values = _values(inputs, sizes)
    by_position = {each.position: each for each in paddings}
    for position, each in by_position.items():
        values |= {sizes[position][d]: max(2, inputs[position].shape[d] + by) for d in each.dims}

    def number(expression: Any, otherwise: int) -> int:
        if isinstance(expression, int) or not expression.free_symbols <= values.keys():
            return otherwise
        return int(expression.xreplace(values))

    made: list[Any] = []
    for position, (x, expressions) in enumerate(zip(inputs, sizes, strict=True)):
        if position in by_position:
            wanted = [number(e, size) for e, size in zip(expressions, x.shape, strict=True)]
            for d, size in enumerate(wanted):
                x = x.narrow(d, 0, min(size, x.shape[d]))
            made.append(padded(x.contiguous(), wanted, by_position[position].fill))
        else:
            made.append(number(expressions[0], x) if type(x) is int and expressions else x)
    return made
