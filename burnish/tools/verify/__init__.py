"""`burnish verify`: is compiled code right, and if not, what made it wrong?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burnish.options import Options
    from burnish.tools.verify.result import VerifyResult
    from burnish.tools.workloads import Inputs


def verify(
    model: Callable[..., Any],
    inputs: Inputs,
    *,
    gradients: bool = True,
    sets: Sequence[str] = ("given", "random", "special", "batch"),
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Options | None = None,
    bisect: bool = True,
    repro: str | Path | None = None,
) -> VerifyResult:
    """Compile `model` and compare it with eager on `inputs` (a tuple, or a dict of keyword arguments).

    Outputs, changed state and gradients are judged against float64 beside eager's own error. `result.ok` is the
    answer and `print(result)` the table. Where something is wrong, `result.culprit` names the stage, the optimisation
    and the kernel, and a file that shows it is written to `repro` (burnish-repro.py). The model is left as it was.
    """
    from burnish.tools.verify.session import PHASES, VerifySettings, run_verification

    plan = VerifySettings(
        phases=PHASES if gradients else ("inference",),
        sets=tuple(sets),
        dynamic=dynamic,
        mode=mode,
        options=options,
        bisect=bisect,
        repro=None if repro is None else Path(repro),
    )
    return run_verification(model, inputs if isinstance(inputs, dict) else tuple(inputs), plan)
