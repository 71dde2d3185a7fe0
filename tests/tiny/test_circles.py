"""No two files import each other, by whatever way: not within a function either, nor for their types alone."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import burnish

ROOT = Path(burnish.__file__).parent


def modules(root: Path) -> dict[str, Path]:
    """Of a package, by their names."""
    found = {}
    for path in root.rglob("*.py"):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, known: dict[str, Path]) -> set[str]:
    """The files of the package that one imports. Names of a package that are no files are those of its `__init__`."""
    found = set()
    for node in ast.walk(ast.parse(known[name].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            whole = [f"{node.module}.{each.name}" for each in node.names]
            found |= {full if full in known else node.module for full in whole}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return (found & known.keys()) - {name}


def circle(root: Path) -> list[str]:
    known = modules(root)
    try:
        TopologicalSorter({name: imports(name, known) for name in known}).prepare()
    except CycleError as error:
        return [str(name) for name in error.args[1]]
    return []


def test_no_circle_between_files() -> None:
    assert circle(ROOT) == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("def f():\n    from package.b import g\n    return g\n")
    (package / "b.py").write_text("from package import a\ng = a\n")
    assert sorted(set(circle(package))) == ["package.a", "package.b"]
