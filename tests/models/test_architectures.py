"""Many architectures, inference and training: eager's numbers, one graph each, nothing left to eager.

Parity is judged against float64: the error of every result and gradient is at most twice eager's, or within EPSILON of
the larger of its own scale and a hundredth of the largest (a gradient that is zero in exact arithmetic is only noise).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import burnish
from burnish.stats import Stats
from burnish.tools.parity import outcome, reference
from burnish.tools.targets import Target
from tests.against_eager import loss_of
from tests.models.zoo import ARCHITECTURES

EPSILON = 5e-6


class TrainingStep(nn.Module):
    """The model with a loss that every one of its results enters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return loss_of([value for value in self.model(**inputs).values() if isinstance(value, torch.Tensor)])


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_inference(name: str, record_property: Callable[[str, object], None]) -> None:
    target = build(name, "inference")
    compiled = compiled_by_us(target.model)
    judge(target, compiled)
    check_stats(burnish.stats(compiled), {"inference"}, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_training(name: str, record_property: Callable[[str, object], None]) -> None:
    target = build(name, "train")
    compiled = compiled_by_us(target.model)
    judge(target, compiled)
    kinds = {"forward", "backward"}
    check_stats(burnish.stats(compiled), kinds, record_property, whole=not ARCHITECTURES[name].draws_layers)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "llama", "vit", "resnet", "t5", "mamba"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_inference_in_half_types(name: str, dtype: torch.dtype, record_property: Callable[[str, object], None]) -> None:
    target = build(name, "inference", dtype)
    compiled = compiled_by_us(target.model)
    judge(target, compiled, epsilon=float(torch.finfo(dtype).eps))
    check_stats(burnish.stats(compiled), {"inference"}, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "llama", "gpt2", "vit", "t5"])
def test_sizes_that_change(name: str, record_property: Callable[[str, object], None]) -> None:
    """One compile serves every batch and length."""
    target = build(name, "inference")
    compiled = compiled_by_us(target.model, dynamic=True)
    for batch, length in ((2, 7), (3, 5), (5, 11)):
        inputs = {key: resized(value, batch, length) for key, value in target.inputs.items()}  # type: ignore[union-attr]
        judge(dataclasses.replace(target, inputs=inputs), compiled)
    check_stats(burnish.stats(compiled), {"inference"}, record_property)


def compiled_by_us(model: Any, **settings: Any) -> Any:
    """As shipped, but for the gate: these tests judge what the compiler computes, so eager must not serve."""
    return burnish.compile(model, gate=False, **settings)


def resized(tensor: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """More or fewer rows and, for text, tokens: the ones there are, over and over."""
    tensor = tensor[torch.arange(batch) % tensor.shape[0]]
    return tensor[:, torch.arange(length) % tensor.shape[1]] if tensor.dim() == 2 else tensor


def build(name: str, kind: Any, dtype: torch.dtype = torch.float32) -> Target:
    torch.manual_seed(0)
    model, inputs = ARCHITECTURES[name].make()
    model.to(dtype)
    inputs = {key: value.to(dtype) if value.is_floating_point() else value for key, value in inputs.items()}
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    if kind == "inference":
        return Target(name, model.eval(), inputs, kind)
    use_experts(model, "batched_mm")  # the gradient of the grouped product reads sizes from data: nothing captures it
    return Target(name, TrainingStep(model).train(), inputs, kind)


def judge(target: Target, compiled: Callable[..., Any], epsilon: float = EPSILON) -> None:
    state = copy.deepcopy(target.model.state_dict())  # type: ignore[attr-defined]
    truth = reference(dataclasses.replace(target, model=plain(target.model)))
    ours = outcome(target, compiled)
    target.model.load_state_dict(state)  # type: ignore[attr-defined]  # a training step moves running statistics
    theirs = outcome(target)
    for k, (mine, eagers) in enumerate(zip(errors(ours, truth), errors(theirs, truth), strict=True)):
        assert mine <= max(2 * eagers, epsilon), f"tensor {k} of {len(truth)}: error {mine:.2g}, eager's {eagers:.2g}"


def plain(model: Any) -> Any:
    """A copy for the referee: the fast product over grouped experts has no float64."""
    model = copy.deepcopy(model)
    use_experts(model, "eager")
    return model


def use_experts(model: nn.Module, implementation: str) -> None:
    for module in model.modules():
        if getattr(getattr(module, "config", None), "_experts_implementation", None) is not None:
            module.config._experts_implementation = implementation


def errors(tensors: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> list[float]:
    """The largest error in each tensor, relative to its largest value or a hundredth of the largest of all."""
    assert [t.shape for t in tensors] == [t.shape for t in truth]
    scales = [float(t.abs().max()) if t.numel() else 0.0 for t in truth]
    floor = max(1e-2 * max(scales), torch.finfo(torch.float32).tiny)
    found = []
    for tensor, exact, scale in zip(tensors, truth, scales, strict=True):
        error = (tensor.double() - exact.double()).abs()
        assert not error.isnan().any()
        found.append(float(error.max()) / max(scale, floor) if error.numel() else 0.0)
    return found


def check_stats(stats: Stats, kinds: set[str], report: Callable[[str, object], None], *, whole: bool = True) -> None:
    assert stats.fallbacks == () and stats.kernels > 0, stats
    if whole:
        assert stats.compiles == 1 and stats.graph_breaks == () and stats.recompiles == (), stats
        assert stats.graphs == dict.fromkeys(kinds, 1)
    else:
        assert stats.compiles > 1 and stats.graph_breaks, "it is whole after all"
    report("aten_calls", dict(stats.aten_calls))  # `pytest --junitxml` lists them
