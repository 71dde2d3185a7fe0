"""Nothing but burnish/torch_private says a private name of torch, and what that package says is in its tables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import burnish
from burnish.torch_private import probe, replaced

BURNISH = Path(burnish.__file__).parent
ROOM = BURNISH / "torch_private"
FILES = sorted(BURNISH.rglob("*.py"))
PRIVATE = re.compile(r"\._(?!_)\w")  # in a dotted path
DOTTED = re.compile(r"\w+(\.\w+)+")

# Private attributes that may be read of objects: those of torch are in a table, these are of others.
TABLES = [(table, Path(table.__file__).read_text()) for table in probe._TABLES if table is not replaced]
READ_IN_PLACE = [name for table, text in TABLES for name in table.NAMES if f" as {name.name}\n" not in text]
ATTRIBUTES = {name.torch_name for name in READ_IN_PLACE if name.torch_name.startswith("_")}
OF_OTHERS = {
    "_fields": "a named tuple",
    "_replace": "a named tuple",
    "_handle": "a library of ctypes",
    "_name": "a library of ctypes; and of torch, in a table",
    "_getframe": "sys",
    "_exit": "os",
    "_register_atexit": "threading",
    "_at_fork_reinit": "a lock of Python's",
    "_SubParsersAction": "argparse",
    "_actions": "argparse",
    "_init_handles": "a kernel of Triton's",
    "_eos_token_tensor": "transformers",
    "_get_logits_processor": "transformers",
    "_prepare_generation_config": "transformers",
    "_optimize_model_for_decode": "transformers",
    "_checkpoint_context_fn": "a key in a graph's meta",
}


def test_the_room_is_not_empty() -> None:
    assert len(FILES) > 100 and len(ATTRIBUTES) > 20 and ROOM / "names.py" in FILES


def test_no_other_file_says_a_private_name_of_torch() -> None:
    said = {path: _said(ast.parse(path.read_text())) for path in FILES if ROOM not in path.parents}
    found = {str(path.relative_to(BURNISH)): names for path, names in said.items() if names}
    assert found == {}, "import them from burnish.torch_private, and list them there"


def test_the_room_says_only_what_its_tables_list() -> None:
    listed = {name.path for name in probe.NAMES} | {
        "torch._functorch._aot_autograd.utils.make_boxed_func",  # makes an object that a probe looks at
        "torch._functorch",  # where a class is from
        "torch._subclasses.fake_tensor",  # a logger's name
        "torch._dynamo",  # modules that without_dynamo.py compares with, and does not import
        "torch._dynamo.utils",
    }
    said = {
        str(path.relative_to(ROOM)): set(_said(ast.parse(path.read_text()))) - listed
        for path in FILES
        if ROOM in path.parents
    }
    assert {name: names for name, names in said.items() if names} == {}


def test_the_test_sees_each_way_to_say_a_private_name() -> None:
    ways = {
        "import torch._dynamo.config as c": ["torch._dynamo.config"],
        "from torch._dynamo import guards": ["torch._dynamo.guards"],
        "from torch.utils import _pytree": ["torch.utils._pytree"],
        "import functorch": ["functorch"],
        "import torch\ntorch._C._len_torch_dispatch_stack()": ["torch._C._len_torch_dispatch_stack"],
        "from torch import fx\nfx._symbolic_trace.x": ["torch.fx._symbolic_trace.x"],
        "getattr(x, '_secret', None)": ["_secret"],
        "x._secret": ["_secret"],
        "importlib.import_module('torch._dynamo')": ["torch._dynamo"],
    }
    for source, expected in ways.items():
        tree = ast.parse(source)
        assert _said(tree) == expected, source
    for source in ("import torch\ntorch.ops.aten._to_copy.default", "self._mine", "x._version", "torch.__version__"):
        tree = ast.parse(source)
        assert _said(tree) == [], source


def _said(tree: ast.AST) -> list[str]:
    return [*_imported(tree), *_spelled(tree), *_as_text(tree), *_attributes(tree)]


def _imported(tree: ast.AST) -> Iterator[str]:
    for path in _imports(tree).values():
        if path.startswith("functorch") or (path.startswith("torch.") and PRIVATE.search(path)):
            yield path


def _imports(tree: ast.AST) -> dict[str, str]:
    """Names of a file, and the paths that they are imported from."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.asname or each.name.split(".")[0]: each.name for each in node.names if each.asname}
            found |= {each.name: each.name for each in node.names if not each.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return found


def _chains(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Each dotted expression as a whole."""
    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node not in inner)


def _spelled(tree: ast.AST) -> Iterator[str]:
    """Private names of torch's modules that are reached through public ones."""
    imports, known = _imports(tree), {each.path for each in READ_IN_PLACE}
    for node in _chains(tree):
        written = ast.unparse(node)
        first, _, rest = written.partition(".")
        path = f"{imports.get(first, '')}.{rest}"
        if not DOTTED.fullmatch(written) or not path.startswith("torch.") or path.startswith("torch.ops."):
            continue
        if PRIVATE.search(path) and not PRIVATE.search(imports[first]) and path not in known:
            yield path


def _as_text(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if text.startswith("torch.") and DOTTED.fullmatch(text) and PRIVATE.search(text):
            yield text


def _attributes(tree: ast.AST) -> Iterator[str]:
    """Private attributes of objects, but for a file's own and those that are known."""
    known = ATTRIBUTES | OF_OTHERS.keys() | _own(tree)
    imports = _imports(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name, written = node.attr, ast.unparse(node.value)
            if written in ("self", "cls", "super()") or written.endswith("aten") or "torch" in written.split("."):
                continue
            if imports.get(written.split(".")[0], "").startswith("torch."):
                continue  # a module of torch's: `_spelled`
        elif isinstance(node, ast.Call) and _is_lookup(node):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
        else:
            continue
        if name.startswith("_") and not name.startswith("__") and name not in known:
            yield name


def _is_lookup(node: ast.Call) -> bool:
    known = {"getattr", "setattr", "hasattr", "delattr"}
    return isinstance(node.func, ast.Name) and node.func.id in known and len(node.args) > 1


def _own(tree: ast.AST) -> set[str]:
    """Names that a file defines, or sets on its own objects."""
    defined = (ast.FunctionDef, ast.ClassDef)
    found = {node.name for node in ast.walk(tree) if isinstance(node, defined)}
    found |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    stored = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return found | {node.attr for node in stored if ast.unparse(node.value) in ("self", "cls")}
