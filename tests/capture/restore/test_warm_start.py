"""Warm starts: a second process neither traces nor compiles what the first one did; whatever changed is traced anew,
with the reason in the statistics, and results are eager's all the while.

`torch.compiler.reset` and a new compiled object stand for a process where nothing of a process but memory matters.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import symbolic_convert

import burnish
from burnish.capture.entry import calling_frame
from burnish.capture.restore.frame import KIND
from burnish.runtime.cache import stored_program
from burnish.runtime.cache.store import open_cache
from burnish.stats import Stats

RESTORED = "warm start: restored without Dynamo and AOTAutograd"
MODEL = """
import torch
from torch import nn

SCALE = 2.0

def activation(x):
    return torch.tanh(x) * SCALE

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, 3)
        self.shift = 0.5

    def forward(self, x, flip=False):
        y = self.second(activation(self.first(x)) + self.shift)
        return -y if flip else y
"""


def model_file(folder: Path, text: str = MODEL) -> Path:
    path = folder / "the_model.py"
    path.write_text(text)
    return path


def imported(path: Path) -> Any:
    """The file as a module, as a new process would import it."""
    spec = importlib.util.spec_from_file_location("the_model", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["the_model"] = module
    vars(calling_frame).pop("__import_the_model", None)  # where Dynamo's guards look for modules
    symbolic_convert._import_module.cache_clear()
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)  # no .pyc of the file as it was
    return module


@pytest.fixture
def options(tmp_path: Path) -> dict[str, object]:
    return {"cache_dir": tmp_path / "cache", "warm_start": True}


def block(module: types.ModuleType, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    made: nn.Module = module.Block(6)
    return made


def called(model: Callable[..., Any], options: dict[str, object], *args: Any, grad: bool = False) -> Stats:
    """One call in what might be a new process: eager's result, and what the statistics say of it."""
    torch.compiler.reset()
    compiled = burnish.compile(model, options=options)
    with torch.set_grad_enabled(grad):
        got, want = compiled(*args), model(*args)
    torch.testing.assert_close(got, want)
    if grad:
        parameters = list(model.parameters())  # type: ignore[attr-defined]
        got_grad, want_grad = (torch.autograd.grad(out.square().sum(), parameters) for out in (got, want))
        torch.testing.assert_close(got_grad, want_grad)
    stats = burnish.stats(compiled)
    assert not stats.fallbacks and stats.compiles == 1
    return stats


def is_restored(stats: Stats) -> bool:
    traced = stats.seconds.get("aot", 0.0) > 0
    assert traced == (RESTORED not in stats.notices), stats.notices
    return not traced


X = torch.linspace(-1, 1, 24).reshape(4, 6)


@pytest.mark.parametrize("grad", [False, True])
def test_a_second_process_does_not_trace(tmp_path: Path, options: dict[str, object], grad: bool) -> None:
    path = model_file(tmp_path)
    first = called(block(imported(path)), options, X, grad=grad)
    assert not is_restored(first) and not any("not stored" in notice for notice in first.notices), first.notices
    other_weights = block(imported(path), seed=1)
    again = called(other_weights, options, X, grad=grad)
    assert is_restored(again) and again.cache_misses == 0
    assert again.kernels == first.kernels and again.graphs == first.graphs


def test_another_working_directory_changes_nothing(tmp_path: Path, options: dict[str, object]) -> None:
    """torch's settings name a folder in it, for reports."""
    path = model_file(tmp_path)
    with torch._dynamo.config.patch(debug_dir_root=str(tmp_path / "here" / "torch_compile_debug")):
        called(block(imported(path)), options, X)
    with torch._dynamo.config.patch(debug_dir_root=str(tmp_path / "there" / "torch_compile_debug")):
        assert is_restored(called(block(imported(path)), options, X))


LIBRARY = """
def applied(module, x):
    return x * 2

def applied_otherwise(module, x):
    return x * 3
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whose functions others find by their names."""
    (tmp_path / "another_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "another_library", raising=False)
    return importlib.import_module("another_library")


def test_a_method_that_a_library_adds_to_all_modules_changes_nothing(
    tmp_path: Path, options: dict[str, object], library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers does, with the first model that it initialises."""
    path = model_file(tmp_path)
    called(block(imported(path)), options, X)
    monkeypatch.setattr(nn.Module, "applied", library.applied, raising=False)
    assert is_restored(called(block(imported(path)), options, X))


@pytest.mark.parametrize(
    "call", ["self.applied(x)", "getattr(self, 'applied')(x)", "getattr(self, f'app{activation.__name__[:0]}lied')(x)"]
)
def test_a_method_that_a_library_adds_and_the_model_calls_is_traced_again(
    tmp_path: Path, options: dict[str, object], library: Any, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = model_file(tmp_path, MODEL.replace("self.first(x)", f"self.first({call})"))
    monkeypatch.setattr(nn.Module, "applied", library.applied, raising=False)
    called(block(imported(path)), options, X)
    assert is_restored(called(block(imported(path)), options, X))
    monkeypatch.setattr(nn.Module, "applied", library.applied_otherwise)
    assert not is_restored(called(block(imported(path)), options, X))


def test_a_method_that_a_library_replaces_is_traced_again(
    tmp_path: Path, options: dict[str, object], library: Any
) -> None:
    text = MODEL.replace("activation(self.first(x))", "self.applied(self.first(x))")
    path = model_file(tmp_path, text + "\n    def applied(self, x):\n        return x + 1\n")
    called(block(imported(path)), options, X)
    for replaced in (library.applied, library.applied_otherwise):
        module = imported(path)
        module.Block.applied = replaced
        assert not is_restored(called(block(module), options, X))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("torch.tanh(x) * SCALE", "torch.sigmoid(x) * SCALE", "activation"),
        ("-y if flip else y", "-y if flip else y + 1", "Block"),
        ("SCALE = 2.0", "SCALE = 3.0", "SCALE == 2.0"),
        (
            "    def forward(self, x",
            "    def __call__(self, x):\n        return super().__call__(x)\n\n    def forward(self, x",
            "Block",
        ),
        ("self.shift = 0.5", "self.shift = 0.25", "model and inputs"),
    ],
    ids=["function", "method", "constant", "new method", "attribute"],
)
def test_an_edited_line_is_traced_again_and_said(
    tmp_path: Path, options: dict[str, object], before: str, after: str, reason: str
) -> None:
    called(block(imported(model_file(tmp_path))), options, X)
    assert before in MODEL
    edited = block(imported(model_file(tmp_path, MODEL.replace(before, after))))
    stats = called(edited, options, X)
    assert not is_restored(stats)
    assert any(reason in text for text in stats.cache_reasons), stats.cache_reasons


def test_a_comment_is_no_change(tmp_path: Path, options: dict[str, object]) -> None:
    called(block(imported(model_file(tmp_path))), options, X)
    moved = block(imported(model_file(tmp_path, "# a comment\n" + MODEL)))
    assert is_restored(called(moved, options, X))


def test_a_restored_entry_is_guarded(tmp_path: Path, options: dict[str, object]) -> None:
    module = imported(model_file(tmp_path))
    called(block(module), options, X)
    torch.compiler.reset()
    model = block(module)
    compiled = burnish.compile(model, options=options)
    with torch.no_grad():
        compiled(X)
        for x, flip in ((X, True), (X[:2], False), (X.double(), False)):
            wanted = model.double() if x.dtype == torch.float64 else model
            torch.testing.assert_close(compiled(x, flip), wanted(x, flip))
    stats = burnish.stats(compiled)
    assert RESTORED in stats.notices and stats.compiles == 4, stats.notices


def test_a_restored_object_can_be_sealed(tmp_path: Path, options: dict[str, object]) -> None:
    module = imported(model_file(tmp_path))
    called(block(module), options, X)
    torch.compiler.reset()
    model = block(module, seed=2)
    compiled: Any = burnish.compile(model, options=options)
    with torch.no_grad():
        compiled(X)
        compiled.burnish.seal()
        for _ in range(3):
            torch.testing.assert_close(compiled(X), model(X))
    stats = burnish.stats(compiled)
    assert RESTORED in stats.notices and not any("eager" in notice for notice in stats.notices)


def test_a_restored_step_takes_many_gradients_at_once(tmp_path: Path, options: dict[str, object]) -> None:
    module = imported(model_file(tmp_path))
    called(block(module), options, X, grad=True)
    torch.compiler.reset()
    model = block(module, seed=2)
    compiled = burnish.compile(model, options=options)
    weights, many = list(model.parameters()), torch.linspace(-1, 1, 24).reshape(2, 4, 3)
    got, want = (torch.autograd.grad(call(X), weights, many, is_grads_batched=True) for call in (compiled, model))
    torch.testing.assert_close(got, want)
    assert not any(each.requires_grad for each in got)
    assert is_restored(burnish.stats(compiled))


def test_sizes_that_may_differ(tmp_path: Path, options: dict[str, object]) -> None:
    module = imported(model_file(tmp_path))
    dynamic = lambda: burnish.compile(block(module), options=options, dynamic=True)  # noqa: E731
    with torch.no_grad():
        dynamic()(X)
        torch.compiler.reset()
        compiled = dynamic()
        for rows in (4, 2, 3):
            torch.testing.assert_close(compiled(X[:rows]), block(module)(X[:rows]))
    stats = burnish.stats(compiled)
    assert RESTORED in stats.notices and stats.compiles == 1


def _entry(options: dict[str, object]) -> Path:
    (found,) = (Path(str(options["cache_dir"])) / KIND).rglob("data")
    return found


@pytest.mark.parametrize("damage", ["truncated", "another's"])
def test_a_damaged_entry_is_traced_again(tmp_path: Path, options: dict[str, object], damage: str) -> None:
    module = imported(model_file(tmp_path))
    called(block(module), options, X)
    if damage == "truncated":
        path = _entry(options)
        path.write_bytes(path.read_bytes()[:-50])
    else:  # with the right checksum
        cache = open_cache(burnish.Options.from_arguments(options=options))
        (entry,) = [entry for entry in cache.entries() if entry.kind == KIND]
        key = stored_program.CacheKey(entry.factors)
        cache.discard(KIND, key)
        assert cache.put(KIND, key, b'["object","StoredFrame"]')
    stats = called(block(module), options, X)
    assert not is_restored(stats)
    assert any("stored" in reason for reason in stats.cache_reasons), stats.cache_reasons
    assert is_restored(called(block(module), options, X))


def test_another_torch_is_traced_again(
    tmp_path: Path, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = imported(model_file(tmp_path))
    called(block(module), options, X)
    ordinary = stored_program.machine_factors
    other = lambda device: (*ordinary(device)[1:], ("torch", "9.9"))  # noqa: E731
    monkeypatch.setattr(stored_program, "machine_factors", other)
    stats = called(block(module), options, X)
    assert not is_restored(stats) and any("torch: " in reason and "9.9" in reason for reason in stats.cache_reasons)


def test_a_cache_that_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    module = imported(model_file(tmp_path))
    options: dict[str, object] = {"cache_dir": tmp_path / "file" / "cache", "warm_start": True}
    for _ in range(2):
        stats = called(block(module), options, X)
        assert not is_restored(stats) and any("cache not used" in reason for reason in stats.cache_reasons)


def test_hooks_are_not_stored(tmp_path: Path, options: dict[str, object]) -> None:
    module = imported(model_file(tmp_path))
    hooked = block(module)
    hooked.register_forward_hook(lambda module, args, result: result + 1)
    assert any("it has hooks" in notice for notice in called(hooked, options, X).notices)
    called(block(module), options, X)
    hooked = block(module)
    hooked.register_forward_hook(lambda module, args, result: result + 2)
    stats = called(hooked, options, X)
    assert not is_restored(stats) and any("it has hooks" in reason for reason in stats.cache_reasons)


def test_hooks_of_modules_that_a_function_calls(tmp_path: Path, options: dict[str, object]) -> None:
    module = imported(model_file(tmp_path))
    called(block(module).forward, options, X)
    assert is_restored(called(block(module).forward, options, X))
    hooked = block(module)
    hooked.get_submodule("first").register_forward_hook(lambda module, args, result: result + 1)
    stats = called(hooked.forward, options, X)
    assert not is_restored(stats) and any("it has hooks" in notice for notice in stats.notices)


CONFIGURED = """
from torch import nn

class Config:
    def __init__(self, **settings):
        self.settings = settings

class Block(nn.Module):
    def __init__(self, config, other=None):
        super().__init__()
        self.config, self.other = config, other

    def forward(self, x):
        known = {self.config: 2.0, self.other: 3.0}  # a key is guarded on as an object
        return x * known[self.config] * self.config.settings["scale"]
"""


@pytest.mark.parametrize(
    ("second", "restored"),
    [
        (lambda Config: [Config(scale=2.0, names=("a",)), Config(scale=2.0, names=("a",))], True),
        (lambda Config: [Config(scale=2.0, names=("b",)), Config(scale=2.0, names=("a",))], False),
        (lambda Config: [Config(scale=2.0, names=("a",))] * 2, False),
        (lambda Config: [Config(scale=2.0, names=(torch.ones(1),)), Config(scale=2.0, names=("a",))], False),
    ],
    ids=["the same content", "another content", "one object instead of two", "content that is no plain data"],
)
def test_objects_with_plain_data_are_known_by_it(
    tmp_path: Path, options: dict[str, object], second: Callable[[Any], list[Any]], restored: bool
) -> None:
    module = imported(model_file(tmp_path, CONFIGURED))
    first = [module.Config(scale=2.0, names=("a",)) for _ in range(2)]
    assert not is_restored(called(module.Block(*first), options, torch.randn(3, 6)))
    module = imported(model_file(tmp_path, CONFIGURED))
    assert is_restored(called(module.Block(*second(module.Config)), options, torch.randn(3, 6))) == restored


def test_switched_off(tmp_path: Path, options: dict[str, object]) -> None:
    module = imported(model_file(tmp_path))
    for _ in range(2):
        assert not is_restored(called(block(module), {**options, "warm_start": False}, X))


CACHED = """
import torch
from torch import nn

class Cache:
    def __init__(self):
        self.keys, self.length = [torch.zeros(48).view(8, 6) for _ in range(2)], torch.zeros((), dtype=torch.int64)

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x, cache, other=None):
        for layer, keys in zip(self.layers, cache.keys):
            keys.index_copy_(0, cache.length.reshape(1), layer(x))
            x = x + torch.softmax(x @ keys.T, -1) @ keys
        cache.length.add_(1)
        return x if other is None else x + other
"""


def decoded(options: dict[str, object], module: Any, share: bool = False) -> Stats:
    """Three steps of eager's and ours, each with a cache of its own; what they leave there is the same."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model, ours, eagers = module.Decoder(), module.Cache(), module.Cache()
    compiled = burnish.compile(model, options=options)
    with torch.no_grad():
        for step in range(3):
            x, version = X[:1] + step, ours.keys[1]._version
            got, want = (f(x, c, c.keys[0][:1] if share else None) for f, c in ((compiled, ours), (model, eagers)))
            torch.testing.assert_close(got, want)
            assert ours.keys[1]._version > version  # autograd knows that it was changed
    torch.testing.assert_close(ours.keys, eagers.keys)
    assert ours.length.item() == 3
    stats = burnish.stats(compiled)
    assert not stats.fallbacks and stats.compiles == 1
    return stats


def test_a_cache_that_is_written_is_restored(tmp_path: Path, options: dict[str, object]) -> None:
    module = imported(model_file(tmp_path, CACHED))
    first = decoded(options, module)
    assert not is_restored(first) and not any("not stored" in notice for notice in first.notices), first.notices
    assert is_restored(decoded(options, module))


def test_inputs_that_share_what_is_written_are_served_by_eager(tmp_path: Path, options: dict[str, object]) -> None:
    """Cold and warm: the program is for inputs that lie apart."""
    module = imported(model_file(tmp_path, CACHED))
    for _ in range(2):
        stats = decoded(options, module, share=True)
        assert any("overlaps" in notice for notice in stats.notices) and stats.variants[0].unmet, stats.notices


_PROCESS = """
import json, sys, torch, burnish
sys.path.insert(0, sys.argv[1])
import the_model
torch.manual_seed(0)
model = the_model.Block(6)
compiled = burnish.compile(model, options={"cache_dir": sys.argv[2], "warm_start": True, "gate": False})
x = torch.ones(4, 6)
with torch.no_grad():
    assert torch.allclose(compiled(x), model(x))
stats = burnish.stats(compiled)
print(json.dumps([sorted(stats.notices), stats.cache_reasons]))
"""


def test_in_processes_of_their_own(tmp_path: Path) -> None:
    def process() -> tuple[list[str], list[str]]:
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", _PROCESS, str(tmp_path), str(tmp_path / "cache")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
        notices, reasons = json.loads(done.stdout.splitlines()[-1])
        return notices, reasons

    model_file(tmp_path)
    assert RESTORED not in process()[0]
    assert RESTORED in process()[0]
    model_file(tmp_path, MODEL.replace("self.second(activation", "self.second(2 * activation"))
    notices, reasons = process()
    assert RESTORED not in notices and any("Block" in reason for reason in reasons), reasons


def test_weights_that_are_no_longer_tied_are_compiled_again():
    """Dynamo evaluates the text of the guard that failed, to tell why: it must be Python, however it is marked."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.ids, self.out = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
            self.out.weight = self.ids.weight

        def forward(self, ids):
            return self.out(torch.tanh(self.ids(ids)))

    model, ids = Tied(), torch.arange(5)
    compiled = burnish.compile(model)
    compiled(ids)
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    torch.testing.assert_close(compiled(ids), model(ids))
    stats = burnish.stats(compiled)
    assert not stats.fallbacks and stats.compiles == 2
