"""Equal blocks in AOTAutograd: each kind passes through it once, and is inlined again at its calls.

    Dynamo graph, flat ── a call of an op for each block ── AOTAutograd ── the blocks' ATen ops put back ──► flat again

AOTAutograd runs every operation of a graph several times in Python. A block that is called several times (`replay.py`
marks its operations) becomes one opaque operation. Its body is traced for the first call only, with gradients where
needed. Blocks are equal if their operations are equal one by one, and their inputs have the same sizes, types and
gradients. An input that a block writes (a cache, a running mean) becomes an additional result, which the graph copies
into the input after the call. Later stages get the same graph as without sharing.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from burnish.capture.regions.guard_match import Differs
from burnish.capture.regions.spans import MARK, SHARES, Span, metadata
from burnish.lower.aten_calls import blank_like
from burnish.observe.log import CompileLog
from burnish.torch_private.aot import aot_export_joint_simple
from burnish.torch_private.dispatch import disable_current_modes, enter_autocast, exit_autocast
from burnish.torch_private.fake_tensors import FakeTensor
from burnish.torch_private.patches.derivatives import checking_classes, own_derivatives

_library = torch.library.Library("burnish", "FRAGMENT")
_library.define("block(Tensor[] operands, SymInt[] sizes, int call) -> Tensor[]")
_library.define("block_backward(Tensor[] operands, SymInt[] sizes, Tensor[] tangents, int call) -> Tensor[]")
_forward, _backward = torch.ops.burnish.block.default, torch.ops.burnish.block_backward.default
_WRITERS = {"setitem", "batch_norm", "instance_norm", *(name for name in vars(operator) if name[0] == "i")}
_serial = itertools.count(1)
_calls: dict[int, _Kind] = {}  # calls in graphs that are passing through AOTAutograd


@dataclass(eq=False)
class _Kind:
    """One kind of block, as ATen operations: inputs, then gradients of results; results, then gradients of inputs."""

    graph: fx.Graph
    inputs: list[fx.Node]
    tangents: list[fx.Node]
    results: list[fx.Node]
    gradients: list[fx.Node | None]
    differentiable: list[bool]  # which results have gradients
    written: list[int] = field(default_factory=list)  # inputs whose new contents are the last results
    forward: set[fx.Node] = field(default_factory=set)  # the values needed for the results

    def __post_init__(self) -> None:
        stack = list(self.results)
        while stack:
            node = stack.pop()
            if node not in self.forward:
                self.forward.add(node)
                stack.extend(node.all_input_nodes)


class Sharing:
    """One graph's blocks. `graph` is what AOTAutograd takes; `close` when it is done with it."""

    def __init__(self, flat: fx.GraphModule, kinds: list[tuple[_Kind, list[list[fx.Node]]]]) -> None:
        self._mine: list[int] = []
        first = {nodes[0]: (kind, nodes) for kind, calls in kinds for nodes in calls}
        within = {node for _, calls in kinds for nodes in calls for node in nodes}
        made, env = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in flat.graph.nodes:
            if node in first:
                self._call(made, env, *first[node])
            if node not in within:
                env[node] = made.node_copy(node, env.__getitem__)
                _keep(node, env[node], "_dynamo_source")
        self.graph = fx.GraphModule(flat, made)
        self.graph.meta = dict(flat.meta)
        _keep(flat, self.graph, "_param_name_to_source")

    def _call(self, made: fx.Graph, env: dict[fx.Node, fx.Node], kind: _Kind, nodes: list[fx.Node]) -> None:
        number = next(_serial)
        self._mine.append(number)
        _calls[number] = kind
        inputs, results = _ends(nodes)
        given = [env[x] for x in inputs]
        for i in kind.written if kind.gradients else ():  # the backward, too, gets the old value
            given[i] = made.call_method("clone", (given[i],))
        call = made.call_function(_run, (number, *given))
        for i, result in enumerate(results):
            env[result] = made.call_function(operator.getitem, (call, i))
        for i, written in enumerate(kind.written, len(results)):
            made.call_method("copy_", (env[inputs[written]], made.call_function(operator.getitem, (call, i))))

    def close(self) -> None:
        for number in self._mine:
            _calls.pop(number, None)


def _keep(old: object, new: object, attribute: str) -> None:
    """Keep Dynamo's metadata for AOTAutograd: the inputs' sources, which tell the parameters and buffers."""
    if hasattr(old, attribute):
        setattr(new, attribute, getattr(old, attribute))


def share_blocks(flat: fx.GraphModule, decompositions: dict[Any, Any], log: CompileLog) -> Sharing | None:
    """The graph with one operation for each call of a block that has equals in it; None if there is no such block."""
    kinds: list[tuple[_Kind, list[list[fx.Node]]]] = []
    autocasts = _autocasts(flat)
    if autocasts is None:
        return None
    for calls in _equal(_spans(flat), autocasts):
        name = calls[0][0].meta[MARK].name
        try:
            kind = _traced(flat, calls[0], autocasts[calls[0][0]], decompositions)
            if kind.written:
                _require_apart(flat, calls)
            kinds.append((kind, calls))
        except Exception as error:
            log.region(name, reason=str(error).splitlines()[0][:200] if str(error) else type(error).__name__)
        else:
            log.region(name, shared=len(calls))
    return Sharing(flat, kinds) if kinds else None


_Autocasts = tuple[tuple[Any, ...], ...]  # the active autocasts, by their arguments, from the outside in


def _autocasts(flat: fx.GraphModule) -> dict[fx.Node, _Autocasts] | None:
    """The autocasts around each node, except those that blocks enter themselves. None if a transform, or another
    context that changes semantics, is entered between blocks."""
    found: dict[fx.Node, _Autocasts] = {}
    entered: dict[fx.Node, tuple[Any, ...]] = {}
    for node in flat.graph.nodes:
        if MARK not in node.meta:
            name = getattr(node.target, "__name__", str(node.target))
            if node.target is enter_autocast:
                entered[node] = node.args
            elif node.target is exit_autocast:
                del entered[node.args[0]]
            elif "_enter_" in name or "_nesting" in name:
                return None
        found[node] = tuple(entered.values())
    return found


# --- what is equal ----------------------------------------------------------------------------------------------


def _spans(flat: fx.GraphModule) -> list[list[fx.Node]]:
    """The nodes of each call whose nodes follow one another."""
    found: dict[Span, list[fx.Node]] = {}
    broken: set[Span] = set()
    last: Span | None = None
    for node in flat.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        span = node.meta.get(MARK)
        if span is not None:
            if span in found and last is not span:
                broken.add(span)
            found.setdefault(span, []).append(node)
        last = span
    return [nodes for span, nodes in found.items() if span not in broken]


def _equal(spans: list[list[fx.Node]], autocasts: dict[fx.Node, _Autocasts]) -> list[list[list[fx.Node]]]:
    groups: dict[Any, list[list[fx.Node]]] = {}
    for nodes in spans:
        try:
            groups.setdefault((autocasts[nodes[0]], _signature(nodes)), []).append(nodes)
        except (Differs, TypeError):  # something that cannot be compared
            continue
    return [calls for calls in groups.values() if len(calls) > 1]


def _ends(nodes: list[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    """The values that the block reads from outside, in order of use, and its values that are read outside."""
    own = set(nodes)
    inputs = dict.fromkeys(x for node in nodes for x in node.all_input_nodes if x not in own)
    return list(inputs), [node for node in nodes if any(user not in own for user in node.users)]


def _signature(nodes: list[fx.Node]) -> Any:
    inputs, results = _ends(nodes)
    names: dict[fx.Node, Any] = {x: ("input", i) for i, x in enumerate(inputs)}
    names |= {x: ("node", i) for i, x in enumerate(nodes)}
    rows = tuple((n.op, n.target, _canonical(n.args, names), _canonical(n.kwargs, names)) for n in nodes)
    kinds = tuple(_input_kind(x) for x in inputs)
    signature = (rows, kinds, tuple(names[r] for r in results))
    hash(signature)
    return signature


def _canonical(value: Any, names: dict[fx.Node, Any]) -> Any:
    if isinstance(value, fx.Node):
        return names[value]
    if isinstance(value, tuple | list):
        return (type(value).__name__, *(_canonical(v, names) for v in value))
    if isinstance(value, dict):
        return tuple((k, _canonical(v, names)) for k, v in value.items())
    if isinstance(value, slice):
        return ("slice", *(_canonical(v, names) for v in (value.start, value.stop, value.step)))
    return (type(value).__name__, repr(value) if isinstance(value, float) else value)


def _input_kind(node: fx.Node) -> Any:
    value = node.meta["example_value"]
    return metadata(value) if isinstance(value, torch.Tensor) else (type(value).__name__, str(value))


def _require_apart(flat: fx.GraphModule, calls: list[list[fx.Node]]) -> None:
    """Require that no outside tensor that a block reads and writes shares memory with another: the body is traced with
    separate memory."""
    if any(node.meta.get(SHARES) for node in flat.graph.nodes):
        raise Differs("it writes into its inputs, and another block's result shares memory with what that was given")
    for nodes in calls:
        tensors = [x.meta["example_value"] for x in _ends(nodes)[0]]
        storages = [x.untyped_storage()._cdata for x in tensors if isinstance(x, torch.Tensor)]
        if len(set(storages)) != len(storages):
            raise Differs("it writes into its inputs, and they share memory")


# --- one kind, traced -------------------------------------------------------------------------------------------


def _traced(flat: fx.GraphModule, nodes: list[fx.Node], autocasts: _Autocasts, decompositions: dict[Any, Any]) -> _Kind:
    inputs, results = _ends(nodes)
    body, env = fx.Graph(), dict[fx.Node, fx.Node]()
    for x in inputs:
        env[x] = body.placeholder(x.name)
    entered = [body.call_function(enter_autocast, each) for each in autocasts]
    for node in nodes:
        env[node] = body.node_copy(node, env.__getitem__)
    for each in reversed(entered):  # gradients are computed outside, as they are in eager
        body.call_function(exit_autocast, (each,))
    body.output(tuple(env[r] for r in results))
    given = [_fresh(x.meta["example_value"]) for x in inputs]
    if not all(isinstance(x, torch.Tensor | torch.SymInt | int) for x in given):
        raise Differs("an input that is neither tensor nor size")
    module = fx.GraphModule(flat, body)
    written = _written(module, given) if any(map(_may_write, nodes)) else []
    wants = [isinstance(x, torch.Tensor) and x.requires_grad for x in given]
    joint = torch.is_grad_enabled() and any(wants)

    def run(*arguments: Any) -> tuple[Any, ...]:
        mine = [x.clone() if i in written else x for i, x in enumerate(arguments)]
        returned = fx.Interpreter(module).run(*mine)
        return (*returned, *(mine[i] for i in written))

    with own_derivatives(), checking_classes():
        traced: Any = aot_export_joint_simple(run, tuple(given), trace_joint=joint, decompositions=decompositions)
    differentiable = [joint and bool(r.meta["example_value"].requires_grad) for r in results] + [False] * len(written)
    _without_clones(traced.graph, written)
    return _kind(traced.graph, len(inputs), written, differentiable)


def _may_write(node: fx.Node) -> bool:
    """Whether a call seems to write an operand. AOTAutograd decides in the end."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.endswith("_") or name in _WRITERS or "out" in node.kwargs


def _written(module: fx.GraphModule, given: list[Any]) -> list[int]:
    """The inputs that the operations write, found by a run on fake tensors."""
    tensors = {i: x for i, x in enumerate(given) if isinstance(x, torch.Tensor)}
    mode = next(x.fake_mode for x in tensors.values() if isinstance(x, FakeTensor))
    with mode, torch.no_grad():
        mine = {i: x.detach().clone() for i, x in tensors.items()}
        before = {i: x._version for i, x in mine.items()}
        fx.Interpreter(module).run(*(mine.get(i, x) for i, x in enumerate(given)))
    silent = _running_statistics(module.graph)
    written = [i for i, x in mine.items() if x._version != before[i] or i in silent]
    for i in written:
        if given[i].requires_grad or mine[i].stride() != given[i].stride() or _kind_of(mine[i]) != _kind_of(given[i]):
            raise Differs("it writes into an input in a way that cannot be written as a result")
    return written


def _running_statistics(graph: fx.Graph) -> set[int]:
    """Inputs that batch norms write, which a run on fake tensors does not show."""
    placeholders = {node: i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
    norms = [node for node in graph.nodes if node.target is functional.batch_norm]
    training = [node for node in norms if node.args[5:6] == (True,)]
    return {placeholders[x] for node in training for x in node.args[1:3] if x in placeholders}


def _kind_of(x: torch.Tensor) -> Any:
    return (x.dtype, x.is_neg(), x.is_conj(), tuple(map(str, (*x.shape, *x.stride(), x.storage_offset()))))


def _without_clones(graph: fx.Graph, written: list[int]) -> None:
    """Remove clones: the operations are functional now, so a clone made for a write is the input itself."""
    placeholders = graph.find_nodes(op="placeholder")
    for i in written:
        copies = [user for user in placeholders[i].users if _is_clone(user)]
        if len(copies) != 1 or len(placeholders[i].users) != 1:
            raise Differs("an input that it writes into has other readers")
        copies[0].replace_all_uses_with(placeholders[i])
        graph.erase_node(copies[0])


def _fresh(value: Any) -> Any:
    """An input as a separate leaf."""
    if not isinstance(value, torch.Tensor):
        return value
    assert isinstance(value, FakeTensor)
    with value.fake_mode, torch.no_grad():
        made = blank_like(value)
    return made.requires_grad_(value.requires_grad)


def _kind(graph: fx.Graph, inputs: int, written: list[int], differentiable: list[bool]) -> _Kind:
    placeholders, results = graph.find_nodes(op="placeholder"), len(differentiable)
    returned: list[Any] = list(graph.output_node().args[0])  # type: ignore[arg-type]
    gradients = returned[results:]
    kind = _Kind(
        graph, placeholders[:inputs], placeholders[inputs:], returned[:results], gradients, differentiable, written
    )
    if any(n.op not in ("placeholder", "call_function", "output") for n in graph.nodes):
        raise Differs("it holds constants")
    if len(kind.tangents) != sum(differentiable) or any(not isinstance(r, fx.Node) for r in kind.results):
        raise Differs("not every result has its gradient")
    if any(r in kind.inputs for r in kind.results) or len(set(kind.results)) != len(kind.results):
        raise Differs("a result is an input or another result")
    if kind.gradients and len(kind.gradients) != inputs:
        raise Differs("not every input has its gradient")
    for i, result in zip(written[::-1], kind.results[::-1], strict=False):
        if _kind_of(result.meta["val"]) != _kind_of(kind.inputs[i].meta["val"]):
            raise Differs("what it writes into an input lies in memory in another way")
    return kind


# --- the operation ----------------------------------------------------------------------------------------------


def _empty(node: fx.Node) -> torch.Tensor:
    return blank_like(node.meta["val"])


def _require_kinds(nodes: Sequence[fx.Node], given: Sequence[torch.Tensor]) -> None:
    for node, x in zip(nodes, given, strict=True):
        like = node.meta["val"]
        if tuple(map(str, (*like.shape, *like.stride()))) != tuple(map(str, (*x.shape, *x.stride()))):
            raise Differs(f"{node.name} of a block lies in memory in another way than in its equals")


@torch.library.register_fake("burnish::block", lib=_library)
def _block(operands: list[torch.Tensor], sizes: list[int], call: int) -> list[torch.Tensor]:
    kind = _calls[call]
    _require_kinds([x for x in kind.inputs if isinstance(x.meta["val"], torch.Tensor)], operands)
    return [_empty(result) for result in kind.results]


@torch.library.register_fake("burnish::block_backward", lib=_library)
def _block_backward(
    operands: list[torch.Tensor], sizes: list[int], tangents: list[torch.Tensor], call: int
) -> list[torch.Tensor]:
    kind = _calls[call]
    _require_kinds(kind.tangents, tangents)
    return [_empty(gradient) for gradient in kind.gradients if gradient is not None]


def _parted(arguments: Sequence[Any]) -> tuple[list[torch.Tensor], list[Any]]:
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    return tensors, [x for x in arguments if not isinstance(x, torch.Tensor)]


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: int, *arguments: Any) -> tuple[torch.Tensor, ...]:
        tensors, sizes = _parted(arguments)
        ctx.call, ctx.sizes = call, sizes
        ctx.places = [isinstance(x, torch.Tensor) for x in arguments]
        ctx.save_for_backward(*tensors)
        results = _forward(tensors, sizes, call)
        fixed = [r for r, wanted in zip(results, _calls[call].differentiable, strict=True) if not wanted]
        ctx.mark_non_differentiable(*fixed)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        kind = _calls[ctx.call]
        given = [g for g, wanted in zip(gradients, kind.differentiable, strict=True) if wanted]
        tangents = [_laid_out(g, like.meta["val"]) for g, like in zip(given, kind.tangents, strict=True)]
        made = iter(_backward(list(ctx.saved_tensors), ctx.sizes, tangents, ctx.call))
        return None, *(None if gradient is None else next(made) for gradient in kind.gradients)


def _laid_out(gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if tuple(map(str, gradient.stride())) == tuple(map(str, like.stride())):
        return gradient
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device).copy_(gradient)


def _run(call: int, *arguments: Any) -> Sequence[torch.Tensor]:
    kind = _calls[call]
    if kind.gradients and torch.is_grad_enabled():
        results: Sequence[torch.Tensor] = _Block.apply(call, *arguments)
        return results
    return _forward(*_parted(arguments), call)


# --- put back ---------------------------------------------------------------------------------------------------


def put_back(module: fx.GraphModule) -> None:
    """Inline each block's operations at its call."""
    made: dict[int, _Placed] = {}
    graph = module.graph
    calls = [n for n in graph.nodes if n.target is _forward or n.target is _backward]
    for node in calls:
        is_forward = node.target is _forward
        number = node.args[-1]
        assert isinstance(number, int)
        if number not in made:
            made[number] = _Placed(_calls[number])
        with disable_current_modes(), graph.inserting_before(node):
            results = made[number].forward(graph, node) if is_forward else made[number].backward(graph, node)
        for user in list(node.users):
            assert user.target is operator.getitem
            for reader in list(user.users):
                if _is_new_contents(reader, user):
                    reader.replace_all_uses_with(user)
                    graph.erase_node(reader)
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        clones = [x for x in node.args[0] if _is_clone(x)]
        graph.erase_node(node)
        for clone in clones:
            if not clone.users:
                graph.erase_node(clone)
    if calls:
        module.recompile()


def _is_clone(node: Any) -> bool:
    return node.target is torch.ops.aten.clone.default


def _is_new_contents(node: fx.Node, result: fx.Node) -> bool:
    """Whether the result is the new content of an input."""
    if node.target is not torch.ops.aten.copy.default or node.args[1] is not result:
        return False
    return _kind_of(node.meta["val"]) == _kind_of(result.meta["val"])


class _Placed:
    """One call's inlined operations. Their fake values are separate tensors, because later stages compare storages."""

    def __init__(self, kind: _Kind) -> None:
        self.kind = kind
        self.env: dict[fx.Node, fx.Node] = {}
        self.storages: dict[int, Any] = {}

    def forward(self, graph: fx.Graph, call: fx.Node) -> list[fx.Node]:
        self._bind(call)
        self._copy(graph, lambda node: node in self.kind.forward)
        return [self.env[r] for r in self.kind.results]

    def backward(self, graph: fx.Graph, call: fx.Node) -> list[fx.Node]:
        if not self.env:
            self._bind(call)
        for tangent, given in zip(self.kind.tangents, call.args[2], strict=True):  # type: ignore[arg-type]
            self._is(tangent, given)
        self._copy(graph, lambda node: True)
        return [self.env[g] for g in self.kind.gradients if g is not None]

    def _bind(self, call: fx.Node) -> None:
        tensors, sizes = iter(call.args[0]), iter(call.args[1])  # type: ignore[arg-type]
        for i, x in enumerate(self.kind.inputs):
            given = next(tensors) if isinstance(x.meta["val"], torch.Tensor) else next(sizes)
            self._is(x, given.args[0] if i in self.kind.written and _is_clone(given) else given)

    def _is(self, inner: fx.Node, outer: Any) -> None:
        self.env[inner] = outer
        value = inner.meta["val"]
        if isinstance(value, torch.Tensor):
            self.storages[value.untyped_storage()._cdata] = outer.meta["val"].untyped_storage()

    def _copy(self, graph: fx.Graph, wanted: Any) -> None:
        for node in self.kind.graph.nodes:
            if node.op == "call_function" and node not in self.env and wanted(node):
                copy = graph.node_copy(node, self.env.__getitem__)
                copy.meta["val"] = self._value(node.meta.get("val"))
                self.env[node] = copy

    def _value(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(self._value(v) for v in value)
        if not isinstance(value, FakeTensor):
            return value
        key = value.untyped_storage()._cdata
        blank = torch.empty(0, dtype=value.dtype, device="meta")
        if key not in self.storages:
            blank = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
            if value.storage_offset() == 0:
                self.storages[key] = blank.untyped_storage()
                return FakeTensor(value.fake_mode, blank, value.device)
            self.storages[key] = torch.UntypedStorage(value.untyped_storage().nbytes(), device="meta")
        blank = torch.empty(0, dtype=value.dtype, device="meta")
        blank.set_(self.storages[key], value.storage_offset(), value.shape, value.stride())
        return FakeTensor(value.fake_mode, blank, value.device)
