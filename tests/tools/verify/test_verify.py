"""`burnish verify` as a library and as a command: outputs, state and gradients; randomness; what it leaves behind."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnish
from burnish.errors import TargetFailed, UnknownInputSet
from burnish.tools.cli import main
from burnish.tools.verify.result import VerifyResult
from tests.tools.verify.faults import FAULTS


def verified(model: Callable[..., Any], *inputs: Any, **settings: Any) -> VerifyResult:
    return burnish.verify(model, inputs, **{"sets": ["given"], **settings})


class Stateful(nn.Module):
    """A buffer, a cache in a plain attribute, a count, and a list that grows."""

    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("cache", torch.zeros(2, 4))
        self.calls = 0
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.cache[self.calls % 2] = x[0].detach()
        return self.norm(x) + self.cache.sum() * self.calls


def test_state_is_compared_and_put_back() -> None:
    model = Stateful().train()
    model.norm.weight.grad = torch.ones(4)
    before = copy.deepcopy(model.state_dict())
    result = verified(model, torch.randn(3, 4))
    names = {check.name for check in result.checks if check.kind == "state"}
    assert result.ok and result.compiled
    assert names == {
        "state.cache",
        "state.norm.running_mean",
        "state.norm.running_var",
        "state.norm.num_batches_tracked",
    }
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.calls == 0 and model.seen == [] and torch.equal(model.norm.weight.grad, torch.ones(4))


def test_written_arguments_are_compared() -> None:
    def appends(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[1] = x * 2
        return cache.sum(0)

    cache, x = torch.zeros(3, 4), torch.randn(4)
    result = verified(appends, cache, x, gradients=False)
    assert result.ok and {check.name for check in result.checks} == {"output", "input.0 (written)"}
    assert torch.equal(cache, torch.zeros(3, 4)), "the caller's own argument"


def test_a_cache_written_in_grad_mode_lets_go_of_the_graph() -> None:
    class Cached(nn.Module):
        cache: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("cache", torch.zeros(2, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.cache[1] = self.linear(x)
            return self.cache.sum(0) * 2

    result = verified(Cached(), torch.randn(4))
    assert result.ok and result.skipped == () and result.notes == ()
    assert {"state.cache", "grad.linear.weight"} <= {check.name for check in result.checks}


def test_wrong_state_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS["wrong_state"](monkeypatch.setattr)
    result = verified(nn.BatchNorm1d(4).train(), torch.randn(8, 4), gradients=False, bisect=False)
    assert {check.name for check in result.failures} == {"state.running_mean", "state.running_var"}


def test_dropout_is_compared_with_the_same_draws() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 4)).train()
    result = verified(model, torch.randn(6, 8))
    assert result.ok and any("random numbers" in note and "same" in note for note in result.notes)
    assert all(check.verdict.eager.largest < 1e-5 for check in result.checks), "float64 had other masks"


def test_other_draws_are_compared_as_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled object that does not follow eager's generator: right if it draws from the same distribution."""
    from burnish.tools.verify import session

    def other_draws(scale: float) -> Callable[..., Any]:
        def make(model: Any, **settings: Any) -> Any:
            compiled = burnish.compile(model, **settings)
            inner = compiled.burnish.entrance.call

            def call(*args: Any, **kwargs: Any) -> Any:
                torch.rand(3)
                return inner(*args, **kwargs) * scale

            compiled.burnish.entrance.call = call
            compiled.burnish.entrance.reconsider = lambda: None  # a verdict would put its own in place
            return compiled

        return make

    model, x = nn.Dropout(0.5).train(), torch.ones(2000)
    for scale, right in ((1.0, True), (1.2, False)):
        monkeypatch.setattr(session, "compile", other_draws(scale))
        result = verified(model, x, gradients=False, bisect=False)
        assert result.ok is right, result
        assert any("over seeds" in note for note in result.notes)


def test_eager_that_differs_from_itself_is_judged_by_that() -> None:
    class Unsteady(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin() + noise()

    source = torch.Generator().manual_seed(1)

    @torch.compiler.disable
    def noise() -> torch.Tensor:
        return torch.rand((), generator=source) * 1e-3

    result = verified(Unsteady(), torch.randn(64), gradients=False)
    assert result.ok and any("differs from itself" in note for note in result.notes)


def test_a_wrong_function_without_parameters_has_wrong_input_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS["wrong_gradient"](monkeypatch.setattr)
    result = verified(lambda x: torch.tanh(x), torch.randn(32), bisect=False)
    assert [check.name for check in result.failures] == ["grad.input.0"]


def test_half_precision_and_integers() -> None:
    def scores(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        p = F.softmax(x, -1)
        return p, p.argmax(-1)

    result = verified(scores, torch.randn(16, 32).bfloat16(), sets=["given", "random"], gradients=False)
    assert result.ok and {check.dtype for check in result.checks} == {"bfloat16", "int64"}


def test_another_batch_size_is_one_dynamic_compile_more() -> None:
    result = verified(nn.Linear(4, 4).eval(), torch.randn(6, 4), sets=["given", "batch"], gradients=False)
    assert result.ok and [check.shape for check in result.checks] == [(6, 4), (7, 4)]
    fixed = verified(nn.Linear(4, 4), torch.randn(6, 4), sets=["given", "batch"], dynamic=False, gradients=False)
    assert {check.inputs for check in fixed.checks} == {"given"}


def test_sets_that_do_not_apply_say_why() -> None:
    result = verified(lambda i: i * 2, torch.tensor(3), sets=["given", "special", "batch"], gradients=True)
    assert result.ok
    assert [text.split(":")[0] for text in result.skipped] == ["given, gradients", "special", "batch"]


def test_a_model_that_is_not_compiled_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise ZeroDivisionError("no")

    monkeypatch.setattr("burnish.pipeline.generate", broken)
    result = verified(nn.Linear(3, 3), torch.randn(2, 3), gradients=False)
    assert result.ok and not result.compiled and "not compiled" in result.verdict
    assert any("codegen" in note for note in result.notes)


def test_a_compiled_call_that_raises_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(*args: Any) -> Any:
        def run(arguments: list[Any]) -> Any:
            raise IndexError("far out")

        return run

    monkeypatch.setattr("burnish.pipeline.load_program", raising)
    result = verified(nn.Linear(3, 3), torch.randn(2, 3), gradients=False, bisect=False)
    assert not result.ok and "IndexError" in result.failures[0].verdict.reason


def test_mistakes_are_typed() -> None:
    with pytest.raises(UnknownInputSet, match="Did you mean 'random'"):
        verified(nn.Linear(3, 3), torch.randn(2, 3), sets=["randm"])
    with pytest.raises(TargetFailed, match="in eager"):
        verified(nn.Linear(3, 3), torch.randn(2, 4))


# --- the command --------------------------------------------------------------------------------------------------

TARGET = """
import torch
def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()), (torch.randn(3, 4),)
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(TARGET)
    return f"{tmp_path / 'model.py'}:build"


def test_the_command_says_right_with_status_0(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", target, "--sets", "given"]) == 0
    out = capsys.readouterr().out
    assert "right: " in out and "grad.0.weight" in out and "eager's" in out


def test_the_command_says_wrong_with_status_1(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    FAULTS["wrong_lowering"](monkeypatch.setattr)
    repro = tmp_path / "repro.py"
    assert main(["verify", target, "--sets", "given", "--no-gradients", "--repro", str(repro), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False and told["culprit"]["stage"] == "import" and told["repro"] == str(repro)
    assert repro.exists() and any(not check["verdict"]["ok"] for check in told["checks"])


def test_a_mistake_has_status_2(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "bert-bass"]) == 2
    assert main(["verify", target, "--sets", "nonsense"]) == 2
    assert "unknown input set 'nonsense'" in capsys.readouterr().err
