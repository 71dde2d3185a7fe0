"""Generated kernels, compared to the letter: a refactoring of the printer changes none of them."""

from __future__ import annotations

import difflib

from tests.codegen.triton.regenerate import GOLDEN, sources


def test_kernels_are_as_recorded() -> None:
    wanted = {path.name: path.read_text() for path in GOLDEN.iterdir()}
    made = sources()
    assert set(made) == set(wanted)
    changed = [
        "\n".join(difflib.unified_diff(wanted[name].splitlines(), text.splitlines(), f"golden/{name}", "printed now"))
        for name, text in made.items()
        if text != wanted[name]
    ]
    assert not changed, (
        "\n".join(changed)
        + "\nIf this is what you meant: python -m tests.codegen.triton.regenerate, and review the diff."
    )
