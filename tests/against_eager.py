"""Run something compiled and in eager on equal inputs, and judge the compiled results with float64 as the referee.

A result is right when its type, shape and strides are eager's, it is not finite exactly where eager's is not, and its
error against float64 is at most twice eager's own, or within EPSILON of its type.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils import _pytree as pytree

import burnish
from burnish.errors import FallbackWarning
from burnish.stats import Stats
from burnish.trust.strictness import TESTS

# Relative to 1 + |value|: a few units in the last place, so that another order of summing the same numbers passes.
EPSILON = {
    torch.float64: 1e-14,
    torch.float32: 4e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}


def check(
    fn: Callable[..., Any],
    *args: Any,
    compiles: int = 1,
    mode: Callable[[], AbstractContextManager[Any]] = nullcontext,
    strides: bool = True,
    **options: Any,
) -> Stats:
    """Call `fn` compiled and in eager on copies of `args`: results and what became of the arguments must agree."""
    compiled = burnish.compile(fn, **options)
    agree(compiled, fn, *args, mode=mode, strides=strides)
    return served_by_us(compiled, compiles)


def agree(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    *args: Any,
    mode: Callable[[], AbstractContextManager[Any]] = nullcontext,
    strides: bool = True,
    referee: Callable[..., Any] | None = None,
) -> None:
    """One call of each. Gradients of arguments that ask for them, and the arguments afterwards, are compared, too.

    The referee is `eager` on float64 arguments in the same mode, or what is given, outside it."""
    got, want = (_outcome(fn, _copied(args), mode) for fn in (compiled, eager))
    try:
        truth = _outcome(referee or eager, _widened(args), nullcontext if referee else mode)
    except (RuntimeError, TypeError):  # no float64 kernel, or types that must not be widened: eager is the referee
        truth = want
    assert_same_tensors(got, want, truth, strides=strides)


def served_by_us(compiled: Callable[..., Any], compiles: int = 1) -> Stats:
    """No graph was left to eager, and as many were compiled as expected."""
    stats = burnish.stats(compiled)
    assert stats.fallbacks == (), stats
    assert stats.compiles == compiles, stats
    return stats


def assert_same_tensors(
    got: Sequence[torch.Tensor], want: Sequence[torch.Tensor], truth: Sequence[torch.Tensor], *, strides: bool = True
) -> None:
    assert len(got) == len(want), f"{len(got)} tensors, eager has {len(want)}"
    for k, (ours, theirs, exact) in enumerate(zip(got, want, truth, strict=True)):
        problem = difference(ours, theirs, exact, strides=strides)
        assert not problem, f"tensor {k}: {problem}"


def difference(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, *, strides: bool = True) -> str:
    """What is wrong with `ours`, or an empty string."""
    for what in ("dtype", "shape", "requires_grad"):
        if getattr(ours, what) != getattr(theirs, what):
            return f"{what} is {getattr(ours, what)}, eager's {getattr(theirs, what)}"
    if strides and _strides(ours) != _strides(theirs):
        return f"strides are {_strides(ours)}, eager's {_strides(theirs)}"
    ours, theirs, exact = ours.detach(), theirs.detach(), exact.detach()
    if not theirs.is_floating_point():
        wrong = int((ours != theirs).sum())
        return f"{wrong} of {theirs.numel()} elements differ" if wrong else ""
    epsilon = EPSILON[theirs.dtype]
    ours, theirs, exact = ours.double(), theirs.double(), exact.double()
    finite = theirs.isfinite()
    if not torch.equal(finite, ours.isfinite()):
        return f"{int((~ours.isfinite()).sum())} elements are not finite, eager has {int((~finite).sum())}"
    if not torch.equal(ours[~finite].nan_to_num(), theirs[~finite].nan_to_num()):
        return "infinities or NaNs are not eager's"
    exact = torch.where(exact.isfinite() & finite, exact, theirs)  # what overflows in eager does not in the referee
    ours, theirs, exact = ours[finite], theirs[finite], exact[finite]
    error, eagers = (ours - exact).abs(), (theirs - exact).abs()
    most = TESTS.worst * eagers.amax() if eagers.numel() else torch.zeros(())
    allowed = torch.maximum(epsilon * (1 + exact.abs()), most)
    if (error <= allowed).all():
        return ""
    worst = int((error - allowed).argmax())
    return f"error {error[worst]:.3g} at a value of {exact[worst]:.6g}, eager's largest is {eagers.amax():.3g}"


def fallback_warnings(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """The call's result, and the texts of the warnings that say eager takes over."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, [str(entry.message) for entry in caught if entry.category is FallbackWarning]


def trained(model: torch.nn.Module, step: Callable[[torch.nn.Module], torch.Tensor]) -> list[torch.Tensor]:
    """The loss of one step, the gradients it leaves and the buffers it changes."""
    model.zero_grad(set_to_none=True)
    loss = step(model)
    loss.backward()  # type: ignore[no-untyped-call]
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [tensor.detach().clone() for tensor in (loss, *grads, *model.buffers())]


def check_training(
    model: torch.nn.Module, *inputs: Any, compiles: int = 1, steps: int = 1, strides: bool = False, **options: Any
) -> Stats:
    """Forward and backward of a loss over all results: loss, gradients and buffers are eager's."""
    twin, referee = copy.deepcopy(model), copy.deepcopy(model).double()
    compiled = burnish.compile(model, **options)
    for _ in range(steps):
        seed = torch.randint(1 << 30, ()).item()
        outcomes = []
        for net, args in ((compiled, inputs), (twin, inputs), (referee, _widened(inputs))):
            torch.manual_seed(int(seed))
            outcomes.append(trained(net, lambda net, args=args: loss_of(net(*args))))
        assert_same_tensors(*outcomes, strides=strides)
    return served_by_us(compiled, compiles)


def loss_of(results: Any) -> torch.Tensor:
    """A number that depends on every element of every result, each in its own way."""
    total = torch.zeros(())
    for tensor in pytree.tree_leaves(results):
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            weight = torch.linspace(0.5, 1.5, tensor.numel(), dtype=tensor.dtype, device=tensor.device)
            total = total.to(tensor.device) + (tensor * weight.reshape(tensor.shape)).sum() / max(tensor.numel(), 1)
    return total


def whole_copies(schedule: str, smallest: int) -> list[str]:
    """Loop kernels of a printed schedule that read memory and write `smallest` elements or more."""
    found = []
    for kernel in schedule.split("\nkernel ")[1:]:
        points = 1
        for axis in kernel.split("[", 1)[1].split("]", 1)[0].split(", "):
            points *= int(axis.split("<")[1].split()[0]) if "<" in axis and "reduce" not in axis else 1
        if " load " in kernel and " contract " not in kernel and points >= smallest:
            found.append(kernel)
    return found


def _outcome(
    fn: Callable[..., Any], args: tuple[Any, ...], mode: Callable[[], AbstractContextManager[Any]]
) -> list[torch.Tensor]:
    """Results, then gradients, then the arguments as the call left them."""
    torch.manual_seed(11)
    with mode():
        results = [t for t in pytree.tree_leaves(fn(*args)) if isinstance(t, torch.Tensor)]
    tensors = [t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
    wanted = [t for t in tensors if t.requires_grad and t.is_leaf]
    roots = [t for t in results if t.requires_grad]
    grads: list[torch.Tensor] = []
    if wanted and roots:
        found = torch.autograd.grad(loss_of(roots), wanted, allow_unused=True)
        grads = [torch.zeros(()) if grad is None else grad.contiguous() for grad in found]  # any strides will do
    return [*results, *grads, *tensors]


def _copied(value: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, _copy, value)


def _copy(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    dtype = dtype or tensor.dtype
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=tensor.device)
    if tensor.numel() and not _overlapping(tensor):
        copy.copy_(tensor.detach())
    elif tensor.numel():  # an expanded tensor: fill the storage it looks at
        extent = 1 + sum((d - 1) * s for d, s in zip(tensor.shape, tensor.stride(), strict=True))
        window = tensor.detach().as_strided((extent,), (1,))
        copy.as_strided((extent,), (1,)).copy_(window)
    return copy.requires_grad_(tensor.requires_grad)


def _overlapping(tensor: torch.Tensor) -> bool:
    return any(s == 0 and d > 1 for d, s in zip(tensor.shape, tensor.stride(), strict=True))


def _widened(value: Any) -> Any:
    def widen(tensor: torch.Tensor) -> torch.Tensor:
        return _copy(tensor, torch.float64 if tensor.is_floating_point() else tensor.dtype)

    return pytree.tree_map_only(torch.Tensor, widen, value)


def _strides(tensor: torch.Tensor) -> list[int]:
    """Strides that matter: those of dimensions with more than one element, in a tensor that has any."""
    if tensor.numel() == 0:
        return []
    return [s for d, s in zip(tensor.shape, tensor.stride(), strict=True) if d != 1]
