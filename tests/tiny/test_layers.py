"""Rooms have an order, and no file imports from a room above its own: not within a function either, nor for types."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import burnish
from tests.tiny.test_circles import imports, modules

# From low to high. A room is what one line names: modules, or packages with all that is in them but what another line
# names (the longest name counts). docs/layout.md says what each room is for.
ROOMS: tuple[tuple[str, ...], ...] = (
    ("version", "errors"),
    ("torch_private", "ir", "device", "processor", "assumptions", "fuel"),
    # The compiler proper is below the settings and the log: what it makes of a graph depends on its arguments alone.
    ("lower",),
    ("passes",),
    ("schedule",),
    ("codegen",),
    # Frozen records that everything above reads. `record` holds every form of a compiled graph, and so is above them.
    (
        "options",
        "record",
        "shapes.record",
        "stats",
        "trust.faults",
        "trust.interval",
        "trust.jobs",
        "trust.record",
        "tuning.record",
    ),
    ("observe",),
    ("runtime",),
    ("tuning",),
    ("shapes",),
    ("pipeline",),
    ("trust",),
    ("capture",),
    ("bucketed",),
    ("handle",),
    ("identity",),
    ("api",),
    ("warmup",),
    ("packs",),
    ("",),  # the package's own front
    ("generation",),
    ("tools",),
    ("__main__",),
)

# What imports from above all the same, and why.
_FRONT = "a public name, which is loaded when it is first asked for"
ALLOWED = {
    ("burnish", "burnish.tools.bench"): _FRONT,
    ("burnish", "burnish.tools.explain"): _FRONT,
    ("burnish", "burnish.tools.verify"): _FRONT,
}


def place(name: str, package: str, rooms: Sequence[Sequence[str]]) -> tuple[str, int]:
    """The entry that a module falls under, and its room's number. The package itself has the entry ""."""
    inside = name.removeprefix(package).removeprefix(".")
    entries = {entry: n for n, room in enumerate(rooms) for entry in room}
    parts = inside.split(".")
    for length in range(len(parts), 0, -1):
        if (entry := ".".join(parts[:length])) in entries:
            return entry, entries[entry]
    raise LookupError(f"{name} is in no room: give it a line in ROOMS")


def upward(root: Path, rooms: Sequence[Sequence[str]]) -> set[tuple[str, str]]:
    """Each file that imports another from a room above its own, with that other one."""
    known = modules(root)
    level = {name: place(name, root.name, rooms)[1] for name in known}
    return {(name, other) for name in known for other in imports(name, known) if level[other] > level[name]}


def test_no_file_imports_from_a_room_above_its_own() -> None:
    assert upward(Path(burnish.__file__).parent, ROOMS) == ALLOWED.keys()


def test_every_line_names_something() -> None:
    root = Path(burnish.__file__).parent
    used = {place(name, root.name, ROOMS)[0] for name in modules(root)}
    assert used == {entry for room in ROOMS for entry in room}


def test_an_import_from_above_is_found(tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "high").mkdir(parents=True)
    for each in (package, package / "high"):
        (each / "__init__.py").write_text("")
    (package / "low.py").write_text("def f():\n    from package.high.inner import g\n    return g\n")
    (package / "typed.py").write_text(
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from package.high import inner\n"
    )
    (package / "high" / "inner.py").write_text("from package.high import record\ng = record\n")
    (package / "high" / "record.py").write_text("")
    rooms = (("low", "typed", "high.record"), ("high",), ("",))
    found = {("package.low", "package.high.inner"), ("package.typed", "package.high.inner")}
    assert upward(package, rooms) == found
    assert upward(package, (("",), ("high",), ("low", "typed", "high.record"))) == {
        ("package.high.inner", "package.high.record")
    }
