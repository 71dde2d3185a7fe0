"""TARGET parsing: what works, and that each mistake is answered with what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from burnish.errors import BadTarget, TargetFailed, UnknownTarget, UsageError
from burnish.tools.targets import load_target, placed

FACTORIES = """
import dataclasses, torch
from beside import WIDTH
@dataclasses.dataclass
class Config:
    width: int = WIDTH
def build():
    return torch.nn.Linear(Config().width, 2), (torch.ones(1, WIDTH),)
def by_name():
    return torch.nn.Linear(3, 2), {"input": torch.ones(1, 3)}
def bare_tensor():
    return torch.nn.Linear(3, 2), torch.ones(1, 3)
def only_model():
    return torch.nn.Linear(3, 2)
def bad_inputs():
    return torch.nn.Linear(3, 2), 7
def bad_model():
    return 7, ()
def explodes():
    raise KeyError("weights")
constant = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("WIDTH = 3\n")
    path = tmp_path / "my_model.py"
    path.write_text(FACTORIES)
    return path


@pytest.mark.parametrize("factory", ["build", "by_name", "bare_tensor"])
def test_a_factory_in_a_file(file: Path, factory: str) -> None:
    target = load_target(f"{file}:{factory}")
    with target.grad_mode():
        out = target.step()()
    assert out.shape == (1, 2) and not out.requires_grad


def test_a_factory_in_a_module(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    target = load_target("my_model:build")
    assert isinstance(target.model, torch.nn.Linear)


def test_built_in_workloads_have_sizes() -> None:
    assert load_target("mlp").inputs[0].shape == (1, 8)
    assert load_target("mlp@tiny").name == "mlp@tiny"
    with pytest.raises(BadTarget, match="no size 'huge'. Sizes: full, tiny"):
        load_target("mlp@huge")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownTarget, match=r"unknown target 'bert-bse'. Did you mean 'bert-base'\?") as caught:
        load_target("bert-bse")
    assert caught.value.guess == "bert-base"
    assert isinstance(caught.value, UsageError)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{file}", r"names a file but no factory in it. Write .*my_model.py:FUNCTION"),
        ("{folder}/my_modle.py:build", r"there is no file .*Did you mean .*my_model.py\?"),
        ("{file}:biuld", r"has no 'biuld'. Did you mean 'build'\?"),
        ("{file}:constant", r"'constant' in .* is int, not a function"),
        ("{file}:only_model", r"must return \(model, example_inputs\), not Linear"),
        ("{file}:bad_inputs", r"must be a tuple or a dict of keyword arguments, not int"),
        ("{file}:bad_model", r"must return a module or function first, not int"),
        ("no_such_package.models:build", r"there is no module 'no_such_package.models'"),
    ],
)
def test_each_mistake_names_the_way_out(file: Path, target: str, message: str) -> None:
    with pytest.raises(BadTarget, match=message):
        load_target(target.format(file=file, folder=file.parent))


def test_an_exception_in_the_users_code_is_named(file: Path) -> None:
    with pytest.raises(TargetFailed, match=r"while calling explodes\(\): KeyError: 'weights'") as caught:
        load_target(f"{file}:explodes")
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import not_installed_anywhere\n")
    with pytest.raises(TargetFailed, match=r"while running .*broken.py: ModuleNotFoundError"):
        load_target(f"{path}:build")


PIPELINES = """
import torch
model = torch.nn.Linear(3, 2)
batches = [torch.full((4, 3), float(i)) for i in range(2)]
def with_step():
    def step(model, batch):
        return model(batch * 2)
    return {"model": model, "data": batches, "step": step}
def with_data():
    return {"model": model, "data": lambda: iter([{"input": batches[1]}]), "batch_size": 7}
def without_data():
    return {"model": model, "step": lambda model: model(input=batches[1]), "kind": "train"}
def misspelt():
    return {"model": model, "input": batches}
def nothing_to_call_on():
    return {"model": model}
def never_calls():
    return {"model": model, "step": lambda model: None}
"""


@pytest.fixture
def pipelines(tmp_path: Path) -> Path:
    path = tmp_path / "pipelines.py"
    path.write_text(PIPELINES)
    return path


def test_a_dict_may_hold_the_loop_around_the_model(pipelines: Path) -> None:
    target = load_target(f"{pipelines}:with_step")
    assert torch.equal(target.inputs[0], torch.zeros(4, 3)), "what the first step calls the model on"
    assert target.pipeline is not None
    batches = target.pipeline.batches()
    seen = [next(batches) for _ in range(3)]
    assert torch.equal(seen[2], seen[0]), "the data starts again where it ends"
    assert torch.equal(target.pipeline.run(target.model, seen[1]), target.model(seen[1] * 2))


def test_inputs_come_from_the_data_or_the_step(pipelines: Path) -> None:
    target = load_target(f"{pipelines}:with_data")
    assert set(target.inputs) == {"input"} and target.batch_size == 7
    target = load_target(f"{pipelines}:without_data")
    assert torch.equal(target.inputs["input"], torch.ones(4, 3)) and target.kind == "train"
    assert not target.model._forward_pre_hooks, "nothing is left on the model"


@pytest.mark.parametrize(
    ("factory", "error", "message"),
    [
        ("misspelt", BadTarget, r"returned the key 'input'. Keys: .* Did you mean 'inputs'\?"),
        ("nothing_to_call_on", BadTarget, 'must return "inputs", or "data" or "step" to take them from'),
        ("never_calls", TargetFailed, "its step never called the model"),
    ],
)
def test_mistakes_in_a_dict(pipelines: Path, factory: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_target(f"{pipelines}:{factory}")


def test_a_target_can_be_placed() -> None:
    target = placed(load_target("mlp@tiny"), dtype=torch.bfloat16)
    with target.grad_mode():
        assert target.step()().dtype == torch.bfloat16
