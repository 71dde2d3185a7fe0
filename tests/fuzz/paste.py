"""A failing case as a test that stands alone: the program's text, the arguments' values, the calls."""

from __future__ import annotations

import platform

import torch

from tests.fuzz.case import Arg, Call, Case, Storage
from tests.fuzz.values import dtype_of, filled

_COMPARE = '''
def tensors_of(value):
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def seeds_for(tensors):
    return [torch.tensor([((i * 7 + k * 3) % 11 - 5) / 4 for i in range(t.numel())], dtype=t.dtype).reshape(t.shape)
            for k, t in enumerate(tensors)]


def left_behind(model, args, result):
    """Everything that a call may be seen by: its results, its arguments and the model's state, gradients of both."""
    state = list(model.state_dict(keep_vars=True).values()) if isinstance(model, torch.nn.Module) else []
    held = [*tensors_of(args), *state]
    grads = [None if t.grad is None else t.grad.clone() for t in held if t.is_leaf]
    return [t.detach().resolve_neg().clone() for t in (*tensors_of(result), *held)], grads


def same(got, want):
    if isinstance(got, str) or isinstance(want, str):
        assert got == want
        return
    torch.testing.assert_close(got[0], want[0], rtol=RTOL, atol=ATOL, equal_nan=True)
    torch.testing.assert_close([g for g in got[1] if g is not None], [g for g in want[1] if g is not None], rtol=RTOL,
                               atol=ATOL, equal_nan=True)
    assert [g is None for g in got[1]] == [g is None for g in want[1]]
'''


def pasted(case: Case, title: str, name: str = "found") -> str:
    exact = bool(case.program.exact_values() & set(case.program.results))
    lines = [
        f'"""{title}',
        f"torch {torch.__version__}, Python {platform.python_version()}.",
        '"""',
        "",
        "import copy",
        "import warnings",
        "from math import inf, nan",
        "",
        "import torch",
        "import torch.nn.functional as F",
        "import torch.utils._pytree as pytree",
        "import torch.utils.checkpoint",
        "",
        "import burnish",
        "",
        f"RTOL, ATOL = {(0, 0) if exact else (1e-3, 1e-5)}",
        _COMPARE,
        "",
        case.program.text(),
        "",
        "",
    ]
    for kind, calls in (("earlier", case.prelude), ("call", case.calls)):
        for k, call in enumerate(calls):
            lines += _arguments(f"{kind}_{k}", call)
    if case.prelude:
        lines += _run("earlier", case.prelude)
    lines += _run("call", case.calls)
    made = "M()" if case.program.is_module else "f"
    keywords = "".join(f", {k}={v!r}" for k, v in case.compile.items())
    lines += [f"def test_{name}():", '    warnings.simplefilter("ignore")']
    if case.prelude:
        lines += [
            f"    torch.manual_seed({case.seed})",
            f"    model = {made}",
            f"    run_earlier(model, burnish.compile(model{keywords}), True)",
        ]
        lines += ["    burnish.reset()  # as a second process with the same cache"]
    for side in ("eager", "ours"):
        lines += [f"    torch.manual_seed({case.seed})", f"    model = {made}"]
        called = "model" if side == "eager" else f"burnish.compile(model{keywords})"
        lines += [f"    {side} = run_call(model, {called}, {side == 'ours'})"]
    lines += ["    for want, got in zip(eager, ours, strict=True):", "        same(got, want)"]
    return "\n".join(lines) + "\n"


def _arguments(name: str, call: Call) -> list[str]:
    lines = [f"def arguments_of_{name}():"]
    lines += [f"    s{k} = {_literal(s)}" for k, s in enumerate(call.storages)]
    lines += [f"    a{k} = {_argument(arg)}" for k, arg in enumerate(call.args)]
    return [*lines, f"    return [{', '.join(f'a{k}' for k in range(len(call.args)))}]", "", ""]


def _literal(storage: Storage) -> str:
    values = filled(storage.size, dtype_of(storage.dtype), storage.kind, storage.seed).tolist()
    return f"torch.tensor({values}, dtype=torch.{storage.dtype})"


def _argument(arg: Arg) -> str:
    if arg.number is not None:
        return repr(arg.number)
    if arg.same_as >= 0:
        return f"a{arg.same_as}"
    held, place = f"s{arg.storage}", f"{arg.shape}, {arg.stride}"
    text = f"{held}.as_strided({place}, {arg.offset})"
    if "whole" in arg.flags:
        text = f"torch.empty(0, dtype={held}.dtype).set_({held}.untyped_storage(), {arg.offset}, {place})"
    if "inference" in arg.flags:
        text = f"torch.inference_mode()(lambda: {held}.clone().as_strided({place}, {arg.offset}))()"
    if "neg" in arg.flags:
        text = f"torch._neg_view({text})"
    if "parameter" in arg.flags:
        return f"torch.nn.Parameter({text}, requires_grad={'grad' in arg.flags})"
    return f"{text}.requires_grad_()" if "grad" in arg.flags else text


_MODES = {"grad": "torch.enable_grad()", "no_grad": "torch.no_grad()", "inference": "torch.inference_mode()"}


def _run(title: str, calls: tuple[Call, ...]) -> list[str]:
    lines = [f"def run_{title}(model, compiled, ours):", "    outcomes = []"]
    for k, call in enumerate(calls):
        lines += [f"    # call {k}" + (f", which {call.threads} threads make at once" if call.threads > 1 else "")]
        for action in call.before:
            if action.ours:
                lines += ["    if ours:", f"        {action.text}"]
            else:
                lines += ["    " + line for line in action.text.split("\n")]
        lines += [f"    args = arguments_of_{title}_{k}()"]
        if not call.accumulate:
            lines += ["    if isinstance(model, torch.nn.Module):", "        model.zero_grad()"]
        lines += [
            f"    torch.manual_seed({call.seed})",
            "    try:",
            f"        with {_MODES[call.mode]}:",
            "            result = compiled(*args)",
        ]
        lines += _backward(call)
        lines += ["        outcomes.append(left_behind(model, args, result))"]
        lines += ["    except Exception as error:", "        outcomes.append(type(error).__name__)"]
    return [*lines, "    return outcomes", "", ""]


def _backward(call: Call) -> list[str]:
    if call.mode != "grad" or not call.backward:
        return []
    lines = ["        roots = [t for t in tensors_of(result) if t.requires_grad]", "        if roots:"]
    if call.backward == "part":
        return [*lines, "            torch.autograd.backward(roots[::2], seeds_for(roots)[::2])"]
    if call.backward == "turns":
        lines += ["            for root, seed in zip(roots, seeds_for(roots), strict=True):"]
        return [*lines, "                torch.autograd.backward(root, seed)"]
    if call.backward != "double":
        if call.backward == "retain":
            lines += ["            torch.autograd.backward(roots, seeds_for(roots), retain_graph=True)"]
        return [*lines, "            torch.autograd.backward(roots, seeds_for(roots))"]
    return [
        *lines,
        "            held = [*args, *(model.parameters() if isinstance(model, torch.nn.Module) else [])]",
        "            wanted = [t for t in tensors_of(held) if t.requires_grad and t.is_leaf]",
        "            options = {'create_graph': True, 'allow_unused': True}",
        "            first = torch.autograd.grad(roots, wanted, seeds_for(roots), **options)",
        "            first = [g for g in first if g is not None and g.requires_grad]",
        "            torch.autograd.backward(first, seeds_for(first)) if first else None",
    ]
