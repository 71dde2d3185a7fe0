"""The Triton that a few kernels print to, kept under golden/ so that a change in code generation shows in review.

`python -m tests.codegen.triton.regenerate` writes the files anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from burnish.codegen.triton.launch import Launch
from burnish.codegen.triton.loop import print_loop
from burnish.codegen.triton.module import generate, module_text
from burnish.ir.body import Loop, Store
from burnish.ir.dtypes import DType
from burnish.ir.expr import sym
from burnish.schedule.kernels import ContractGroup, LoopGroup, LoopKernel, Schedule
from tests.codegen.triton import loops
from tests.codegen.triton.test_products import attend, product_of, schedule_of

GOLDEN = Path(__file__).parent / "golden"

CASES = {
    "map": loops.biased(512, 768, DType.bf16),
    "tile": loops.transposed(4, 100, 768),
    "row": loops.softmax(512, 768, DType.bf16),
    "long_row": loops.softmax(sym("s0", 2), sym("s1", 2)),
    "sweep": loops.row_and_column_sums(512, 16, 768, DType.bf16),
    "columns": loops.column_sums(8192, 768, DType.bf16),
    "argmax": loops.reduced("argmax", 8, 1000, DType.f32, DType.i64),
}

SCHEDULES: dict[str, Callable[[], Schedule]] = {
    "product": lambda: schedule_of(product_of(128, 768, 768)),
    "siblings": lambda: schedule_of(ContractGroup(tuple(product_of(100, n, 96, name=n_) for n_, n in _WIDTHS))),
    "strip": lambda: schedule_of(product_of(8, 512, 1024)),
    "attention": lambda: attend(1, 6, 2, 40, 40, 24, True, None),
    "group": lambda: Schedule({}, [LoopGroup((LoopKernel(_into_w(loops.biased(4, 64))), LoopKernel(_SOFTMAX)))], []),
}
_WIDTHS = (("a", 96), ("b", 17))
_SOFTMAX = loops.softmax(4, 64)


def _into_w(loop: Loop) -> Loop:
    """Into a buffer of its own, as what is side by side has it."""
    return replace(loop, body=tuple(replace(i, buffer="w") if isinstance(i, Store) else i for i in loop.body))


def sources() -> dict[str, str]:
    """File name -> text."""
    made: dict[str, str] = {}
    for name, loop in CASES.items():
        kernel = print_loop(loop)
        made[f"{name}.py.txt"] = _head(kernel.launch) + module_text({name: kernel.text})
    for name, make in SCHEDULES.items():
        unit = generate(make())
        assert not unit.refused
        made[f"{name}.py.txt"] = _head(unit.calls[0].launch) + unit.text
    return made


def _head(launch: Launch) -> str:
    return f"# {launch.programs} programs, {dict(launch.blocks)}, {launch.warps} warps\n"


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    wanted = sources()
    for path in GOLDEN.iterdir():
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (GOLDEN / name).write_text(text)
    print(f"{len(wanted)} sources written to {GOLDEN}")


if __name__ == "__main__":
    main()
