"""Generated sources, compared to the letter: a refactoring of the printers changes none of them."""

from __future__ import annotations

import difflib

from tests.codegen.c.regenerate import GOLDEN, sources


def test_sources_are_as_recorded() -> None:
    wanted = {path.name: path.read_text() for path in GOLDEN.glob("*.c")}
    made = sources()
    assert set(made) == set(wanted)
    changed = [
        "".join(
            difflib.unified_diff(
                wanted[name].splitlines(True), text.splitlines(True), f"golden/{name}", "printed now", n=2
            )
        )
        for name, text in made.items()
        if text != wanted[name]
    ]
    assert not changed, (
        "".join(changed) + "\nIf this is what you meant: python -m tests.codegen.c.regenerate, and review the diff."
    )


def test_sources_do_not_depend_on_what_was_printed_before() -> None:
    assert sources() == sources()
