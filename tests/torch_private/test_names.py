"""The tables of torch's private names: right for the torch that runs, and what a missing name does."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import burnish.torch_private
from burnish.torch_private import names, probe
from burnish.torch_private.names import PrivateName, PrivateNameMissing
from burnish.torch_private.versions import KNOWN, version_pair

PACKAGE = Path(burnish.torch_private.__file__).parent
TABLES = sorted(path.stem for path in PACKAGE.glob("*.py") if "\nNAMES = (" in path.read_text())


def test_the_running_torch_has_every_name_once_it_is_loaded() -> None:
    from burnish.torch_private.aot import aot_module_simplified
    from burnish.torch_private.dynamo import optimize

    assert callable(optimize) and callable(aot_module_simplified)
    assert [str(name) for name in probe.probe().missing] == []


def test_the_probe_loads_nothing_of_torch_and_finds_the_same() -> None:
    code = """
import sys, torch
before = set(sys.modules)
from burnish.torch_private.probe import probe
found = probe()
assert not found.missing, list(map(str, found.missing))
print(found, *(name for name in set(sys.modules) - before if name.startswith("torch")), sep="|")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(probe.probe())


def test_source_that_lacks_a_name_is_read_as_such() -> None:
    assert probe._is_in_source("torch._dynamo.guards", ["GuardBuilder"])
    assert probe._is_in_source("torch._dynamo.types", ["FrameAction"])  # imported, under another name
    assert not probe._is_in_source("torch._dynamo.guards", ["GuardBuilders"])
    assert probe._module_of("torch._dynamo.no_such_file.Name") == ("torch._dynamo", ["no_such_file", "Name"])


def test_every_name_says_what_it_is_for_and_what_is_done_without_it() -> None:
    for name in probe.NAMES:
        assert name.path.startswith("torch.") and name.used_for and name.fallback
        assert all(KNOWN[0] <= (version_pair(each) or (0, 0)) <= KNOWN[1] for each in name.seen_in)
        assert str(name).startswith(f"{name.path}: {name.used_for}")
    paths = [name.path for name in probe.NAMES]
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("table", TABLES)
def test_what_type_checkers_see_is_what_the_table_lists(table: str) -> None:
    module = importlib.import_module(f"burnish.torch_private.{table}")
    listed = {each.name: each.path for each in module.NAMES}
    seen = {alias: path for path, alias in _imported_for_types(PACKAGE / f"{table}.py")}
    assert seen.items() <= listed.items()
    assert len([each for each in module.NAMES if each.name in seen]) == len(seen) and module in probe._TABLES


def _imported_for_types(source: Path) -> list[tuple[str, str]]:
    blocks = [node for node in ast.parse(source.read_text()).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return [(f"{node.module}.{each.name}", each.asname or each.name) for node in imports for each in node.names]


def test_a_missing_name_is_something_that_says_so_when_it_is_used() -> None:
    gone = PrivateName("torch._dynamo.guards.NoSuchBuilder", "a test", fallback="nothing is done")
    stand_in = gone.found_or_stand_in()

    class Derived(stand_in):  # type: ignore[misc, valid-type]
        pass

    assert not isinstance(1, stand_in) and not hasattr(stand_in, "create") and issubclass(Derived, stand_in)
    for use in (lambda: stand_in(1), lambda: stand_in.create, lambda: Derived(), gone.found):
        with pytest.raises(PrivateNameMissing, match="torch has no torch._dynamo.guards.NoSuchBuilder"):
            use()


def test_a_missing_name_that_has_a_replacement_is_that() -> None:
    gone = PrivateName("torch._C._no_such_function", "a test", instead=len)
    assert gone.found_or_stand_in() is len


def test_a_table_has_no_other_names() -> None:
    with pytest.raises(ImportError, match="GuardBuilders"):
        from burnish.torch_private.guards import GuardBuilders  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(ModuleNotFoundError):
        names.look_up("torch.no_such_module")
