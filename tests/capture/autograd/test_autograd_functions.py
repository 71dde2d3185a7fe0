"""Custom autograd functions: what `apply` returns and records, and that it is what autograd's own returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import Function
from torch.utils import _pytree as pytree

import burnish
from burnish.torch_private.versions import is_at_least

FORCED = {"gate": False, "verify": "off"}
SCALE = torch.full((4,), 3.0, requires_grad=True)
SEEN: list[int] = []


def _function(forward: Callable[..., Any], backward: Callable[..., Any], setup: Any = None) -> type[Function]:
    body: dict[str, Any] = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Custom", (Function,), body if setup is None else {**body, "setup_context": staticmethod(setup)})


def _total(context: Any, *gradients: Any) -> Any:
    return sum(each for each in gradients if each is not None)


def _twice(context: Any, *gradients: Any) -> Any:
    return 2 * gradients[0]


def _for_both(context: Any, *gradients: Any) -> Any:
    return gradients[0], gradients[-1]


def _marked(context: Any, x: torch.Tensor) -> Any:
    signs = (x > 2).float()
    context.mark_non_differentiable(signs)
    return x * 2, signs


def _marked_alone(context: Any, x: torch.Tensor) -> Any:
    y = x * 2
    context.mark_non_differentiable(y)
    return y


def _marked_after_a_break(context: Any, x: torch.Tensor) -> Any:
    signs = (x > 2).float()
    print(end="")  # breaks the graph: what follows is compiled with the context that autograd has made
    context.mark_non_differentiable(signs)
    return x * 2, signs


def _saved(context: Any, x: torch.Tensor) -> Any:
    y = x * x
    context.save_for_backward(y, None)
    context.factor = 3
    return y


def _from_saved(context: Any, gradient: torch.Tensor) -> torch.Tensor:
    return gradient * context.saved_tensors[0] * context.factor


def _needed(context: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
    return x * w, sum(context.needs_input_grad)


def _noticed(context: Any, inputs: tuple[Any, ...], output: Any) -> None:
    SEEN.append(len(inputs))
    context.save_for_backward(inputs[0])


Case = tuple[type[Function], Callable[[Any, torch.Tensor], Any]]
CASES: dict[str, Case] = {
    "its argument": (_function(lambda c, x: x, _total), lambda f, x: f.apply(x)),
    "its argument, which is not that": (_function(lambda c, x: x, _total), lambda f, x: f.apply(x) is x),
    "its argument twice": (_function(lambda c, x: (x, x), _total), lambda f, x: f.apply(x)),
    "its argument as it was": (_function(lambda c, x: x.contiguous(), _total), lambda f, x: f.apply(x)),
    "a view": (_function(lambda c, x: x.view(2, 2), lambda c, g: g.view(4)), lambda f, x: f.apply(x)),
    "both of one tensor": (_function(lambda c, x, y: (x, y), _for_both), lambda f, x: f.apply(x, x)),
    "of one tensor twice": (_function(lambda c, x, y: x * y, lambda c, g: (g, g)), lambda f, x: f.apply(x, x)),
    "several": (_function(lambda c, *several: tuple(x * 2 for x in several), _for_both), lambda f, x: f.apply(x, x)),
    "their number": (_function(lambda c, *several: several[0] * len(several), _total), lambda f, x: f.apply(x)),
    "a default": (_function(lambda c, x, factor=2: x * factor, _twice), lambda f, x: f.apply(x)),
    "by name": (_function(lambda c, x, k=2: x * k, lambda c, g: (3 * g, None)), lambda f, x: f.apply(x, k=3)),
    "a tuple of one": (_function(lambda c, x: (x * 2,), _twice), lambda f, x: f.apply(x)),
    "nothing beside": (_function(lambda c, x: (x * 2, None), _twice), lambda f, x: f.apply(x)),
    "no tensors beside": (_function(lambda c, x: (x * 2, 3, "a"), _twice), lambda f, x: f.apply(x)),
    "a list": (_function(lambda c, x: [x * 2, x * 3], _twice), lambda f, x: f.apply(x)),
    "a tuple in a tuple": (_function(lambda c, x: (x * 2, (x * 3,)), _twice), lambda f, x: f.apply(x)),
    "a tensor in a tuple": (_function(lambda c, xs: xs[0] * xs[1], _total), lambda f, x: f.apply((x, x * 2))),
    "a mark": (_function(_marked, _twice), lambda f, x: f.apply(x)),
    "a mark on the only one": (_function(_marked_alone, _twice), lambda f, x: f.apply(x)),
    "a mark after a break": (_function(_marked_after_a_break, _twice), lambda f, x: f.apply(x)),
    "a saved result": (_function(_saved, _from_saved), lambda f, x: f.apply(x)),
    "what needs gradients": (_function(_needed, _for_both), lambda f, x: f.apply(x, torch.ones(4))),
    "a weight from outside": (_function(lambda c, x: x * SCALE, _total), lambda f, x: f.apply(x)),
    "a weight that is returned": (_function(lambda c, x: (x * 2, SCALE * 1), _twice), lambda f, x: f.apply(x)),
    "whether gradients are on": (
        _function(lambda c, x: x * 2 if torch.is_grad_enabled() else x * 3, _total),
        lambda f, x: f.apply(x),
    ),
    "in two steps": (
        _function(lambda x: (x * 2, x.square()), lambda c, g, h: 2 * g + 2 * h * c.saved_tensors[0], _noticed),
        lambda f, x: f.apply(x),
    ),
    "its argument, in two steps": (
        _function(lambda x: (x, x), _total, lambda c, inputs, output: None),
        lambda f, x: f.apply(x),
    ),
}


def _shown(results: Any, x: torch.Tensor) -> Any:
    """Values, what they say of their history, and which are one tensor or lie in one memory."""
    leaves, spec = pytree.tree_flatten(results)
    tensors = [x, *(each for each in leaves if isinstance(each, torch.Tensor))]
    shown = [(each.tolist(), each.requires_grad) if isinstance(each, torch.Tensor) else each for each in leaves]
    addresses = [each.untyped_storage().data_ptr() for each in tensors]
    same = [[a is b for a in tensors] for b in tensors]
    return str(spec), shown, same, [[a == b for a in addresses] for b in addresses]


def _outcome(call: Callable[[torch.Tensor], Any], requires_grad: bool, records: bool) -> Any:
    SEEN.clear()
    SCALE.grad = None
    x = torch.arange(1.0, 5.0).requires_grad_(requires_grad)
    with torch.set_grad_enabled(records):
        results = call(x)
    shown = _shown(results, x)
    wanted = [each for each in pytree.tree_leaves(results) if isinstance(each, torch.Tensor) and each.requires_grad]
    if records and wanted:
        sum((each * (k + 1)).sum() for k, each in enumerate(wanted)).backward()
    return *shown, list(SEEN), *(None if each.grad is None else each.grad.tolist() for each in (x, SCALE))


MODES = {"unrecorded": (False, True), "recorded": (True, True), "no_grad": (True, False)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_apply_is_autograds(name: str, mode: str) -> None:
    if name == "by name" and not is_at_least(2, 13):
        pytest.skip("this torch gives a custom autograd function no argument by name")
    function, use = CASES[name]

    def call(x: torch.Tensor) -> Any:
        return use(function, x), x + 1

    compiled = burnish.compile(call, **FORCED)
    for _ in range(2):
        assert _outcome(compiled, *MODES[mode]) == _outcome(call, *MODES[mode])


@pytest.mark.parametrize("mode", ["unrecorded", "no_grad"])
@pytest.mark.parametrize("name", ["its argument twice", "several", "a mark", "in two steps", "a saved result"])
def test_what_is_not_recorded_is_compiled_whole(name: str, mode: str) -> None:
    function, use = CASES[name]
    compiled = burnish.compile(lambda x: (use(function, x), x + 1), fullgraph=True, **FORCED)
    _outcome(compiled, *MODES[mode])
    assert burnish.stats(compiled).compiles == 1
