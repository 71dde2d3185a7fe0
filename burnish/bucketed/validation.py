"""A proof is tested once on real numbers: the traced graph, run in eager on a call's inputs and on the same inputs,
padded. The results must be equal but for rounding, as the referee understands it (`burnish/trust/referee.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from burnish.bucketed.form import Padded
from burnish.bucketed.results import Cut, ResultsDiffer, padded, sliced
from burnish.trust.referee import InFloat64, judge

_MORE = 3  # elements of padding


def padding_error(
    run: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    paddings: Sequence[Padded],
    sizes: Sequence[Sequence[Any]],
    cuts: Sequence[Cut],
) -> str:
    """What is wrong with a padded run; empty if nothing is. `sizes[k]` has the expressions of input k's sizes."""
    larger = _enlarged(inputs, paddings, sizes)
    try:
        ours = [sliced(x, *cut).detach() for x, cut in zip(run(*larger), cuts, strict=True)]
    except ResultsDiffer:
        return "a result has another size"
    except Exception as error:
        return f"it raises {type(error).__name__}: {error}"

    def exact(wide: InFloat64) -> list[torch.Tensor]:
        args = wide.arguments(inputs, frozenset())
        with torch.no_grad(), wide:
            return [x.detach() for x in run(*args)]

    opinion = judge(
        ours,
        [x.detach() for x in outputs],
        exact=exact,
        eager_again=lambda: [x.detach() for x in run(*inputs)],
        returned=len(ours),
    )
    return opinion.wrong


def _enlarged(inputs: Sequence[Any], paddings: Sequence[Padded], sizes: Sequence[Sequence[Any]]) -> list[Any]:
    values: dict[Any, int] = {}
    for x, expressions in zip(inputs, sizes, strict=True):
        if isinstance(x, torch.Tensor):
            values |= {e: size for e, size in zip(expressions, x.shape, strict=True) if not isinstance(e, int)}
    by_position = {each.position: each for each in paddings}
    for position, each in by_position.items():
        values |= {sizes[position][d]: inputs[position].shape[d] + _MORE for d in each.dims}

    def number(expression: Any, otherwise: int) -> int:
        if isinstance(expression, int) or not expression.free_symbols <= values.keys():
            return otherwise
        return int(expression.xreplace(values))

    larger: list[Any] = []
    for position, (x, expressions) in enumerate(zip(inputs, sizes, strict=True)):
        if position in by_position:
            wanted = [number(e, size) for e, size in zip(expressions, x.shape, strict=True)]
            larger.append(padded(x, wanted, by_position[position].fill))
        else:
            larger.append(number(expressions[0], x) if type(x) is int and expressions else x)
    return larger
