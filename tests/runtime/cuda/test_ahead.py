"""What begins while Dynamo traces."""

from __future__ import annotations

import pytest
import torch

from burnish.capture.entry import prefetch
from burnish.capture.entry.prefetch import Ahead, begin, wanted_by
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.cuda import launch as cuda_launch
from burnish.runtime.triton import workers as triton_workers


def test_a_model_on_a_gpu_wants_workers_and_a_large_one_on_a_cpu_the_library() -> None:
    with torch.device("meta"):
        small, large = torch.nn.Linear(8, 8), torch.nn.Linear(512, 512)
    assert wanted_by(small) == wanted_by(len) == Ahead()
    on_cpu = torch.nn.Linear(512, 512)
    assert wanted_by(on_cpu) == Ahead(native=True)
    large._parameters["weight"] = _On("cuda")  # type: ignore[assignment]
    assert wanted_by(large) == Ahead(workers=True, products=((torch.float32, torch.device("cuda")),))


def test_so_does_a_function_with_a_model_in_its_closure_or_a_method_of_one() -> None:
    model = torch.nn.Linear(512, 512)

    def step() -> torch.Tensor:
        return model(later)

    assert wanted_by(step) == wanted_by(model.forward) == Ahead(native=True)
    later = torch.ones(512)
    assert step().shape == (512,)


class _On(torch.nn.Parameter):
    """A parameter that says it is on a device that this machine may not have."""

    def __new__(cls, device: str) -> _On:
        made = torch.Tensor._make_subclass(cls, torch.empty(512, 512))
        made.said = torch.device(device)
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.said


def test_what_is_wanted_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(prefetch, "prepare_native", lambda options, log: begun.append("native"))
    monkeypatch.setattr(triton_workers, "prepare_workers", lambda: begun.append("workers"))
    monkeypatch.setattr(cuda_launch, "prepare_launcher", lambda options: begun.append("launcher"))
    monkeypatch.setattr(prefetch, "prepare_host", lambda options: begun.append("host"))
    left = begin(Ahead(native=True, workers=True), Options(), CompileLog())
    assert begun == ["native", "workers", "launcher"]
    begin(left, Options(), CompileLog())
    assert len(begun) == 3
    products = ((torch.float32, torch.device("cuda")),)
    assert begin(Ahead(products=products), Options(), CompileLog()) == Ahead(products=products), "not its own to start"
    begin(Ahead(workers=True), Options(cuda_graphs=True), CompileLog())
    assert begun[3:] == ["workers", "launcher", "host"]
