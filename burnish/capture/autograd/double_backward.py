"""Gradients of gradients: a compiled backward is differentiated through the captured graph, in eager.

Autograd cannot differentiate a program. Where autograd records the backward (`create_graph=True`), the compiled
backward is not used: the graph that Dynamo captured runs again in eager, on the forward's inputs, and autograd
differentiates that. So the gradients are eager's, with their history, to any order. The same path serves batched
gradients (`is_grads_batched=True`), because a program computes with one gradient.

For this the inputs are saved in addition to the program's saved tensors, and freed with the autograd graph. With active
hooks on saved tensors, autograd saves them, so that the hooks see them. Otherwise they are kept here: a plain backward
does not check them, so an in-place change of an input that eager does not save raises no error.

    forward             keep the inputs (copies of those the call writes and reads)
    backward, plain     as if there were only what the program saves
    backward, recorded  graph(inputs) in eager -> torch.autograd.grad(..., create_graph=True)
    backward, batched   the same, without create_graph
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import get_gradient_edge

from burnish.capture.autograd.backwards import NoSuchPart, leaving_out
from burnish.capture.autograd.missing_gradients import Flow, filled
from burnish.capture.autograd.saved_values import Layout, OwnTensors, State, Turn, is_held
from burnish.capture.autograd.shared_results import Shared, Watched, in_one_memory
from burnish.lower.aten_calls import in_memory
from burnish.runtime.host.function_modes import unseen
from burnish.runtime.host.thread_state import autocast_state
from burnish.torch_private.aot import get_current_graph_task_keep_graph
from burnish.torch_private.dispatch import is_batchedtensor, is_legacy_batchedtensor, len_torch_function_stack
from burnish.torch_private.dynamo import FrameAction, FrameExecStrategy, set_code_exec_strategy
from burnish.torch_private.patches.tracing import noticing_functions
from burnish.trust.inputs import RandomState, devices_of
from burnish.trust.saved_tensor_hooks import hooks_are_active

_FUNCTION = "CompiledFunction"  # the name of the class that AOTAutograd makes for a training graph
_SAVED = object()  # a placeholder for a tensor that autograd keeps
_OF_BASES = ("alias_of_intermediate", "alias_of_intermediate_save_as_output")


@dataclass(frozen=True)
class Returns:
    """The values of a graph for which autograd passes gradients, in its order: inputs that a call changes outside the
    graph, results (None for a view of another value), and the bases of results that are views."""

    changed: tuple[int, ...] = ()
    results: tuple[int | None, ...] = ()
    bases: tuple[int, ...] = ()  # a result that is a view of each


def returns_of(metadata: Any) -> Returns:
    """`metadata` is AOTAutograd's."""
    kinds = [info.output_type.name for info in metadata.output_info]
    aliased = set(metadata.aliased_out_indices)
    views = {
        info.base_idx: k for k, info in enumerate(metadata.output_info) if kinds[k] in _OF_BASES
    }  # any of those that share a base
    return Returns(
        tuple(metadata.mutated_inp_runtime_indices),
        tuple(None if k in aliased else k for k in range(len(kinds))),
        tuple(views[base] for base in range(metadata.num_intermediate_bases)),
    )


@dataclass(frozen=True)
class Replay:
    """Runs a graph again in eager on a forward's inputs. `written` are inputs that a call changes; those in `needed`
    are also read before the change. Gradients depend only on the `decisive` inputs (None: not known). `flow` tells
    which gradients are missing (None: not known, they are zeros). `leaves_out` tells whether there is already a program
    without these tangents (None: it can always be made). `shared` are results that may share memory with saved
    tensors."""

    graph: Callable[..., Any]
    returns: Returns
    written: frozenset[int] = frozenset()
    needed: frozenset[int] = frozenset()
    draws: bool = False
    decisive: frozenset[int] | None = None
    flow: Flow | None = None
    leaves_out: Callable[[frozenset[int]], bool] | None = None
    shared: Shared = ()
    # keyed by the tangents that are left out now, and before
    turns: dict[Any, Turn | None] = field(default_factory=dict, compare=False)

    def hold(self, ctx: Any, args: Sequence[Any]) -> None:
        """Before the forward: record its inputs and the thread's state."""
        if self.flow is not None:
            ctx.set_materialize_grads(False)
        held = list(args)
        with torch.enable_grad():
            for k in self.needed:
                held[k] = args[k].clone()
        # The content of an input that the call only writes does not matter, so its version may differ later.
        saved = [isinstance(x, torch.Tensor) and k not in self.written - self.needed for k, x in enumerate(held)]
        ctx.burnish_inputs = [_SAVED if is_saved else x for x, is_saved in zip(held, saved, strict=True)]
        ctx.burnish_tensors = [x for x, is_saved in zip(held, saved, strict=True) if is_saved]
        ctx.burnish_state = autocast_state(), RandomState(devices_of(args)) if self.draws else None

    def save(self, ctx: Any, results: Sequence[Any]) -> None:
        """After the forward: save the inputs in addition to the program's saved tensors."""
        tensors = ctx.burnish_tensors
        bases = self.returns.bases
        ctx.burnish_bases = [(x.shape, x.stride()) for x in results[len(results) - len(bases) :]] if bases else ()
        own = list(ctx.to_save or ()) if self.shared or hooks_are_active() else []
        shared = list(in_one_memory(self.shared, results, own)) if self.shared else ()
        if not hooks_are_active():
            ctx.burnish_own = OwnTensors(len(ctx.to_save or ()), None)
            ctx.burnish_states = [State.of(x) for x in tensors]
            ctx.burnish_watched = [Watched.of(k, results[k]) for k in dict(shared)] if shared else ()
            return
        ctx.burnish_watched = ()
        ctx.burnish_own = OwnTensors(len(own), [Layout.of(x) for x in own])
        for _, j in shared:  # a hook may keep its argument or a copy, so the effect of a later change is unknown
            if j < len(own):
                own[j] = own[j].clone()
        ctx.burnish_tensors, ctx.burnish_states = None, None  # autograd holds them from now on
        ctx.burnish_seen = [weakref.ref(x) for x in tensors]
        ctx.save_for_backward(*own, *tensors)

    def plain(self, ctx: Any, gradients: Sequence[Any], backward: Callable[[Any], Sequence[Any]]) -> Sequence[Any]:
        """The compiled `backward`, for a call that autograd does not record."""
        missing = self.flow.missing(gradients) if self.flow is not None else []
        own: OwnTensors = ctx.burnish_own
        has_changed = any(x.has_changed for x in ctx.burnish_watched)
        if self.flow is None or not missing:
            own.leave_nothing_out()
            if has_changed:
                return self._apart(ctx, gradients, goes_on=False)
            self.let_go(ctx)
            return backward(gradients)
        left_out = self.flow.left_out(missing)
        waited_for = self._waited_for(ctx)
        turn, goes_on = self._turn(left_out, own.open), get_current_graph_task_keep_graph()
        is_there = self.leaves_out is None or self.leaves_out(left_out)
        is_last = turn is None or not turn.later
        if has_changed and (turn is None or turn.read):
            apart = self._apart(ctx, gradients, goes_on=not is_last)
            own.leave_unread(turn, goes_on=goes_on)
            return self.flow.found(apart, left_out, waited_for)
        if is_there and is_last:
            self.let_go(ctx)
        try:
            with leaving_out(left_out), own.during(ctx, turn, goes_on=goes_on):
                found = backward(filled(ctx, gradients, missing))
        except NoSuchPart:
            found = self._apart(ctx, gradients, goes_on=not is_last)
        return self.flow.found(found, left_out, waited_for)

    def _apart(self, ctx: Any, gradients: Sequence[Any], *, goes_on: bool) -> tuple[Any, ...]:
        """Eager's gradients, each in its own memory."""
        found = self.gradients(ctx, gradients, goes_on=goes_on)
        return tuple(None if x is None else x.detach().clone() for x in found)

    def _turn(self, left_out: frozenset[int], still_open: frozenset[int] | None) -> Turn | None:
        """None if all saved tensors are read, as usual."""
        key = left_out, still_open
        if key not in self.turns:
            self.turns[key] = self._turn_of(left_out, still_open)
        return self.turns[key]

    def _turn_of(self, left_out: frozenset[int], still_open: frozenset[int] | None) -> Turn | None:
        assert self.flow is not None
        tangents = frozenset(range(len(self.flow.given)))
        read, everything = self.flow.saved_for(tangents - left_out), self.flow.saved_for(tangents)
        rest = self.flow.apart(left_out) & (tangents if still_open is None else still_open)
        later = self.flow.saved_for(rest)
        is_as_ever = read is None or later is None or (still_open is None and not later and read == everything)
        return None if is_as_ever or read is None or later is None else Turn(read, later, rest)

    def _waited_for(self, ctx: Any) -> dict[int, torch.Tensor]:
        """Inputs with hooks on their gradients."""
        kept = iter([x() for x in ctx.burnish_seen] if ctx.burnish_states is None else ctx.burnish_tensors or ())
        inputs = [next(kept, None) if x is _SAVED else x for x in ctx.burnish_inputs]
        return {k: x for k, x in enumerate(inputs) if isinstance(x, torch.Tensor) and _has_hooks(x)}

    def let_go(self, ctx: Any) -> None:
        """Called in a backward before it runs: afterwards the inputs are needed only if the graph is retained."""
        if not get_current_graph_task_keep_graph():
            ctx.burnish_tensors, ctx.burnish_watched = None, ()

    def _inputs(self, ctx: Any, given: Sequence[Any]) -> list[Any]:
        if ctx.burnish_states is None:
            everything = ctx.saved_tensors
            saved = iter(everything[len(everything) - len(ctx.burnish_seen) :])
        else:
            if ctx.burnish_tensors is None or not (self._is_open(ctx, given) or is_held(ctx)):
                _ = ctx.saved_tensors  # raises if the graph was freed
            saved = self._unchanged(ctx)
        return [next(saved) if x is _SAVED else x for x in ctx.burnish_inputs]

    def _is_open(self, ctx: Any, given: Sequence[Any]) -> bool:
        """Whether an earlier backward shares no part of the graph with one of these tangents."""
        own: OwnTensors = ctx.burnish_own
        if self.flow is None or own.open is None:
            return False
        return all(given[place] is None or k in own.open for k, place in enumerate(self.flow.given))

    def _unchanged(self, ctx: Any) -> Iterator[Any]:
        kept = iter(zip(ctx.burnish_tensors, ctx.burnish_states, strict=True))
        for k, x in enumerate(ctx.burnish_inputs):
            if x is not _SAVED:
                continue
            tensor, then = next(kept)
            if then.still_of(tensor):
                yield tensor
            elif self.decisive is None or k in self.decisive:
                raise RuntimeError(then.changed(tensor))
            else:
                yield tensor.new_zeros(then.shape, requires_grad=tensor.requires_grad)

    def gradients(self, ctx: Any, given: Sequence[Any], *, goes_on: bool = False) -> tuple[Any, ...]:
        """The inputs' gradients, for the given gradients of the results; with history, if autograd records. `goes_on`:
        another backward may follow, although the graph is not retained."""
        needs, recorded = ctx.needs_input_grad, torch.is_grad_enabled()
        inputs = self._inputs(ctx, given)
        changed = [x.position for x in ctx.burnish_watched if x.has_changed]
        if not goes_on:
            self.let_go(ctx)
        autocast, random = ctx.burnish_state
        with torch.enable_grad(), autocast(), _drawing_again(random, inputs):
            # One input may depend on another. Gradients are taken for fresh tensors on which no other input depends.
            leaves = [x.view_as(x) if needs[k] else x for k, x in enumerate(inputs)]
            # Their current nodes: an in-place change through a view of the same memory gives them another node.
            edges = [get_gradient_edge(x) for k, x in enumerate(leaves) if needs[k]]
            given_to_graph = [x.clone() if k in self.written else x for k, x in enumerate(leaves)]
            results = self.graph(*given_to_graph)
            results = results if isinstance(results, (tuple, list)) else (results,)
            values = self._values(results, given_to_graph, ctx.burnish_bases)
            torch.autograd.graph.increment_version([x for k in changed if isinstance(x := values[k], torch.Tensor)])
            pairs = [
                (value, gradient)
                for value, gradient in zip(values, given, strict=True)
                if gradient is not None and isinstance(value, torch.Tensor) and value.requires_grad
            ]
            found = self._differentiated(pairs, edges, recorded)
        answers = iter(found)
        return tuple(next(answers) if needs[k] else None for k in range(len(inputs)))

    def _values(self, results: Sequence[Any], inputs: Sequence[Any], bases: Sequence[tuple[Any, Any]]) -> list[Any]:
        returns = self.returns
        found = [_base_of(results[k], shape, strides) for k, (shape, strides) in zip(returns.bases, bases, strict=True)]
        return [
            *(inputs[k] for k in returns.changed),
            *(None if k is None else results[k] for k in returns.results),
            *found,
        ]

    def _differentiated(self, pairs: Sequence[tuple[Any, Any]], edges: Sequence[Any], recorded: bool) -> Sequence[Any]:
        if not pairs or not edges:
            return [None] * len(edges)
        roots, weights = [value for value, _ in pairs], [gradient for _, gradient in pairs]
        return torch.autograd.grad(roots, edges, weights, create_graph=recorded, allow_unused=True)


def is_replayed(gradients: Sequence[Any]) -> bool:
    """Whether a backward runs the captured graph in eager instead of the program."""
    return torch.is_grad_enabled() or any(map(_are_many, gradients))


def _are_many(gradient: Any) -> bool:
    return gradient is not None and (is_legacy_batchedtensor(gradient) or is_batchedtensor(gradient))


def _has_hooks(x: torch.Tensor) -> bool:
    return bool(x._backward_hooks or x._post_accumulate_grad_hooks)


def _base_of(result: torch.Tensor, shape: torch.Size, strides: tuple[int, ...]) -> torch.Tensor:
    """The base of a result according to AOTAutograd. A decomposed operation may end in a view there, while its result
    in eager is not a view."""
    base = result._base if result._base is not None else result
    return base if base.shape == shape else base.as_strided(shape, strides, base.storage_offset())


@contextlib.contextmanager
def _drawing_again(before: RandomState | None, inputs: Sequence[Any]) -> Iterator[None]:
    """Draws the forward's random numbers again, and restores the generators afterwards."""
    if before is None:
        yield
        return
    now = RandomState(devices_of(inputs))
    before.restore()
    try:
        yield
    finally:
        now.restore()


# -- AOTAutograd's function ---------------------------------------------------------------------------------------


def own_tensors(ctx: Any) -> tuple[Any, ...]:
    """The program's own saved tensors, as it saved them."""
    own: OwnTensors = ctx.burnish_own
    return own.of(ctx)


class _WithoutInputs:
    """A function's context as AOTAutograd expects it: without the inputs that we saved in addition."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: Any) -> None:
        object.__setattr__(self, "_ctx", ctx)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """Held only by the caller, so that they are freed while the backward runs."""
        return own_tensors(object.__getattribute__(self, "_ctx"))

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_ctx"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "_ctx"), name, value)


@contextlib.contextmanager
def differentiable_twice(replay: Callable[[], Replay]) -> Iterator[None]:
    """While open, AOTAutograd's autograd function for a training graph is made in this form in this thread. `replay` is
    called at the first call, when all facts are known."""

    def notice(cls: type[Any]) -> None:
        if cls.__name__ == _FUNCTION and "backward" in cls.__dict__:
            _replace(cls, replay)

    with noticing_functions(notice):
        yield


def _replace(function: Any, replay: Callable[[], Replay]) -> None:
    forward, backward = function.forward, function.backward

    def saving(ctx: Any, *args: Any) -> Any:
        again = replay()
        again.hold(ctx, args)
        results = forward(ctx, *args)
        again.save(ctx, results)
        return results

    def recorded(ctx: Any, *gradients: Any) -> Any:
        if len_torch_function_stack():  # which sees nothing of a backward that autograd runs itself
            return unseen(lambda given: compiled(ctx, *given), gradients)
        return compiled(ctx, *gradients)

    def compiled(ctx: Any, *gradients: Any) -> Any:
        boxed = len(gradients) == 1 and isinstance(gradients[0], list)  # since torch 2.12
        given = gradients[0] if boxed else list(gradients)
        if is_replayed(given):
            return replay().gradients(ctx, given)
        # Saved tensors whose memory a backward might write. Ours does not write them, so it need not refuse
        # retain_graph.
        function.metadata.bw_donated_idxs = []

        def run(filled: list[Any]) -> Any:
            given[:] = map(in_memory, filled)  # the caller's own list: gradients go as soon as they have been read
            return backward(_WithoutInputs(ctx), *([given] if boxed else given))

        return replay().plain(ctx, given, run)

    for name, method in (("forward", saving), ("backward", _untraced(recorded))):
        setattr(function, name, staticmethod(method))


def _untraced(backward: Any) -> Any:
    """Where a compiled function calls `backward()`, Dynamo handles every frame that is entered. It would trace our
    compiler, which compiles the backward there, and wait for locks that it already holds."""
    set_code_exec_strategy(backward.__code__, FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP))
    return backward


def inputs_read(graph: fx.GraphModule, first: int) -> frozenset[int]:
    """Positions of the inputs on which a graph's results, from the `first` on, depend."""
    inputs = {node: k for k, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    (output,) = graph.graph.find_nodes(op="output")
    todo = [node for node in output.args[0][first:] if isinstance(node, fx.Node)]
    seen: set[fx.Node] = set()
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += node.all_input_nodes
    return frozenset(inputs[node] for node in seen if node in inputs)
