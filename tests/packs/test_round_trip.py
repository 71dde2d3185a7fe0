"""A pack of one process is the compiled object of another, which has no compiler, no cache and no TorchDynamo."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import burnish
from burnish.errors import CannotPack, FallbackWarning, SealedError
from burnish.trust.sampling import comparer
from tests.packs import models
from tests.packs.conftest import OPTIONS, packed_as
from tests.packs.models import Structured, an_input, tiny

ROOT = Path(__file__).parents[2]

_PACKING = """
import json, sys, torch, burnish
from tests.packs.conftest import OPTIONS
from tests.packs.models import an_input, tiny
torch.set_num_threads(1)
compiled = burnish.compile(tiny(), options=OPTIONS)
with torch.no_grad():
    results = [compiled(an_input()) for _ in range(3)]
burnish.pack(compiled, sys.argv[1])
print(json.dumps([r[name].contiguous().view(torch.int32).tolist() for r in results for name in ("out", "hidden")]))
"""
_PROCESS = """
import json, sys, torch, burnish
from burnish.trust.sampling import comparer
from tests.packs.models import an_input, tiny
torch.set_num_threads(1)
with torch.no_grad():
    model = tiny()
    loaded = burnish.load(sys.argv[1], model, missing="error")
    results = [loaded(an_input()) for _ in range(3)]
comparer.settle()  # with eager, in its thread
stats = burnish.stats(loaded)
print(json.dumps({
    "dynamo": "torch._dynamo" in sys.modules,
    "bits": [r[name].contiguous().view(torch.int32).tolist() for r in results for name in ("out", "hidden")],
    "compiles": stats.compiles,
    "graphs": sum(stats.graphs.values()),
    "cc": stats.seconds.get("cc", 0.0),
    "misses": stats.cache_misses,
    "notices": sorted(stats.notices),
    "engines": [each.engine for each in stats.variants],
    "compared": [each.samples for each in stats.variants],
    "fallbacks": [str(each) for each in stats.fallbacks],
}))
"""


def in_a_process(text: str, path: Path, environment: dict[str, str]) -> Any:
    command = [sys.executable, "-c", text, str(path)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_process_without_compiler_cache_or_dynamo(tmp_path: Path) -> None:
    """Both are processes of their own: other tests may have changed classes of torch in this one."""
    path = tmp_path / "tiny.burnish"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    bits = in_a_process(_PACKING, path, environment)
    environment |= {"PATH": "", "BURNISH_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("BURNISH_CC", None)
    environment.pop("CC", None)
    told = in_a_process(_PROCESS, path, environment)
    assert told.pop("bits") == bits
    notices = ["warm start: judged where it was packed: neither compared nor raced before use"]
    assert told == {
        "dynamo": False,
        "compiles": 0,
        "graphs": 0,
        "cc": 0.0,
        "misses": 0,
        "notices": notices,
        "engines": ["burnish"],
        "compared": [1],
        "fallbacks": [],
    }
    assert not (tmp_path / "cache" / "library").exists()


def test_results_are_those_of_the_compiled_object(tmp_path: Path) -> None:
    model, x = tiny(), an_input()
    compiled = burnish.compile(model, options=OPTIONS)
    with torch.no_grad():
        for _ in range(2):
            expected = compiled(x)
        burnish.pack(compiled, tmp_path / "a.burnish")
        found = burnish.load(tmp_path / "a.burnish", tiny(), missing="error")(x)
    assert all(torch.equal(found[name], expected[name]) for name in expected) and list(found) == list(expected)


def test_the_object_is_of_the_models_class(of_tiny: Path) -> None:
    model = tiny()
    loaded = burnish.load(of_tiny, model)
    assert isinstance(loaded, models.Tiny) and loaded.burnish.eager is model
    assert loaded.state_dict().keys() == model.state_dict().keys()


def test_results_that_are_objects(tmp_path: Path) -> None:
    """Dynamo's code for such results uses functions of Dynamo's, which a pack replaces."""
    torch.manual_seed(0)
    model, x = Structured().eval(), an_input()
    path = packed_as(tmp_path / "a.burnish", model, (x,))
    loaded = burnish.load(path, model, missing="error")
    with torch.no_grad():
        found, expected = loaded(x), model(x)
    assert type(found) is models.Output and list(found) == list(expected) and found.count == 3
    torch.testing.assert_close(found.out, expected.out)
    assert found["out"] is found.out
    assert not burnish.stats(loaded).notices.keys() - {_JUDGED}


_JUDGED = "warm start: judged where it was packed: neither compared nor raced before use"


def test_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed_as(tmp_path / "a.burnish", models.scaled, (an_input(),))
    loaded = burnish.load(path, models.scaled, missing="error")
    with torch.no_grad():
        torch.testing.assert_close(loaded(an_input()), models.scaled(an_input()))
        assert not burnish.stats(loaded).notices.keys() - {_JUDGED}
        torch.testing.assert_close(loaded(an_input(), by=4.0), models.scaled(an_input(), by=4.0))
    assert any("sealed call in eager" in text for text in burnish.stats(loaded).notices)
    monkeypatch.setattr(models, "SCALE", 5.0)
    with pytest.raises(burnish.errors.PackDiffers, match=r"SCALE: 3\.0 in the pack, 5\.0 here"):
        burnish.load(path, models.scaled, missing="error")


def test_a_library_that_adds_a_method_to_all_modules(of_tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers does. The method comes from another package than torch."""
    monkeypatch.setattr(torch.nn.Module, "applied", models.scaled, raising=False)
    loaded = burnish.load(of_tiny, tiny(), missing="error", strict=True)
    with torch.no_grad():
        torch.testing.assert_close(loaded(an_input()), tiny()(an_input()))


def test_several_variants(tmp_path: Path) -> None:
    model = tiny()
    path = packed_as(tmp_path / "a.burnish", model, (an_input(3),), (an_input(5),), dynamic=False)
    loaded = burnish.load(path, model, missing="error", strict=True)
    with torch.no_grad():
        for rows in (3, 5, 3):
            torch.testing.assert_close(loaded(an_input(rows)), model(an_input(rows)))


def test_libraries_that_the_cache_lacks_are_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has them in memory from another cache."""
    packed_as(tmp_path / "a.burnish", models.scaled, (an_input(),))
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path / "another"))
    torch.compiler.reset()
    compiled = burnish.compile(models.scaled, options=OPTIONS)
    with torch.no_grad():
        compiled(an_input())
    shutil.rmtree(tmp_path / "another" / "library", ignore_errors=True)
    path = burnish.pack(compiled, tmp_path / "b.burnish").path
    loaded = burnish.load(path, models.scaled, missing="error")
    with torch.no_grad():
        torch.testing.assert_close(loaded(an_input()), models.scaled(an_input()))


def test_symbolic_sizes(tmp_path: Path) -> None:
    model = Structured().eval()
    path = packed_as(tmp_path / "a.burnish", model, (an_input(3),), dynamic=True)
    loaded = burnish.load(path, model, missing="error", strict=True)
    with torch.no_grad():
        for rows in (3, 4, 9):
            torch.testing.assert_close(loaded(an_input(rows)).out, model(an_input(rows)).out)
        with pytest.raises(SealedError):
            loaded(an_input(1))  # which the guards exclude


def test_sixteen_threads(of_tiny: Path) -> None:
    model = tiny()
    loaded = burnish.load(of_tiny, model, missing="error", strict=True)
    with torch.no_grad():
        expected = model(an_input())
    problems: list[Any] = []
    start = threading.Barrier(16)

    def call() -> None:
        start.wait()
        try:
            with torch.no_grad():
                for _ in range(20):
                    torch.testing.assert_close(loaded(an_input()), expected)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=call) for _ in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not problems


def test_rollback_retry_and_close(of_tiny: Path) -> None:
    model = tiny()
    loaded = burnish.load(of_tiny, model, missing="error")
    with torch.no_grad():
        expected = model(an_input())
        for change in (lambda: None, loaded.burnish.rollback, loaded.burnish.retry, loaded.burnish.close):
            change()
            torch.testing.assert_close(loaded(an_input()), expected)
            assert comparer.settle(60)  # a comparison under way keeps its variant
    assert [each.engine for each in burnish.stats(loaded).variants if each.state == "compiled"] == ["burnish"]


# -- what cannot be packed ----------------------------------------------------------------------------------------


def test_nothing_compiled(tmp_path: Path) -> None:
    with pytest.raises(CannotPack, match="call it with the inputs it will get"):
        burnish.pack(burnish.compile(tiny(), options=OPTIONS), tmp_path / "a.burnish")


def test_graph_breaks_are_refused_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(CannotPack, match=r"a graph break at .*models\.py:\d+"):
        packed_as(tmp_path / "a.burnish", models.Broken(), (an_input(),))
    assert not list(tmp_path.iterdir())


def test_training_steps_are_refused(tmp_path: Path) -> None:
    compiled = burnish.compile(tiny(), options=OPTIONS)
    for _ in range(2):
        compiled(an_input())["out"].sum().backward()
    with pytest.raises(CannotPack, match="a training step"):
        burnish.pack(compiled, tmp_path / "a.burnish")


def test_a_variant_that_cannot_be_packed_is_left_out(tmp_path: Path) -> None:
    compiled = burnish.compile(tiny(), options=OPTIONS)
    with torch.no_grad():
        compiled(an_input())
    compiled(an_input())["out"].sum().backward()
    with pytest.warns(FallbackWarning, match="a variant of Tiny is not packed: .*a training step"):
        packed = burnish.pack(compiled, tmp_path / "a.burnish")
    assert len(packed.variants) == 1 and len(packed.left_out) == 1


def test_tensors_of_a_module_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotPack, match="a tensor of another module's"):
        packed_as(tmp_path / "a.burnish", models.Elsewhere(), (an_input(),))


def test_without_a_cache(tmp_path: Path) -> None:
    compiled = burnish.compile(tiny(), options={**OPTIONS, "warm_start": False})
    with torch.no_grad():
        compiled(an_input())
    with pytest.raises(CannotPack, match="warm_start"):
        burnish.pack(compiled, tmp_path / "a.burnish")
