"""What a compiled program assumes, violated on the device: in every mode, open and sealed, eager's results."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

import burnish
from burnish.device import gpu_of
from tests.gpu.on_device import DEVICE

pytestmark = pytest.mark.gpu
MODES = pytest.mark.parametrize("mode", ["default", "reduce-overhead"])


def _compiled(target: Any, mode: str, **options: Any) -> Any:
    return burnish.compile(
        target, options={"gate": False, "verify": "off", "cuda_graphs": mode != "default", **options}
    )


def _close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10)).to(DEVICE)


def _convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)).to(DEVICE)


def _gradients(model: Any, net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    net.zero_grad()
    model(x).square().sum().backward()
    return [p.grad.clone() for p in net.parameters()]


SLICES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[Callable[[torch.Tensor], torch.Tensor]]]] = {
    "rows": (_mlp, (256, 64), [lambda z: z[:16].clone(), lambda z: z[32:48], lambda z: z[5:21]]),
    "columns": (_mlp, (16, 256), [lambda z: z[:, 64:128], lambda z: z[:, 3:67], lambda z: z[:, :64]]),
    "images": (_convolutions, (8, 4, 16, 16), [lambda z: z[:2].clone(), lambda z: z[3:5], lambda z: z[1:3]]),
}


@MODES
@pytest.mark.parametrize("name", SLICES)
def test_gradients_of_slices(name, mode):
    make, shape, slices = SLICES[name]
    data, eager = torch.randn(shape, device=DEVICE), make()
    net = copy.deepcopy(eager)
    compiled = _compiled(net, mode)
    for take in (*slices, *slices, *reversed(slices)):
        _close(_gradients(compiled, net, take(data)), _gradients(eager, eager, take(data)))


@MODES
@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
def test_written_inputs_that_overlap(mode, sealed):
    def both(x, y):
        x.add_(1)
        y.mul_(2)
        return x + y

    compiled = _compiled(both, mode)

    def check(first: slice, second: slice) -> None:
        theirs, ours = (torch.arange(64.0, device=DEVICE) for _ in range(2))
        want, got = both(theirs[first], theirs[second]), compiled(ours[first], ours[second])
        _close((got, ours), (want, theirs))

    for _ in range(4):
        check(slice(0, 32), slice(32, 64))
    if sealed:
        burnish.seal(compiled)
    for first, second in ((0, 32), (0, 16), (20, 8), (0, 32), (16, 0)):
        check(slice(first, first + 32), slice(second, second + 32))


@MODES
def test_lazily_negated_inputs(mode):
    fn = lambda x: ((x * 2).sin(), x + 1)  # noqa: E731
    compiled, plain = _compiled(fn, mode), torch.arange(64.0, device=DEVICE)
    for x in (plain, torch._neg_view(plain), torch.complex(plain, plain).conj().imag, plain):
        for _ in range(4):  # CUDA graphs run plainly, then are captured, then replayed
            x = x.clone(memory_format=torch.preserve_format) if not x.is_neg() else torch._neg_view(-x)
            _close(compiled(x), fn(x))


@MODES
def test_results_whose_elements_share_memory(mode):
    fn = lambda x: (x.sum(0, keepdim=True).expand(4, 3, 8), x.amax(1).unsqueeze(-1).expand(3, 5))  # noqa: E731
    compiled = _compiled(fn, mode)
    for _ in range(5):
        x = torch.randn(3, 8, device=DEVICE)
        _close(compiled(x), fn(x))
        assert [y.stride() for y in compiled(x)] == [y.stride() for y in fn(x)]


@MODES
def test_written_arguments_whose_elements_share_memory(mode):
    def fn(x, y):
        x[0].add_(y)
        return x * 2

    compiled = _compiled(fn, mode)
    for _ in range(5):
        ours, y = torch.randn(2, 8, device=DEVICE), torch.randn(8, device=DEVICE)
        theirs = ours.clone()
        _close((compiled(ours[:1].expand(3, 8), y), ours), (fn(theirs[:1].expand(3, 8), y), theirs))


def _replace_data(net: Any) -> None:
    net[0].weight.data = torch.randn(64, 64, device=DEVICE).t()


def _other_type(net: Any) -> None:
    net.half()


def _assigned(net: Any) -> None:
    net.load_state_dict({name: torch.randn_like(value) for name, value in net.state_dict().items()}, assign=True)


def _replace_parameter(net: Any) -> None:
    net[0].weight = nn.Parameter(torch.randn(64, 64, device=DEVICE))


def _smaller(net: Any) -> None:
    net[3].weight.data, net[3].bias.data = torch.randn(3, 64, device=DEVICE), torch.randn(3, device=DEVICE)


CHANGES = [_replace_data, _other_type, _assigned, _replace_parameter, _smaller]


@MODES
@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_become_others(change, sealed, mode):
    net = _mlp().eval()
    compiled = _compiled(net, mode)
    with torch.no_grad():
        x = torch.randn(32, 64, device=DEVICE)
        for _ in range(4):
            compiled(x)
        if sealed:
            burnish.seal(compiled)
            compiled(x), compiled(x)
        change(net)
        x = x.to(net[0].weight.dtype)
        for _ in range(3):
            _close(compiled(x), net(x))


@MODES
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradient_penalty(dropout, mode):
    def penalised(model: Any, net: Any, seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        x = torch.randn(8, 64, device=DEVICE, requires_grad=True)
        value = model(x).square().sum()
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        loss = value + (gradient.norm(dim=1) - 1).square().mean()
        return list(torch.autograd.grad(loss, [net[0].weight, net[-1].weight]))

    eager = nn.Sequential(nn.Linear(64, 32), nn.Dropout(dropout), nn.Tanh(), nn.Linear(32, 4)).to(DEVICE)
    net = copy.deepcopy(eager)
    compiled = _compiled(net, mode)
    for seed in range(3):
        _close(penalised(compiled, net, seed), penalised(eager, eager, seed))


@MODES
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_checkpointing(inside, reentrant, mode):
    how = functools.partial(checkpoint, use_reentrant=reentrant)
    eager = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.3), nn.Tanh(), nn.Linear(64, 64)).to(DEVICE)
    net = copy.deepcopy(eager)
    if inside:
        compiled = _compiled(lambda x: how(net, x), mode)
    else:
        compiled = functools.partial(how, _compiled(net, mode))

    def step(model: Any, own: nn.Module, seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        own.zero_grad()
        x = torch.randn(16, 64, device=DEVICE, requires_grad=True)
        model(x).square().sum().backward()
        return [x.grad, *(p.grad.clone() for p in own.parameters())]

    for seed in range(4):
        _close(step(compiled, net, seed), step(functools.partial(how, eager), eager, seed))


@MODES
def test_tensors_saved_on_the_cpu(mode):
    eager = _mlp()
    net = copy.deepcopy(eager)
    compiled = _compiled(net, mode)

    def offloaded(model: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            with save_on_cpu():
                return model(x)

        return run

    for _ in range(3):
        x = torch.randn(64, 16, device=DEVICE).t()
        _close(_gradients(offloaded(compiled), net, x), _gradients(offloaded(eager), eager, x))


def test_the_device_is_described_as_it_is():
    found, properties = gpu_of(torch.device(DEVICE)), torch.cuda.get_device_properties(0)
    assert found.multiprocessors == properties.multi_processor_count
    assert found.capability == (properties.major, properties.minor)
    assert found.shared_memory > 48 << 10 and found.l2_cache > 1 << 20
