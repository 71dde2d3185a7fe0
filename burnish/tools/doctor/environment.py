"""Environment variables that affect burnish: which are set, and which are harmful."""

from __future__ import annotations

from collections.abc import Mapping

from burnish.options import VARIABLES, nearest, variables_set
from burnish.tools.doctor.line import Line, Status

_OFF = ("0", "", "false", "no", "off")

# variable -> what it does to a user who left it set
_HARMFUL: Mapping[str, tuple[Status, str]] = {
    "TORCHDYNAMO_DISABLE": ("fail", "torch captures nothing: every model runs in eager"),
    "TORCH_COMPILE_DISABLE": ("fail", "torch captures nothing: every model runs in eager"),
    "BURNISH_FUEL": ("warn", "optimisations stop after so many steps: meant for finding a miscompile"),
    "BURNISH_VERIFY": ("warn", "every stage checks its output: compiling is slower"),
    "BURNISH_DUMP": ("warn", "every stage writes its output to disk: compiling is slower"),
    "TRITON_INTERPRET": ("warn", "Triton kernels run in Python: some thousand times slower"),
    "CUDA_LAUNCH_BLOCKING": ("warn", "every kernel is waited for: slower, and nothing overlaps"),
}


def check_environment(variables: Mapping[str, str] | None = None) -> list[Line]:
    """One line for what is set, and one for each variable that does harm or that nobody reads."""
    found = variables_set() if variables is None else variables
    shown = ", ".join(f"{name}={value}" for name, value in found.items())
    lines = [Line("environment", "ok", shown or "no variable that changes anything is set")]
    for name, value in found.items():
        if name in _HARMFUL and value.strip().lower() not in _OFF:
            status, harm = _HARMFUL[name]
            lines.append(Line("environment", status, f"{name}={value}: {harm}", "unset it", f"unset {name}"))
        elif name.startswith("BURNISH_") and name not in VARIABLES:
            guess = nearest(name, [each.lower() for each in VARIABLES])
            advice = f"did you mean {guess.upper()}?" if guess else f"known: {', '.join(VARIABLES)}"
            lines.append(
                Line("environment", "warn", f"{name} is not a variable that burnish reads", advice, f"unset {name}")
            )
    return lines
