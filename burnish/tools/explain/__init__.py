"""`burnish explain`: what compiling did with a model, what it costs, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burnish.tools.explain.result import Explanation
    from burnish.tools.workloads import Inputs


def explain(
    model: Callable[..., Any],
    inputs: Inputs,
    *,
    dynamic: bool | None = None,
    mode: str | None = None,
    train: bool = False,
    more_inputs: Sequence[Inputs] = (),
) -> Explanation:
    """Compile `model`, call it, and say what was done with it; `print` the result.

    Graph breaks and recompiles with their line, their measured cost and what to write instead; calls left to ATen;
    fusions made and refused; bytes moved; every kernel's time and bandwidth. `more_inputs` are calls that it also
    gets in real use, to see what they recompile. With `train=True` a call ends with the backward pass of its result.
    """
    from burnish.tools.explain.session import ExplainSettings, run_explanation
    from burnish.tools.targets import Target

    name = type(model).__name__ if hasattr(model, "parameters") else getattr(model, "__name__", "the model")
    given = inputs if isinstance(inputs, dict) else tuple(inputs)
    target = Target(name, model, given, "train" if train else "inference")
    return run_explanation(target, ExplainSettings(dynamic=dynamic, mode=mode, more_inputs=tuple(more_inputs)))
