"""Shadow runs of a graph: they use the caller's inputs and random numbers, and do not change the caller's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from burnish.assumptions import Assumptions
from burnish.runtime.graph_capture import wait_for_stream
from burnish.runtime.process import give_back_freed_memory
from burnish.trust.inputs import RandomState, SideInputs, devices_of
from burnish.trust.record import GraphKind
from burnish.trust.referee import InFloat64, Results
from burnish.trust.saved_tensor_hooks import hooks_are_active, own_saved_tensors

Call = Callable[..., Any]
Clock = Callable[[], float]


@dataclass(frozen=True)
class GraphFacts:
    """The capture layer's facts about a graph; inputs are given by position."""

    kind: GraphKind
    signature: str = ""
    changed: frozenset[int] = frozenset()  # inputs that a call writes
    static: frozenset[int] = frozenset()  # parameters and buffers
    draws: bool = False  # from a random generator
    coarsest: torch.dtype = torch.float32  # the least exact type it computes in
    modules: int = 0  # module calls in eager that the captured graph does not have
    unjudgeable: str = ""  # why the graph cannot run a second time beside the real call
    assumptions: Assumptions | None = None  # what engines were made for
    exactness: tuple[int, ...] = ()  # of each result (trust/exactness.py); empty where nothing is known
    depends_on_type: bool = False  # float64 would compute something else
    sizes: tuple[int, ...] = ()  # inputs that are symbols on which tensors' sizes depend
    process_wide: bool = False  # eager changes process-wide state (the level of forward mode)
    differentiates: bool = False  # torch.func inside: without grad mode, its derivatives would be zero

    @property
    def stays_in_thread(self) -> bool:
        """Whether eager can run it beside a call only in the caller's thread."""
        return self.draws or self.process_wide

    @property
    def has_no_referee(self) -> bool:
        """Whether a float64 run is useless, because of other random numbers or another meaning."""
        return self.draws or self.depends_on_type


class ShadowRuns:
    """Runs a graph beside the real call: same inputs, same random numbers, no change of the caller's state."""

    def __init__(
        self,
        facts: GraphFacts,
        args: Sequence[Any],
        *,
        backward: bool,
        left_out: frozenset[int] = frozenset(),
        repeats: bool,
    ) -> None:
        """The backward is that of a loss that does not use these results. `repeats`: compared runs may be followed by
        others."""
        self.facts = facts
        self.training = facts.kind == "training"
        self.backward = backward
        self.left_out = left_out
        self.inputs = SideInputs(args, facts.changed, detached=self.training)
        # The result of a forward without side effects can be returned to the caller, if it is right. Not with hooks on
        # saved tensors: their exceptions belong to the caller and are no failure.
        can_serve = self.training and not (backward or repeats or self.inputs.copies_anything or hooks_are_active())
        self._callers = tuple(args) if can_serve else None
        devices = devices_of(args)
        # Only then: generators are process-wide, and restoring them would repeat the numbers of other threads.
        self.random = RandomState(devices) if facts.draws else None
        self._cuda = [d for d in devices if d.type == "cuda"]
        self._cotangents: list[torch.Tensor] = []
        self.returned = 0  # how many of the tensors that are compared are the call's own results: the first ones

    @property
    def results_are_real(self) -> bool:
        """Whether an engine's result can be returned to the caller."""
        return self._callers is not None or self.eagers_is_real

    @property
    def eagers_is_real(self) -> bool:
        return not self.training and not self.inputs.copies_anything

    def run_engine(self, call: Call) -> tuple[Any, Results]:
        """As `run`, for an engine whose result may go to the caller."""
        if self._callers is None:
            return self.run(call)
        self.same_numbers()
        raw = call(*self._callers)
        return raw, [x.detach() for x in _tensors(raw)]

    def run(self, call: Call, wide: InFloat64 | None = None) -> tuple[Any, Results]:
        """The raw result, if it can be returned; and, for the comparison, its tensors, the gradients of its inputs, and
        the changed inputs."""
        args = self.inputs.take()
        if wide is not None:
            args = wide.arguments(args, None if self.backward else self.inputs.written)
        self.same_numbers()
        # In float64 the forward runs without saved tensors, which would take several times the model's memory; its
        # values do not depend on them.
        saves = torch.is_grad_enabled() and (wide is None or self.backward)
        with self._isolated(), torch.set_grad_enabled(saves), wide or nullcontext():
            origins = self._origins(args)
            raw = call(*args)
            results = _tensors(raw)
            self.returned = len(results)
            gradients = self._gradients(raw, origins) if self.backward else []
        found = [x.detach() for x in (*results, *gradients, *self.inputs.changed(args))]
        if self.eagers_is_real:
            return raw, found
        del raw, results, gradients
        if self.training:
            give_back_freed_memory()  # what autograd saved, before the next saves as much
        return None, found

    @property
    def can_hand_over(self) -> bool:
        """Whether gradients can be passed on one by one, and the time of that without comparing them."""
        return self.backward and not self.inputs.copies_anything and not self._cuda

    def run_holding(self, call: Call) -> list[torch.Tensor | None]:
        """Results and gradients of one step."""
        found: dict[int, torch.Tensor] = {}
        total = self.hand_over(call, lambda index, tensor: found.update({index: tensor}))
        return [found.get(index) for index in range(total)]

    def hand_over(self, call: Call, handed: Callable[[int, torch.Tensor], None]) -> int:
        """The same, each passed on as soon as it exists, and freed. Returns their number."""
        args = self.inputs.take()
        self.same_numbers()
        with self._isolated():
            raw = call(*args)
            results = _tensors(raw)
            for index, result in enumerate(results):
                handed(index, result.detach())
            roots, leaves = self._roots(raw), _leaves(args)
            for index, leaf in enumerate(leaves, len(results)):
                leaf.register_hook(partial(_handed_gradient, handed, index))
            if roots and leaves:
                torch.autograd.grad(roots, leaves, self._weights(roots), allow_unused=True)
        return len(results) + len(leaves)

    def _weights(self, roots: Results) -> Results:
        if not self._cotangents:
            self._cotangents = [_random_like(x, seed) for seed, x in enumerate(roots)]
        return [w.to(x.dtype) for w, x in zip(self._cotangents, roots, strict=True)]

    def _roots(self, raw: Any) -> Results:
        """A view made under no_grad requires a gradient like its base, but has no history for one."""
        used = [x for k, x in enumerate(_listed(raw)) if k not in self.left_out and isinstance(x, torch.Tensor)]
        return [x for x in used if x.requires_grad and (x.grad_fn is not None or not x._is_view())]

    def _gradients(self, raw: Any, origins: Sequence[_Origin]) -> Results:
        roots = self._roots(raw)
        if not roots or not origins:
            return []
        edges = [origin.edge for origin in origins]
        found = torch.autograd.grad(roots, edges, self._weights(roots), allow_unused=True)
        return [origin.nothing() if x is None else x for x, origin in zip(found, origins, strict=True)]

    def seconds(self, call: Call, calls: int, clock: Clock, *, whole: bool = True) -> float:
        """One call's time, the mean of a few consecutive calls; not `whole`: without the backward."""
        if self.inputs.copies_anything:
            return min(self._one(call, clock, whole) for _ in range(calls))
        args = self.inputs.take()
        origins = self._origins(args, whole)
        with self._isolated():
            self.synchronise()
            start = clock()
            for _ in range(calls):
                self._step(call, args, origins)
            self.synchronise()
            return (clock() - start) / calls

    def _one(self, call: Call, clock: Clock, whole: bool) -> float:
        self.same_numbers()
        args = self.inputs.take()
        origins = self._origins(args, whole)
        with self._isolated():
            self.synchronise()
            start = clock()
            self._step(call, args, origins)
            self.synchronise()
            return clock() - start

    def same_numbers(self) -> None:
        if self.random is not None:
            self.random.restore()

    def _isolated(self) -> AbstractContextManager[Any]:
        return own_saved_tensors() if self.training else nullcontext()

    def _origins(self, args: Sequence[Any], whole: bool = True) -> Sequence[_Origin]:
        if not self.backward or not whole:
            return []
        return [_Origin(x, x.shape, get_gradient_edge(x)) for x in _leaves(args)]

    def _step(self, call: Call, args: Sequence[Any], origins: Sequence[_Origin]) -> None:
        raw = call(*args)
        if origins:
            self._gradients(raw, origins)

    @property
    def on_cuda(self) -> bool:
        return bool(self._cuda)

    def synchronise(self) -> None:
        for device in self._cuda:
            wait_for_stream(device)


@dataclass(frozen=True)
class _Origin:
    """The autograd node of an input before the call: after an in-place change the input has another node, and maybe
    another shape."""

    leaf: torch.Tensor
    shape: torch.Size
    edge: Any

    def nothing(self) -> torch.Tensor:
        return self.leaf.new_zeros(()).expand(self.shape)


def _listed(raw: Any) -> Sequence[Any]:
    return raw if isinstance(raw, (tuple, list)) else (raw,)


def _tensors(raw: Any) -> Results:
    return [x for x in _listed(raw) if isinstance(x, torch.Tensor)]


def _leaves(args: Sequence[Any]) -> Results:
    return [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]


def _handed_gradient(handed: Callable[[int, torch.Tensor], None], index: int, gradient: torch.Tensor) -> torch.Tensor:
    handed(index, gradient.detach())
    return gradient.new_zeros(()).expand_as(gradient)  # which autograd may keep


def _random_like(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator(tensor.device).manual_seed(seed)
    dtype = tensor.dtype if tensor.is_complex() else torch.float32
    return torch.randn(tensor.shape, dtype=dtype, device=tensor.device, generator=generator)
