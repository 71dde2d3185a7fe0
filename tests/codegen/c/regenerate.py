"""The C that a few kernels print to, kept under golden/ so that a change in code generation shows in review.

`python -m tests.codegen.c.regenerate` writes the files anew.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from burnish.codegen.c.unit import generate, print_kernel
from burnish.schedule.kernels import LoopKernel
from tests.codegen.c import loops
from tests.programs import capture, schedules

GOLDEN = Path(__file__).parent / "golden"

CASES = (
    loops.elementwise, loops.broadcast, loops.any_size, loops.guarded, loops.gathered, loops.softmax, loops.layer_norm,
    loops.several_axes, loops.column_softmax, lambda: loops.half(loops.BF16), lambda: loops.arg_extremes(loops.F32),
    lambda: loops.everything(loops.F32, 100_000), lambda: loops.scan("sum", loops.F32),
    lambda: loops.scatter("add", loops.F32, rows=True), lambda: loops.wrapping(loops.I8),
)  # fmt: skip


def _linear_gelu(m: int, k: int, n: int) -> str:
    inputs = (torch.zeros(m, k), torch.zeros(n, k), torch.zeros(n))
    (got,) = capture(lambda x, w, b: F.gelu(F.linear(x, w, b)), *inputs)
    return generate(schedules(got.captured)[1]).text


def sources() -> dict[str, str]:
    """File name -> text."""
    made: dict[str, str] = {}
    for make in CASES:
        case = make()
        made[f"{case.name}.c"] = print_kernel(LoopKernel(case.loop), {}).text.replace("@", case.name) + "\n"
    made["unit_small_product.c"] = _linear_gelu(4, 8, 16)
    made["unit_library_product.c"] = _linear_gelu(64, 128, 256)
    return made


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    wanted = sources()
    for path in GOLDEN.glob("*.c"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (GOLDEN / name).write_text(text)
    print(f"{len(wanted)} sources written to {GOLDEN}")


if __name__ == "__main__":
    main()
