"""The production checklist: each line measures what it says, on a model that is ready and on ones that are not."""

from __future__ import annotations

import itertools
import json
from functools import partial
from pathlib import Path

import pytest
import torch

import burnish
from burnish import api
from burnish.tools.cli import main
from burnish.tools.doctor import checklist as module
from burnish.tools.doctor.checklist import QUESTIONS, ChecklistLine, checklist
from burnish.tools.doctor.shapes import other_batches
from burnish.tools.targets import Target
from burnish.trust.faults import WrongBy

NAMES = (
    "compiles once", "no graph breaks", "no fallbacks", "as exact as eager", "faster than eager", "repeatable",
    "thread safe", "memory stable", "warm start", "other sizes", "rolls back", "sealed",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RACE_SECONDS", 0.01)
    burnish.reset()


def asked(model: object, *inputs: object, only: tuple[str, ...], calls: int = 4) -> dict[str, ChecklistLine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "QUESTIONS", {name: QUESTIONS[name] for name in only})
        return {line.name: line for line in checklist(Target("a model", model, inputs), calls=calls)}


def test_the_whole_list_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "def build():\n"
        "    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), (torch.ones(2, 8),)\n"
    )
    main(["doctor", f"{tmp_path / 'model.py'}:build", "--json", "--calls", "3"])
    found = json.loads(capsys.readouterr().out)
    lines = {line["name"]: line for line in found["checklist"]}
    assert tuple(lines) == NAMES
    assert all(list(line) == ["name", "verdict", "figure", "advice", "seconds"] for line in lines.values())
    sure = set(NAMES) - {"faster than eager", "warm start"}  # which of a model this small is up to the machine
    for name in sure:
        assert lines[name]["verdict"] in ("ok", "not measured"), lines[name]
    assert lines["compiles once"]["figure"].startswith("1 graph in ")
    warm = lines["warm start"]
    if "burnish: " not in warm["advice"]:  # someone edits the compiler while this test runs
        assert warm["verdict"] == "ok" and "0 misses" in warm["figure"]


def test_a_value_baked_in_at_every_call() -> None:
    counter = itertools.count()

    class Counts(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls = next(counter)
            return x * self.scale()

        def scale(self) -> float:
            return float(f"1.{self.calls}")

    lines = asked(Counts(), torch.randn(3), only=("compiles once",), calls=3)
    assert lines["compiles once"].verdict == "fail"


def test_a_graph_break_names_its_line() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    line = asked(broken, torch.randn(3), only=("compiles once", "no graph breaks"))["no graph breaks"]
    assert line.verdict == "warn" and line.figure.startswith("1: test_checklist.py:")


def test_a_fallback_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "burnish.pipeline.import_graph", lambda graph, **named: (_ for _ in ()).throw(ValueError("injected"))
    )
    with pytest.warns(burnish.errors.FallbackWarning):
        lines = asked(torch.nn.Linear(4, 4), torch.randn(2, 4), only=("compiles once", "no fallbacks"))
    assert lines["no fallbacks"].verdict == "fail" and "injected" in lines["no fallbacks"].advice


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_wrong_numbers_are_a_failure(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    model, x = torch.nn.Linear(64, 64).to(dtype), torch.randn(32, 64).to(dtype)
    assert asked(model, x, only=("as exact as eager",))["as exact as eager"].verdict == "ok"
    unjudged = partial(burnish.compile, verify=False, gate=False, options={"fault": WrongBy(0.01)})
    monkeypatch.setattr(api, "compile", unjudged)
    line = asked(model, x, only=("as exact as eager",))["as exact as eager"]
    assert line.verdict == "fail" and "verify" in line.advice


def test_what_float64_cannot_judge_is_not_measured() -> None:
    weight = torch.randn(4, 4)
    line = asked(lambda x: x @ weight, torch.randn(2, 4), only=("as exact as eager",))["as exact as eager"]
    assert line.verdict == "not measured" and "float64" in line.figure


def test_a_model_that_is_not_repeatable() -> None:
    counter = itertools.count()

    @burnish.disable
    def drifting(x: torch.Tensor) -> torch.Tensor:
        return x + next(counter)

    lines = asked(lambda x: drifting(x) * 2, torch.randn(3), only=("repeatable", "thread safe"))
    assert lines["repeatable"].verdict == "warn", "eager's own fault"
    assert lines["thread safe"].verdict == "not measured"


def test_random_numbers_of_one_seed_are_repeatable() -> None:
    lines = asked(torch.nn.Dropout(0.5), torch.ones(64), only=("repeatable",))
    assert lines["repeatable"].verdict == "ok"


def test_memory_that_grows() -> None:
    kept: list[torch.Tensor] = []

    @burnish.disable
    def leak(x: torch.Tensor) -> torch.Tensor:
        kept.append(torch.ones(1 << 20))
        return x

    freed = [torch.ones(1 << 12) for _ in range(1 << 12)]  # 64 MiB that malloc keeps: each leak would fit in
    last = torch.ones(1 << 12)
    del freed
    lines = asked(lambda x: leak(x) + 1, torch.randn(3), only=("memory stable",), calls=3)
    assert lines["memory stable"].verdict == "fail" and last.numel()


def test_a_cache_that_is_off_means_no_warm_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNISH_NO_CACHE", "1")
    lines = asked(torch.nn.Linear(4, 4), torch.randn(2, 4), only=("warm start",))
    assert lines["warm start"].verdict == "warn"


def test_a_target_that_no_other_process_can_build() -> None:
    lines = asked(torch.nn.Linear(4, 4), torch.randn(2, 4), only=("warm start",))
    assert lines["warm start"].verdict == "not measured" and "a model" in lines["warm start"].figure


def test_other_sizes() -> None:
    model = torch.nn.Linear(4, 4)
    batches = other_batches(Target("m", model, (torch.randn(2, 4),)))
    assert [size for size, _ in batches] == [3, 4, 5]
    assert [tuple(inputs[0].shape) for _, inputs in batches] == [(3, 4), (4, 4), (5, 4)]
    fixed = Target("m", lambda x: x.view(2, 2, 2), (torch.randn(2, 4),))
    assert other_batches(fixed) == []
    assert other_batches(Target("m", torch.add, (torch.randn(2), torch.randn(3, 1)))) == []
    named = Target("m", lambda ids, mask: ids * mask, {"ids": torch.arange(4).view(2, 2), "mask": torch.ones(2, 2)})
    assert [inputs["ids"][-1].tolist() for _, inputs in other_batches(named)] == [[0, 1], [2, 3], [0, 1]]


def test_a_model_compiled_anew_for_every_size() -> None:
    def by_size(x: torch.Tensor) -> torch.Tensor:
        return x * [1.0, 2.0, 3.0, 4.0, 5.0, 6.0][x.shape[0]]

    lines = asked(by_size, torch.randn(2, 4), only=("compiles once", "other sizes"))
    assert lines["other sizes"].verdict == "warn" and lines["other sizes"].figure.startswith("sizes 3, 4, 5: ")


def test_a_line_that_breaks_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(subject: object) -> None:
        raise RuntimeError("on purpose\nwith more")

    monkeypatch.setitem(QUESTIONS, "sealed", breaks)
    lines = asked(torch.nn.Linear(4, 4), torch.randn(2, 4), only=("sealed", "compiles once"))
    assert lines["sealed"].verdict == "fail" and lines["sealed"].figure.startswith("RuntimeError: on purpose (at ")
    assert lines["compiles once"].verdict == "ok"


def test_a_training_target() -> None:
    class Loss(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).square().mean()

    target = Target("a step", Loss(4, 4), (torch.randn(2, 4),), "train")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "QUESTIONS", {name: QUESTIONS[name] for name in ("compiles once", "thread safe")})
        lines = {line.name: line for line in checklist(target, calls=2)}
    assert lines["compiles once"].verdict == "ok" and lines["thread safe"].verdict == "not measured"
