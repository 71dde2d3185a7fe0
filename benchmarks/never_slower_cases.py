"""What `benchmarks.never_slower` measures: functions that a compiler may well make slower.

A case is something to compile, and a step that calls it: small functions, ones that TorchDynamo breaks into several
graphs, ones that work with NumPy, modules in training, and sizes and arguments that change from call to call.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from burnish.tools.workloads import WORKLOADS

Step = Callable[[], object]
Work = Callable[[Callable[..., Any]], Step]  # of what was compiled, or of the original: one step of the workload


@dataclass(frozen=True)
class Case:
    target: Callable[..., Any]
    work: Work
    grad: bool = False
    dynamic: bool | None = None


class Unavailable(Exception):
    """Something that a case needs is not installed."""


CASES: dict[str, Callable[[], Case]] = {}


def case(build: Callable[[], Case]) -> Callable[[], Case]:
    CASES[build.__name__.replace("_", "-")] = build
    return build


def calls(target: Callable[..., Any], *args: Any, **settings: Any) -> Case:
    """The same call again and again."""
    return Case(target, lambda net: lambda: net(*args), **settings)


def rounds_of(target: Callable[..., Any], arguments: Sequence[Any], **settings: Any) -> Case:
    """A step is one call with each."""

    def work(net: Callable[..., Any]) -> Step:
        def step() -> object:
            for each in arguments:
                net(each)
            return None

        return step

    return Case(target, work, **settings)


def mlp_module(*widths: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for pair in itertools.pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


# -- small ---------------------------------------------------------------------------------------------------------


@case
def mlp() -> Case:
    model, (x,) = WORKLOADS["mlp"].build("full")
    return calls(model, x)


@case
def tiny_mlp() -> Case:
    return calls(mlp_module(8, 16, 4).eval(), torch.randn(1, 8))


@case
def layer_norm() -> Case:
    return calls(nn.LayerNorm(32).eval(), torch.randn(4, 32))


@case
def softmax() -> Case:
    return calls(lambda x: (x.sin() * 2).softmax(-1) + x.mean(-1, keepdim=True), torch.randn(16, 16))


@case
def gru_cell() -> Case:
    torch.manual_seed(0)
    return calls(nn.GRUCell(16, 32).eval(), torch.randn(2, 16), torch.randn(2, 32))


@case
def many_outputs() -> Case:
    return calls(lambda x: [row * i + 1 for i, row in enumerate(x.unbind(0))], torch.randn(16, 8))


@case
def dict_output() -> Case:
    def statistics(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"mean": x.mean(0), "std": x.std(0), "low": x.amin(0), "high": x.amax(0)}

    return calls(statistics, torch.randn(64, 8))


@case
def in_place() -> Case:
    state = torch.zeros(64)

    def update(x: torch.Tensor) -> torch.Tensor:
        state.mul_(0.9).add_(x, alpha=0.1)
        return state

    return calls(update, torch.randn(64))


@case
def embedding_bag() -> Case:
    torch.manual_seed(0)
    return calls(nn.EmbeddingBag(100, 16).eval(), torch.randint(0, 100, (4, 6)))


@case
def small_convolution() -> Case:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()
    return calls(net, torch.randn(1, 3, 16, 16))


@case
def large_matmul() -> Case:
    torch.manual_seed(0)
    weight = torch.randn(512, 512)
    return calls(lambda x: (x @ weight).relu(), torch.randn(256, 512))


@case
def sort_and_gather() -> Case:
    def ranked(x: torch.Tensor) -> torch.Tensor:
        values, order = x.sort(-1)
        return values.cumsum(-1).gather(-1, order)

    return calls(ranked, torch.randn(8, 64))


# -- broken into graphs ----------------------------------------------------------------------------------------------


@case
def item_branches() -> Case:
    torch.manual_seed(0)
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)

    def net(x: torch.Tensor) -> torch.Tensor:
        h = first(x).relu()
        if h.sum().item() > 0:
            h = h * 2
        y = second(h)
        return y + 1 if y.mean().item() > 100 else y.tanh()

    return calls(net, torch.randn(8, 64))


@case
def prints() -> Case:
    def net(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        print(end="")
        return y.cos() * 2

    return calls(net, torch.randn(32, 32))


@case
def to_list() -> Case:
    def longest(x: torch.Tensor) -> torch.Tensor:
        rows = max(x.argmax(-1).tolist())
        return x[: rows + 1].sum(0)

    return calls(longest, torch.randn(16, 16))


@case
def loop_until_small() -> Case:
    def halve(x: torch.Tensor) -> torch.Tensor:
        while x.abs().max().item() > 1:
            x = x * 0.5
        return x

    return calls(halve, torch.full((16,), 30.0))


@case
def nonzero_rows() -> Case:
    return calls(lambda x: x[x.sum(-1) > 0].mean(0), torch.randn(64, 8))


@case
def module_with_logging() -> Case:
    class Logged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.seen = mlp_module(16, 32, 8), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.net(x)
            if math.isnan(float(y[0, 0])):
                raise ValueError("not a number")
            return y

    return calls(Logged().eval(), torch.randn(4, 16))


# -- NumPy ---------------------------------------------------------------------------------------------------------


@case
def numpy_median() -> Case:
    def centred(x: torch.Tensor) -> torch.Tensor:
        values = x.numpy()
        return torch.from_numpy(values - np.median(values))

    return calls(centred, torch.randn(200))


@case
def numpy_statistics() -> Case:
    def normalised(x: Any) -> Any:
        return (x - x.mean(0)) / (x.std(0) + 1e-6)

    return calls(normalised, np.random.default_rng(0).standard_normal((64, 8)))


@case
def numpy_fft() -> Case:
    def spectrum(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.log1p(np.abs(np.fft.rfft(x.numpy()))).astype(np.float32)).relu()

    return calls(spectrum, torch.randn(8, 256))


@case
def numpy_loop() -> Case:
    def smoothed(x: Any) -> Any:
        out = np.empty_like(x)
        value = 0.0
        for i in range(32):
            value = 0.9 * value + 0.1 * float(x[i])
            out[i] = value
        return out

    return calls(smoothed, np.random.default_rng(0).standard_normal(32))


@case
def savgol_filter() -> Case:
    try:
        from scipy.signal import savgol_filter as smooth
    except ImportError:
        raise Unavailable("scipy") from None

    def smoothed(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(smooth(x.numpy(), 11, 3)).relu()

    return calls(smoothed, torch.randn(512))


@case
def numpy_pipeline() -> Case:
    """Windows of a signal: filtered, transformed and normalised in NumPy, scored by a small model."""
    model = mlp_module(129, 32, 4).eval()
    signal = np.random.default_rng(0).standard_normal(4096).astype(np.float32)

    def work(net: Callable[..., Any]) -> Step:
        def step() -> object:
            windows = np.lib.stride_tricks.sliding_window_view(signal, 256)[::64] * np.hanning(256)
            spectrum = np.log1p(np.abs(np.fft.rfft(windows, axis=-1)))
            spectrum = (spectrum - spectrum.mean(0)) / (spectrum.std(0) + 1e-6)
            scores = net(torch.from_numpy(spectrum.astype(np.float32)))
            return np.argsort(scores.numpy(), axis=-1)

        return step

    return Case(model, work)


# -- what changes from call to call ------------------------------------------------------------------------------------


@case
def python_scalars() -> Case:
    x = torch.randn(16, 16)

    def work(net: Callable[..., Any]) -> Step:
        numbers = itertools.count(1)

        def step() -> object:
            i = next(numbers) % 100
            return net(x, 0.1 * i, i)

        return step

    return Case(lambda x, scale, shift: (x * scale + shift).relu(), work)


@case
def growing_list() -> Case:
    def total(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(parts).sum(0) / len(parts)

    part = torch.randn(16)
    return rounds_of(total, [[part] * n for n in range(1, 25)])


@case
def varying_batch() -> Case:
    return rounds_of(mlp_module(32, 64, 8).eval(), [torch.randn(n, 32) for n in range(1, 33)])


@case
def beyond_the_recompile_limit() -> Case:
    sizes = [torch.randn(2 + i % 97, 3 + i % 89) for i in range(200)]
    return rounds_of(lambda x: (x.sin() * 2).softmax(-1) + x.mean(-1, keepdim=True), sizes, dynamic=False)


@case
def small_then_large() -> Case:
    return rounds_of(lambda x: x.remainder(0.7) + x.fmod(0.3), [torch.randn(n, 64) for n in (4, 5, 20000, 4)])


@case
def transposed_sizes() -> Case:
    return rounds_of(lambda x: x.t().contiguous() + 1, [torch.randn(n, 256) for n in (4, 5, 1000)])


@case
def alternating_modes() -> Case:
    """Called under no_grad and in grad mode by turns."""
    model, x = mlp_module(16, 32, 4), torch.randn(8, 16)

    def work(net: Callable[..., Any]) -> Step:
        def step() -> object:
            with torch.no_grad():
                net(x)
            return net(x)

        return step

    return Case(model, work, grad=True)


# -- loops around a model --------------------------------------------------------------------------------------------


@case
def rl_loop() -> Case:
    """Sixteen steps of a cart and its pole, the policy asked at each of them."""
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)).eval()

    def work(net: Callable[..., Any]) -> Step:
        def episode() -> object:
            x, v, angle, spin = 0.0, 0.0, 0.05, 0.0
            for _ in range(16):
                push = 10.0 if int(net(torch.tensor([[x, v, angle, spin]])).argmax()) else -10.0
                sine, cosine = math.sin(angle), math.cos(angle)
                force = (push + 0.05 * spin * spin * sine) / 1.1
                turn = (9.8 * sine - cosine * force) / (0.5 * (4 / 3 - 0.1 * cosine * cosine / 1.1))
                x, v = x + 0.02 * v, v + 0.02 * (force - 0.05 * turn * cosine / 1.1)
                angle, spin = angle + 0.02 * spin, spin + 0.02 * turn
            return angle

        return episode

    return Case(policy, work)


def training(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Case:
    """A step of an optimiser; eager and compiled share the weights, which is nobody's advantage."""
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)

    def work(net: Callable[..., Any]) -> Step:
        def step() -> object:
            optimiser.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            optimiser.step()
            return loss

        return step

    return Case(model, work, grad=True)


@case
def train_tiny_mlp() -> Case:
    return training(mlp_module(8, 16, 4).train(), torch.randn(16, 8), torch.randn(16, 4))


@case
def train_mlp() -> Case:
    return training(mlp_module(64, 256, 256, 8).train(), torch.randn(64, 64), torch.randn(64, 8))


@case
def train_with_dropout_and_norm() -> Case:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4)).train()
    return training(net, torch.randn(32, 32), torch.randn(32, 4))


@case
def train_broken() -> Case:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = mlp_module(16, 32), mlp_module(32, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.first(x)
            if h.detach().mean().item() > 100:
                h = h * 0.5
            return self.second(h.relu())

    torch.manual_seed(0)
    return training(Broken().train(), torch.randn(16, 16), torch.randn(16, 4))
