"""What autograd offers around a compiled graph: gradients of gradients, checkpointing, hooks on saved tensors."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import burnish
from burnish.torch_private.dynamo import debug_get_cache_entry_list
from burnish.torch_private.versions import is_at_least

FORCED = {"gate": False, "verify": "off"}


class Net(nn.Module):
    """Several results, some of them views; optionally with state that a call changes, or random numbers."""

    def __init__(self, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 1)
        self.norm = nn.BatchNorm1d(32, affine=False) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.drop(torch.tanh(self.norm(self.a(x))))
        h = h * torch.sigmoid(h) + F.gelu(h)
        return self.b(h), h[:, :3], h.t()


def _penalised(model: Any, net: nn.Module, x: torch.Tensor, seed: int) -> list[torch.Tensor]:
    """A gradient penalty: the gradients of a loss that has gradients in it."""
    torch.manual_seed(seed)
    x = x.clone().requires_grad_()
    results = model(x)
    value = sum(result.square().sum() for result in results)
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    loss = value + 10 * (gradient.norm(dim=1) - 1).square().mean()
    weights = [net.a.weight, net.b.weight, net.b.bias]
    return [gradient.detach(), *torch.autograd.grad(loss, weights)]


@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
@pytest.mark.parametrize(("norm", "dropout"), [(False, 0.0), (True, 0.0), (False, 0.5)], ids=["plain", "norm", "draws"])
def test_gradient_penalty(options, norm, dropout):
    eager = Net(norm, dropout)
    net = copy.deepcopy(eager)
    compiled = burnish.compile(net, options=options)
    for seed in range(3):
        x = torch.randn(8, 16)
        torch.testing.assert_close(
            _penalised(compiled, net, x, seed), _penalised(eager, eager, x, seed), rtol=1e-4, atol=1e-4
        )
    torch.testing.assert_close(dict(net.named_buffers()), dict(eager.named_buffers()))
    assert burnish.stats(compiled).compiles == 1


def test_third_derivatives():
    fn = lambda x: (x.sin() * x).sum()  # noqa: E731

    def third(f: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        x = torch.linspace(-1, 1, 8, requires_grad=True)
        value = f(x)
        for _ in range(2):
            (gradient,) = torch.autograd.grad(value, x, create_graph=True)
            value = gradient.sum()
        return torch.autograd.grad(value, x)[0]

    torch.testing.assert_close(third(burnish.compile(fn, options=FORCED)), third(fn))


def test_a_recorded_backward_that_is_not_differentiated():
    fn = lambda x, w: (x @ w).relu().sum()  # noqa: E731

    def gradients(f: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        x, w = torch.randn(4, 3, requires_grad=True), torch.randn(3, 5, requires_grad=True)
        found = torch.autograd.grad(f(x, w), (x, w), create_graph=True)
        assert all(gradient.requires_grad for gradient in found)
        return tuple(gradient.detach() for gradient in found)

    torch.testing.assert_close(gradients(burnish.compile(fn, options=FORCED)), gradients(fn))


def _changes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 2
    x.mul_(3)
    return (y * x * w).sum(1)


@pytest.mark.parametrize("recorded", [False, True])
def test_an_input_that_is_changed_and_needed(recorded):
    def gradients(f: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        start, w = torch.randn(4, 16, requires_grad=True), torch.randn(16, requires_grad=True)
        x = start * 1
        value = f(x, w).sum()
        if recorded:
            (gradient,) = torch.autograd.grad(value, w, create_graph=True)
            value = gradient.square().sum()
        return torch.autograd.grad(value + x.sum(), [start])

    torch.testing.assert_close(gradients(burnish.compile(_changes, options=FORCED)), gradients(_changes))


def test_a_buffer_that_is_changed_and_needed():
    class Codebook(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.ones(16))
            self.linear = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x) * self.seen.clone()
            self.seen.mul_(0.9).add_(y.detach().mean(0))
            return y.square().sum(1)

    def penalty(model: Any, net: Any) -> torch.Tensor:
        x = torch.ones(4, 16, requires_grad=True)
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), net.linear.weight)[0]

    eager = Codebook()
    net = copy.deepcopy(eager)
    compiled = burnish.compile(net, options=FORCED)
    for _ in range(2):
        torch.testing.assert_close(penalty(compiled, net), penalty(eager, eager))
        torch.testing.assert_close(net.seen, eager.seen)


def test_second_derivatives_of_a_view_of_what_is_a_view_only_when_traced():
    """A product with a vector is one of matrices, less a dimension: eager's has a memory of its own."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x @ torch.stack([x, x * x], 0).mT
        return y, y[..., :1]

    def second(f: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> torch.Tensor:
        x = torch.tensor([2.0, 3.0], requires_grad=True)
        value, view = f(x)
        (gradient,) = torch.autograd.grad((value * value).sum() + view.sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.sum(), x)[0]

    torch.testing.assert_close(second(burnish.compile(fn, options=FORCED)), second(fn))


def test_two_backwards_through_one_graph():
    eager = Net()
    net = copy.deepcopy(eager)
    compiled = burnish.compile(net, options=FORCED)
    x = torch.randn(8, 16)
    for _ in range(2):
        for model, own in ((compiled, net), (eager, eager)):
            own.zero_grad()
            value = model(x)[0].sum()
            value.backward(retain_graph=True)
            value.backward()
        torch.testing.assert_close(net.a.weight.grad, eager.a.weight.grad)


def test_a_graph_that_is_kept_after_one_that_was_not():
    compiled = burnish.compile(torch.dist, options=FORCED)
    for keep in (False, True, False):
        a, b = (torch.randn(4, requires_grad=True) for _ in range(2))
        value = compiled(a, b)
        value.backward(retain_graph=keep)
        (want,) = torch.autograd.grad(torch.dist(a, b), a)
        torch.testing.assert_close(a.grad, want)


def test_inputs_are_let_go_after_the_backward():
    import weakref

    compiled = burnish.compile(lambda x, w: (x * w).relu(), options=FORCED)
    w = torch.randn(8, requires_grad=True)
    x = torch.randn(8)
    seen = weakref.ref(x)
    loss = compiled(x, w).sum()
    del x
    loss.backward()
    assert seen() is None


def _zeroed(x: torch.Tensor) -> None:
    x.zero_()


def _reshaped(x: torch.Tensor) -> None:
    x.unsqueeze_(0)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("change", [_zeroed, _reshaped])
def test_an_input_that_eager_has_not_saved_is_changed_before_the_backward(change, recorded):
    fn = lambda x, w: x + w * w  # noqa: E731

    def gradients(f: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        x, w = torch.ones(4), torch.full((4,), 3.0, requires_grad=True)
        value = f(x, w).sum()
        change(x)
        (gradient,) = torch.autograd.grad(value, w, create_graph=recorded)
        return [gradient.detach(), *(torch.autograd.grad(gradient.sum(), w) if recorded else ())]

    torch.testing.assert_close(gradients(burnish.compile(fn, options=FORCED)), gradients(fn))


def test_a_call_that_gives_an_input_another_shape():
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x + w * w
        x.unsqueeze_(0)
        return y

    compiled = burnish.compile(fn, options=FORCED)
    x, w = torch.ones(4), torch.full((4,), 3.0, requires_grad=True)
    compiled(x, w).sum().backward()
    torch.testing.assert_close((x.shape, w.grad), (torch.Size([1, 4]), 2 * w.detach()))


# -- whose tensors the results are --------------------------------------------------------------------------------


def _view_of_input(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        view = x.t()
    return view, x * 2


def _view_of_intermediate(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    with torch.no_grad():
        view = y.t()
    return view, y


@pytest.mark.parametrize("of_a_view", [False, True])
@pytest.mark.parametrize("fn", [_view_of_input, _view_of_intermediate])
def test_a_view_made_under_no_grad_has_no_history(fn, of_a_view):
    def seen(f: Callable[..., tuple[torch.Tensor, ...]]) -> tuple[Any, ...]:
        x = torch.arange(6.0).reshape(2, 3) if of_a_view else torch.ones(2, 3)
        view, _ = f(x.requires_grad_())
        requires = view.requires_grad
        if requires:
            view.sum().backward()
        return requires, view.grad_fn, x.grad

    compiled = burnish.compile(fn, options=FORCED)
    assert seen(compiled) == seen(fn)
    compiled.burnish.seal()
    assert seen(compiled) == seen(fn)


@pytest.mark.parametrize("grad", [False, True])
def test_a_dropout_in_evaluation_returns_its_argument(grad):
    compiled = burnish.compile(nn.Sequential(nn.Dropout(0.3), nn.Dropout(0.0)).eval(), options=FORCED)
    x = torch.randn(4, requires_grad=grad)
    assert compiled(x) is x


def test_a_change_of_what_an_idle_dropout_returns_is_one_of_its_argument():
    compiled = burnish.compile(lambda x: F.dropout(x, 0.5, training=False).add_(1), options=FORCED)
    x = torch.zeros(4)
    compiled(x)
    torch.testing.assert_close(x, torch.ones(4))


# -- checkpointing ------------------------------------------------------------------------------------------------


def _blocks(dropout: float) -> list[nn.Module]:
    return [
        nn.Sequential(nn.Linear(16, 16), nn.Dropout(dropout), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 16))
        for _ in range(2)
    ]


class Checkpointed(nn.Module):
    def __init__(self, blocks: list[nn.Module], how: Callable[..., Any]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.how(block, x)
        return x


def _policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = op is torch.ops.aten.addmm.default
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


WAYS: dict[str, Callable[..., Any]] = {
    "plain": functools.partial(checkpoint, use_reentrant=False),
    "reentrant": functools.partial(checkpoint, use_reentrant=True),
    "selective": functools.partial(
        checkpoint,
        use_reentrant=False,
        context_fn=functools.partial(create_selective_checkpoint_contexts, _policy),
    ),
}


def _step(model: Any, blocks: list[nn.Module], x: torch.Tensor, seed: int) -> list[torch.Tensor]:
    for block in blocks:
        block.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(seed)
    result = model(x)
    result.square().sum().backward()
    return [result.detach(), x.grad, *(p.grad.clone() for block in blocks for p in block.parameters())]


@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
def test_checkpointing_an_inference_tensor(options):
    def fn(x):
        return checkpoint(lambda t: t.exp() + t, x, use_reentrant=True)

    with torch.inference_mode():
        x = torch.ones(3)
    assert torch.equal(burnish.compile(fn, options=options)(x), fn(x))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("inside", [False, True], ids=["around compiled blocks", "inside a compiled model"])
@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
def test_checkpointing(way, inside, options):
    """Dropout is in it: what is run again in the backward must draw what the forward drew."""
    blocks = _blocks(0.3)
    ours = copy.deepcopy(blocks)
    eager = Checkpointed(blocks, WAYS[way])
    if inside:
        compiled = burnish.compile(Checkpointed(ours, WAYS[way]), options=options)
    else:
        compiled = Checkpointed([burnish.compile(block, options=options) for block in ours], WAYS[way])
    for seed in range(3):
        x = torch.randn(8, 16)
        torch.testing.assert_close(_step(compiled, ours, x, seed), _step(eager, blocks, x, seed), rtol=1e-4, atol=1e-5)


def test_a_rollback_between_the_forward_and_what_is_run_again():
    """The two save different things: who began must finish."""
    (block, _) = _blocks(0.0)
    net = copy.deepcopy(block)
    compiled = burnish.compile(net, options=FORCED)
    run = functools.partial(checkpoint, compiled, use_reentrant=False)
    x = torch.randn(8, 16, requires_grad=True)
    run(x).sum().backward()
    x.grad = None
    result = run(x)
    compiled.burnish.rollback()
    result.sum().backward()
    (want,) = torch.autograd.grad(block(x).sum(), x)
    torch.testing.assert_close(x.grad, want)


def _gradient_of(result: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    (found,) = torch.autograd.grad(result.sum(), x)
    return found


def test_another_graph_fits_what_is_run_again():
    """Other sizes came in between, and a graph for all of them that Dynamo asks first."""
    (block, _) = _blocks(0.0)
    net = copy.deepcopy(block)
    compiled = burnish.compile(net, options=FORCED)
    x = torch.randn(8, 16, requires_grad=True)
    result = checkpoint(compiled, x, use_reentrant=False)
    for rows in (4, 6, 8):
        compiled(torch.randn(rows, 16)).sum().backward()
    torch.testing.assert_close(_gradient_of(result, x), _gradient_of(block(x), x))
    assert burnish.stats(compiled).compiles == 2


def test_compiled_between_the_forward_and_what_is_run_again():
    """Eager began: eager must finish, although there is a graph by now."""
    (block, _) = _blocks(0.0)
    net = copy.deepcopy(block)
    compiled = burnish.compile(net, options=FORCED)
    x = torch.randn(8, 16, requires_grad=True)
    with torch.compiler.set_stance("force_eager"):
        result = checkpoint(compiled, x, use_reentrant=False)
    compiled(x).sum().backward()
    torch.testing.assert_close(_gradient_of(result, x), _gradient_of(block(x), x))


def test_what_is_run_again_of_an_eager_forward_compiles_nothing():
    (block, _) = _blocks(0.0)
    net = copy.deepcopy(block)
    compiled = burnish.compile(net, options=FORCED)
    x = torch.randn(8, 16, requires_grad=True)
    with torch.compiler.set_stance("force_eager"):
        result = checkpoint(compiled, x, use_reentrant=False)
    torch.testing.assert_close(_gradient_of(result, x), _gradient_of(block(x), x))
    assert burnish.stats(compiled).compiles == 0


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
@pytest.mark.parametrize("way", ["plain", "selective"])
def test_another_thread_traces_while_a_part_is_run_again(way, sealed, monkeypatch):
    """By torch.fx, whose flag is the process's: calls are eager's then, but not what compiled code began."""
    (block, _) = _blocks(0.0)
    net = copy.deepcopy(block)
    compiled = burnish.compile(net, options=FORCED)
    x = torch.randn(8, 16, requires_grad=True)
    compiled(x).sum().backward()
    if sealed:
        burnish.seal(compiled)
    result = WAYS[way](compiled, x)
    with monkeypatch.context() as patch:
        if is_at_least(2, 14):  # which has a flag for each thread
            patch.setattr(torch.fx._symbolic_trace._is_fx_tracing_tls, "flag", True, raising=False)
        else:
            patch.setattr(torch.fx._symbolic_trace, "_is_fx_tracing_flag", True)
        found = _gradient_of(result, x)
    torch.testing.assert_close(found, _gradient_of(block(x), x))


def test_a_stance_between_the_forward_and_what_is_run_again():
    (block, _) = _blocks(0.0)
    net = copy.deepcopy(block)
    compiled = burnish.compile(net, options=FORCED)
    x = torch.randn(8, 16, requires_grad=True)
    result = checkpoint(compiled, x, use_reentrant=False)
    with torch.compiler.set_stance("force_eager"):
        found = _gradient_of(result, x)
    torch.testing.assert_close(found, _gradient_of(block(x), x))


@pytest.mark.parametrize("way", ["plain", "selective"])
def test_dynamo_misses_once_what_is_run_again(way):
    """Its list of what is compiled may be searched in vain while another thread changes it."""
    (block, _) = _blocks(0.0)
    net = copy.deepcopy(block)
    compiled = burnish.compile(net, options=FORCED)
    x = torch.randn(8, 16, requires_grad=True)
    compiled(x)
    misses = iter(())
    for entry in debug_get_cache_entry_list(compiled.burnish.entrance._compiled[0].__code__):
        entry.guard_manager.root.add_lambda_guard(lambda _: next(misses, True), ["misses once"], None)
    result = WAYS[way](compiled, x)
    misses = iter([False])
    torch.testing.assert_close(_gradient_of(result, x), _gradient_of(block(x), x))
    assert next(misses, None) is None


# -- hooks on saved tensors ---------------------------------------------------------------------------------------

HOOKS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "save_on_cpu": lambda: save_on_cpu(),
    "clones": lambda: saved_tensors_hooks(torch.clone, lambda x: x),
    "other strides": lambda: saved_tensors_hooks(
        lambda x: x, lambda x: x.t().contiguous().t() if x.dim() == 2 else x.clone()
    ),
    "another type in between": lambda: saved_tensors_hooks(
        lambda x: x.double() if x.dtype == torch.float32 else x, lambda x: x.float() if x.dtype == torch.float64 else x
    ),
}


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
def test_hooks_on_saved_tensors(name, options):
    (block, _) = _blocks(0.2)
    net = copy.deepcopy(block)
    compiled = burnish.compile(net, options=options)

    def with_hooks(model: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            with HOOKS[name]():
                return model(x)

        return run

    for seed in range(3):
        x = torch.randn(16, 8).t()
        torch.testing.assert_close(
            _step(with_hooks(compiled), [net], x, seed),
            _step(with_hooks(block), [block], x, seed),
            rtol=1e-4,
            atol=1e-5,
        )


def test_hooks_on_parameters_and_accumulation():
    (block, _) = _blocks(0.0)
    net = copy.deepcopy(block)
    compiled = burnish.compile(net, options=FORCED)
    seen: dict[str, list[torch.Tensor]] = {"ours": [], "eager": []}
    after: dict[str, list[torch.Tensor]] = {"ours": [], "eager": []}
    for name, own in (("ours", net), ("eager", block)):
        own[0].weight.register_hook(lambda gradient, name=name: seen[name].append(gradient.clone()) or gradient * 2)
        own[0].bias.register_post_accumulate_grad_hook(lambda p, name=name: after[name].append(p.grad.clone()))
    for k in range(3):
        x = torch.randn(8, 16)
        for model in (compiled, block):
            model(x).square().sum().backward()
        net[-1].bias.requires_grad_(k % 2 == 0)
        block[-1].bias.requires_grad_(k % 2 == 0)
    torch.testing.assert_close((seen["ours"], after["ours"]), (seen["eager"], after["eager"]))
    torch.testing.assert_close([p.grad for p in net.parameters()], [p.grad for p in block.parameters()])


# -- forward mode -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
def test_an_exception_in_forward_mode_leaves_it(options):
    """It would be open for the whole process, in which there can be only one."""

    def fn(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(lambda t: t.exp()[k] + 1, (x,), (torch.ones_like(x),))[1]

    compiled = burnish.compile(fn, options=options)
    x, fits = torch.randn(5), torch.tensor([1, 2])
    for k in (torch.tensor([7, 1]), torch.tensor([1, 7])):
        with pytest.raises(IndexError):
            compiled(x, k)
        torch.testing.assert_close(compiled(x, fits), fn(x, fits))


@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
@pytest.mark.parametrize("made_there", [False, True], ids=["tensor", "inference tensor"])
def test_forward_mode_in_inference_mode(options, made_there):
    """Before torch 2.13 eager records no tangents there, on which the captured graph relies."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(lambda t: t.exp().sum(-1, keepdim=True) + t, (x**3,), (torch.ones_like(x),))[1]

    compiled = burnish.compile(fn, options=options)
    with torch.inference_mode(made_there):
        x = torch.tensor([0.5])
    for _ in range(3):
        with torch.inference_mode():
            torch.testing.assert_close(compiled(x), (x**3).exp() + 1)


def test_double_backward_where_one_input_is_made_of_another():
    """The graph after the break takes x and a view of x: gradients of x by the view are not counted twice."""

    def fn(x, w):
        view = x.reshape(-1)
        torch._dynamo.graph_break()
        return view.sin() + 1, x * w

    def gradients(model: Any) -> list[torch.Tensor]:
        x, w = (torch.full((2, 2), v, dtype=torch.float64, requires_grad=True) for v in (0.3, 0.7))
        first = torch.autograd.grad([y.sum() for y in model(x, w)], [x, w], create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.square().sum() for g in first), [x, w])]

    compiled = burnish.compile(fn, gate=False, verify="off")
    for _ in range(2):
        torch.testing.assert_close(gradients(compiled), gradients(fn), rtol=1e-12, atol=0)


def test_inference_tensors_beside_gradients_leave_inputs_written_once():
    def fn(x, y, z):
        z.add_(1)
        return (x * y.detach()).sin() * y.exp(), z * 2

    with torch.inference_mode():
        x = torch.randn(8)
    compiled, y = burnish.compile(fn, gate=False, verify="off"), torch.randn(8, requires_grad=True)
    for _ in range(2):
        ours, theirs = torch.zeros(8), torch.zeros(8)
        torch.testing.assert_close((compiled(x, y, ours), ours), (fn(x, y, theirs), theirs))


@pytest.mark.parametrize("dynamic", [None, True])
def test_view_without_history_beside_a_result_with_one_is_judged(dynamic):
    def fn(x):
        with torch.no_grad():
            view = x.select(0, 0)
        return view, x.norm(float("inf"), 0)

    compiled, x = burnish.compile(fn, dynamic=dynamic), torch.randn(2, requires_grad=True)
    for _ in range(3):
        assert [(y.requires_grad, y.is_leaf) for y in compiled(x)] == [(y.requires_grad, y.is_leaf) for y in fn(x)]


@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
@pytest.mark.parametrize("is_view", [False, True], ids=["tensor", "view"])
def test_what_is_made_of_a_view_without_history(options, is_view):
    """It requires gradients if what the view is of is a view of something that does."""

    def fn(x):
        with torch.no_grad():
            view = x.reshape(-1)[..., :2]
        return x.sin(), view.squeeze() + 1

    compiled = burnish.compile(fn, options=options)
    for _ in range(3):
        x = torch.randn(2, 7)[:1] if is_view else torch.randn(1, 7)
        x.requires_grad_()
        assert [y.requires_grad for y in compiled(x)] == [y.requires_grad for y in fn(x)]
        y, z = compiled(x)
        (y.sum() + z.sum()).backward()
        torch.testing.assert_close(x.grad, x.detach().cos())


# --- gradients that lie in no memory, or lazily ------------------------------------------------------------------


def _through(step: Callable[..., Any], last: Callable[..., Any]) -> torch.Tensor:
    x = torch.linspace(-1, 1, 8).requires_grad_()
    last(step(x)).sum().backward()
    assert x.grad is not None
    return x.grad


def _negated_lazily(y: torch.Tensor) -> torch.Tensor:
    y.register_hook(lambda gradient: torch._neg_view(gradient))
    return y * 3


@pytest.mark.parametrize("last", [torch.sgn, _negated_lazily])
def test_gradients_that_compiled_code_cannot_read(last):
    """The gradient of `sgn` is zeros that lie nowhere; a hook's may be negated lazily."""
    step = lambda x: x.sin() * 2  # noqa: E731
    c = burnish.compile(step, gate=False, verify="off")
    torch.testing.assert_close(_through(c, last), _through(step, last))


def test_zeros_that_lie_in_no_memory_inside_a_graph():
    step = lambda x: torch.lerp(x, x * 2, 0.3).sgn()  # noqa: E731
    c = burnish.compile(step, gate=False, verify="off")
    assert torch.equal(_through(c, torch.clone), _through(step, torch.clone))


def _convolution(x: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, torch.linspace(-1, 1, 54).reshape(2, 3, 3, 3)).relu()


# Results, and what they are of.
OF_MANY: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "contiguous": (lambda x: x.sin() * 2, torch.linspace(-1, 1, 12).reshape(3, 4)),
    "transposed": (lambda x: (x.sin() * 2).t(), torch.linspace(-1, 1, 12).reshape(3, 4)),
    "convolution": (_convolution, torch.linspace(-1, 1, 216).reshape(2, 3, 6, 6)),
    "channels last": (
        _convolution,
        torch.linspace(-1, 1, 216).reshape(2, 3, 6, 6).to(memory_format=torch.channels_last),
    ),
}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", OF_MANY)
@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
def test_a_backward_of_many_gradients_at_once(options, name, recorded):
    fn, x = OF_MANY[name]

    def gradients(call: Callable[..., Any]) -> torch.Tensor:
        leaf = x.clone().requires_grad_()
        result = call(leaf)
        given = torch.stack([torch.ones_like(result), result.detach()])
        (found,) = torch.autograd.grad(result, leaf, given, is_grads_batched=True, create_graph=recorded)
        return found

    compiled = burnish.compile(fn, **options)
    for _ in range(3):
        got, want = gradients(compiled), gradients(fn)
        torch.testing.assert_close(got, want)
        assert got.requires_grad is want.requires_grad
    stats = burnish.stats(compiled)
    assert stats.graphs and stats.fallbacks == ()


@pytest.mark.parametrize("vectorize", [False, True])
def test_a_jacobian_of_a_result_that_is_not_contiguous(vectorize):
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x * x.sum()).permute(1, 0)

    compiled, x = burnish.compile(fn, **FORCED), torch.linspace(-1, 2, 6).reshape(2, 3)
    for _ in range(2):
        found = torch.autograd.functional.jacobian(compiled, x, vectorize=vectorize)
        torch.testing.assert_close(found, torch.autograd.functional.jacobian(fn, x))


def test_many_gradients_at_once_by_vmap_leave_a_plain_backward_as_it_was():
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.exp().t()

    compiled = burnish.compile(fn, **FORCED)
    x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
    result = compiled(x)
    many = torch.func.vmap(lambda given: torch.autograd.grad(result, x, given, retain_graph=True)[0])
    given = torch.stack([torch.ones(3, 2), 2 * torch.ones(3, 2)])
    torch.testing.assert_close(many(given), torch.stack([x.exp(), 2 * x.exp()]).detach())
    result.sum().backward()
    torch.testing.assert_close(x.grad, x.exp().detach())


# -- custom functions --------------------------------------------------------------------------------------------------


class Cube(torch.autograd.Function):
    """Saves what it is given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


class Exponential(torch.autograd.Function):
    """Saves what it returns."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (y,) = ctx.saved_tensors
        return gradient * y


class Scaled(torch.autograd.Function):
    """Saves something else, too, and has a constant in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * x
        ctx.save_for_backward(y, w)
        ctx.factor = 2.0
        return y @ w, y.sum()

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, w = ctx.saved_tensors
        with torch.no_grad():
            constant = w.abs().mean()
        return first @ w.t() * ctx.factor * constant + second * y, y.t() @ first


class Nested(torch.autograd.Function):
    """Whose forward and backward call another one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return Cube.apply(x) * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return Cube.apply(x) * gradient


def scaled(x: torch.Tensor) -> torch.Tensor:
    first, second = Scaled.apply(x, torch.tensor([[0.5, 0.1], [0.2, 0.3]]))
    return first * second


CUSTOM: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "saves what it is given": lambda x: Cube.apply(x),
    "saves what it returns": lambda x: Exponential.apply(x),
    "among others": lambda x: Exponential.apply(Cube.apply(x).sin()) * x,
    "several results": scaled,
    "nested": lambda x: Nested.apply(x),
}


@pytest.mark.parametrize("options", [FORCED, {}, {"dynamic": True}], ids=["forced", "judged", "dynamic"])
@pytest.mark.parametrize("name", CUSTOM)
def test_gradient_penalty_through_a_custom_function(name, options):
    def penalised(call):
        x = torch.tensor([[0.3, 0.7]], requires_grad=True)
        y = call(x)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (y.sum() + 10 * gradient.square().sum()).backward()
        return gradient.detach(), x.grad

    fn = CUSTOM[name]
    compiled = burnish.compile(fn, **options)
    for _ in range(2):
        torch.testing.assert_close(penalised(compiled), penalised(fn))
    assert not burnish.stats(compiled).fallbacks


@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
def test_double_backward_beside_an_in_place_view_of_the_same_memory(options):
    """Such a view gives every view of that memory a new place in the history of gradients."""

    def fn(x, other):
        y = x * 2
        other[1:].squeeze_()
        return y

    def gradient(call):
        memory = torch.ones(2)
        x = memory.as_strided((2,), (1,)).requires_grad_()
        y = call(x, memory.detach())
        return torch.autograd.grad(y.sum(), x, create_graph=True, allow_unused=True)

    compiled = burnish.compile(fn, **options)
    for _ in range(2):
        torch.testing.assert_close(gradient(compiled), gradient(fn))
