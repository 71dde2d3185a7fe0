"""The Triton that a few kernels print to, kept under golden/ so that a change in code generation shows in review.

`python -m tests.triton.regenerate` writes the files anew.
"""

from __future__ import annotations

from pathlib import Path

from burnish.codegen.triton import module_text
from burnish.codegen.triton_loop import print_loop
from burnish.ir.dtypes import DType
from burnish.ir.expr import sym
from tests.triton import loops

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


def sources() -> dict[str, str]:
    """File name -> text."""
    made: dict[str, str] = {}
    for name, loop in CASES.items():
        kernel = print_loop(loop)
        launches = [f"# {x.programs} programs, {dict(x.blocks)}, {x.warps} warps\n" for x in kernel.launches]
        made[f"{name}.py.txt"] = "".join(launches) + module_text({name: kernel.text})
    return made


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
