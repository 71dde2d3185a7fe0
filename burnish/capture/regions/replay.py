"""Repeated blocks in TorchDynamo: the first call of a block is traced, and later calls of equal blocks are copied.

While a model is traced, each call of a module that has equals in the model (`blocks.py`) passes through here. The first
call is recorded: its operations, their outside inputs, the result, and the guards on the block. The guards cover
everything that Dynamo read from the block. So Dynamo would trace another block to the same operations if the same
guards hold on it. If all hold, the operations are copied with the new block's weights and arguments, and the guards are
installed for it, too, so that later changes are noticed as usual. An element that a block finds by its own index in a
shared object (a cache's layer) counts as part of the block (`layer_index.py`). In all other cases (an index that
affects the computation, a side effect) Dynamo traces the block normally. The resulting graph is the same in both cases:
flat, operation for operation.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx

from burnish.capture.regions.blocks import repeated_blocks
from burnish.capture.regions.guard_match import Differs, Moved, Resolver, holds, mentions, sources, within, within_any
from burnish.capture.regions.layer_index import Following, Number, NumberVariable, differing_numbers, follow
from burnish.capture.regions.spans import MARK, SHARES, Span, metadata
from burnish.lower.aten_calls import blank_like
from burnish.observe.log import CompileLog
from burnish.options import Regions
from burnish.torch_private.dispatch import is_any_autocast_enabled, len_torch_function_stack
from burnish.torch_private.dynamo import TorchDynamoException
from burnish.torch_private.guards import GetItemSource, Guard, Source, install_guard
from burnish.torch_private.patches.tracing import calling_modules_with
from burnish.torch_private.variables import (
    AttributeMutationExisting,
    AttributeMutationNew,
    ConstantVariable,
    ConstDictVariable,
    ListVariable,
    SymNodeVariable,
    TensorVariable,
    TupleVariable,
    UnspecializedNNModuleVariable,
    UserDefinedObjectVariable,
    ValueMutationNew,
    VariableBuilder,
    wrap_fx_proxy,
)

_OF_NUMBERS = {"CONSTANT_MATCH", "EQUALS_MATCH", "TYPE_MATCH"}
_active = threading.local()


@dataclass
class _Recorded:
    """Dynamo's trace of one call."""

    module: torch.nn.Module
    source: Source
    arguments: tuple[Any, ...]  # the description of them
    state: tuple[Any, ...]
    nodes: list[fx.Node]
    # The outside inputs: an argument (its index), a value of the block (its source), or a shared value (None).
    outside: list[tuple[fx.Node, int | Source | None]]
    given: dict[fx.Node, int]  # tensors among the arguments
    numbers: list[Number]
    guards: list[Guard]  # on the block, and on elements found by its numbers
    values: dict[Source, Any]  # what the guards looked at
    result: Any
    sharing: set[fx.Node]  # results that share memory with an outside tensor


@dataclass
class Replay:
    """One trace's blocks. `kinds` gives equal modules a common key. `numbers` are the attributes in which equals
    differ: module and name."""

    wanted: Literal["auto"] | tuple[type | str, ...]
    kinds: dict[int, object] = field(default_factory=dict)
    numbers: set[tuple[int, str]] = field(default_factory=set)
    copied: dict[str, int] = field(default_factory=dict)  # class -> calls
    traced: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # class -> why its last traced block was not copied
    _records: dict[int, dict[object, list[_Recorded]]] = field(default_factory=dict)
    _outputs: list[Any] = field(default_factory=list)  # keeps ids in `_records` valid
    _inside: bool = False
    _serial: int = 0
    _seen: dict[int, torch.nn.Module] = field(default_factory=dict)

    def look_at(self, model: torch.nn.Module) -> None:
        """Find the blocks of a model that the traced function refers to or calls."""
        if id(model) in self._seen:
            return
        self._seen |= {id(module): module for module in model.modules()}
        kinds = repeated_blocks(model, self.wanted)
        self.kinds |= kinds
        self.numbers |= differing_numbers(kinds, self._seen)

    def call(self, trace: Callable[..., Any], variable: Any, tx: Any, args: Sequence[Any], kwargs: Any) -> Any:
        self.look_at(variable.value)
        kind = self.kinds.get(id(variable.value))
        output = tx.output
        if kind is None or self._inside or variable.source is None or len(output.tracers) != 1 or output.export:
            return trace(variable, tx, args, kwargs)
        name = type(variable.value).__name__
        records = self._of(output).setdefault(kind, [])
        span = self._span(name)
        leaves: list[Any] = []
        described = _described([*args, *kwargs.values()], leaves, tuple(kwargs))
        if described is not None:
            for record in reversed(records):
                try:
                    result = _Copy(tx, record, variable, described, leaves, span).make()
                except Differs as why:
                    self.reasons[name] = str(why)
                    continue
                except TorchDynamoException:
                    raise
                except Exception as error:  # an unknown version of torch
                    self.reasons[name] = f"{type(error).__name__}: {error}"
                    continue
                self.copied[name] = self.copied.get(name, 0) + 1
                return result
        else:
            self.reasons[name] = "an argument that is neither tensor, constant nor an object from outside"
        return self._trace(trace, variable, tx, args, kwargs, described, leaves, records, span)

    def _span(self, name: str) -> Span:
        self._serial += 1
        return Span(name, self._serial)

    def _of(self, output: Any) -> dict[object, list[_Recorded]]:
        if id(output) not in self._records:
            self._outputs.append(output)
            for counts in (self.copied, self.traced, self.reasons):  # Dynamo begins again
                counts.clear()
        return self._records.setdefault(id(output), {})

    def _trace(
        self,
        trace: Callable[..., Any],
        variable: Any,
        tx: Any,
        args: Sequence[Any],
        kwargs: Any,
        described: tuple[Any, ...] | None,
        leaves: list[Any],
        records: list[_Recorded],
        span: Span,
    ) -> Any:
        graph = tx.output.graph
        last, held = graph._root._prev, len(tx.output.nn_modules)
        try:
            state = _state(tx)
        except Differs as why:
            self.reasons[span.name], described = str(why), None
        following = Following(tx, self._is_number(tx, variable.source))
        self._inside = True
        try:
            with follow(following) if self.numbers else contextlib.nullcontext():
                result = trace(variable, tx, args, kwargs)
        finally:
            self._inside = False
        self.traced[span.name] = self.traced.get(span.name, 0) + 1
        nodes = _after(last)
        for node in nodes:
            node.meta[MARK] = span
        try:
            if described is None:
                return result
            again: list[Any] = []
            now = _described([*args, *kwargs.values()], again, tuple(kwargs))
            if now is None or _skeleton(now) != _skeleton(described) or again != leaves:
                raise Differs("it changes a list that it is given")
            if state != _state(tx) or held != len(tx.output.nn_modules):
                raise Differs("it changes something other than its result")
            if following.ambiguous():
                raise Differs("it looks into a list with its number, and in other ways, too")
            numbers = list(following.numbers.values())
            # Describe them again, with sizes that became known.
            records.append(_record(tx, variable, now, leaves, nodes, state, numbers, result))
        except Differs as why:
            self.reasons[span.name] = str(why)
        except Exception as error:
            self.reasons[span.name] = f"{type(error).__name__}: {error}"
        return result

    def _is_number(self, tx: Any, block: Source) -> Callable[[Any], bool]:
        resolve, names = Resolver(tx), {name for _, name in self.numbers}
        return lambda s: s.member in names and within(s, block) and (id(resolve(s.base)), s.member) in self.numbers


def _after(last: fx.Node) -> list[fx.Node]:
    found, node = [], last._next
    while node.op != "root":
        if node.op != "placeholder":
            found.append(node)
        node = node._next
    return found


def _state(tx: Any) -> tuple[Any, ...]:
    """The thread's state and pending changes: under another state the same operations have another meaning."""
    autocast = is_any_autocast_enabled()
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast,
        tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")) if autocast else (),
        torch.get_default_dtype(),
        len_torch_function_stack(),
        _pending(tx),
    )


def _pending(tx: Any) -> frozenset[Any]:
    """The traced code's changes of existing objects: new attribute values. Objects created in the trace reach a block
    only as arguments."""
    effects = tx.output.side_effects
    found: set[Any] = {("hooks", len(effects.tensor_hooks)), ("saved", len(effects.save_for_backward))}
    for variable in _changed(tx):
        if not isinstance(variable.mutation_type, AttributeMutationExisting):
            found.add((id(variable), _contents(variable)))
        for name, value in effects.store_attr_mutations.get(variable, {}).items():
            found.add((id(variable), name, id(value)))
    return frozenset(found)


def _changed(tx: Any) -> list[Any]:
    effects = tx.output.side_effects
    changed = [v for v in effects.id_to_variable.values() if effects.is_modified(v)]
    return [v for v in changed if not isinstance(v.mutation_type, AttributeMutationNew | ValueMutationNew)]


def _contents(variable: Any) -> tuple[Any, ...]:
    """The members of a changed list or dictionary, by identity: tracing keeps them all alive."""
    if isinstance(variable, ListVariable):
        return tuple(map(id, variable.items))
    if isinstance(variable, ConstDictVariable):
        return tuple((id(key.vt), id(value)) for key, value in variable.items.items())
    raise Differs(f"a {type(variable).__name__} was changed")


# --- arguments --------------------------------------------------------------------------------------------------


def _described(arguments: Sequence[Any], leaves: list[Any], names: tuple[str, ...]) -> tuple[Any, ...] | None:
    """Arguments as data that can be compared; tensors among them are put into `leaves`, in order."""
    shown = [_shown(a, leaves) for a in arguments]
    return None if any(s is None for s in shown) else (names, *shown)


def _shown(variable: Any, leaves: list[Any]) -> tuple[Any, ...] | None:
    variable = variable.realize() if hasattr(variable, "realize") else variable
    if type(variable) is TensorVariable:
        leaves.append(variable)
        first = next(i for i, known in enumerate(leaves) if known.as_proxy().node is variable.as_proxy().node)
        return ("tensor", first, *metadata(variable.as_proxy().node.meta["example_value"]))
    if isinstance(variable, SymNodeVariable):
        return ("size", str(variable.sym_num))
    if isinstance(variable, ConstantVariable):
        return ("constant", type(variable.value), variable.value)
    if type(variable) in (TupleVariable, ListVariable):
        items = [_shown(item, leaves) for item in variable.items]
        return None if any(i is None for i in items) else (type(variable), *items)
    if isinstance(variable, UserDefinedObjectVariable) and variable.source is not None:
        return ("object", id(variable))  # by identity; tracing keeps it alive
    return None


def _skeleton(shown: Any) -> Any:
    """The description without tensors' metadata: tracing may specialise sizes later."""
    if not isinstance(shown, tuple) or not shown:
        return shown
    return shown[:2] if shown[0] == "tensor" else tuple(map(_skeleton, shown))


# --- recording --------------------------------------------------------------------------------------------------


def _record(
    tx: Any,
    variable: Any,
    described: tuple[Any, ...],
    leaves: list[Any],
    nodes: list[fx.Node],
    state: Any,
    numbers: list[Number],
    result: Any,
) -> _Recorded:
    nodes = [node for node in nodes if not _is_number(node)]
    own, roots = set(nodes), [variable.source, *_found(numbers)]
    given: dict[fx.Node, int] = {}
    for i, leaf in enumerate(leaves):
        given.setdefault(leaf.as_proxy().node, i)
    outside: dict[fx.Node, int | Source | None] = {}
    for node in nodes:
        if node.op not in ("call_function", "call_method"):
            raise Differs(f"a {node.op} in the graph")
        for read in node.all_input_nodes:
            if read not in own and read not in outside:
                outside[read] = _origin(tx, read, given, roots)
    _copied_result(result, lambda leaf: _result_place(leaf, own, given))
    guards = [g for g in tx.output.guards if mentions(g, roots)]
    values: dict[Source, Any] = {}
    resolve = Resolver(tx)
    for guard in guards:
        for source in sources(guard):
            values[source] = resolve(source)
    return _Recorded(
        variable.value,
        variable.source,
        described,
        state,
        nodes,
        list(outside.items()),
        given,
        numbers,
        guards,
        values,
        result,
        {node for node in nodes if _storage(node) in {_storage(x) for x in outside} - {None}},
    )


def _storage(node: fx.Node) -> int | None:
    value = node.meta.get("example_value")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _found(numbers: list[Number]) -> list[Source]:
    """What was found in lists by numbers."""
    return [GetItemSource(held, number.value) for number in numbers for held in number.lists]


def _origin(tx: Any, node: fx.Node, given: dict[fx.Node, int], roots: list[Source]) -> int | Source | None:
    is_number = _is_number(node)
    source = _source_of(node.args[0] if is_number else node)
    of_block = source is not None and within_any(source, roots)
    if node in given:
        if of_block:
            raise Differs("a weight of the block is also an argument")
        return given[node]
    if source is None or not (is_number or node.op == "placeholder"):
        raise Differs(f"it reads {node.name}, which is no argument")
    if not of_block:
        return None
    if is_number:
        _require_undecided(tx, node.meta["example_value"])
    elif not isinstance(node.meta.get("example_value"), torch.Tensor):
        raise Differs("a number of the block is an input")
    return source


def _is_number(node: fx.Node) -> bool:
    """A float that is an input instead of a constant: Dynamo passes it as a tensor and extracts the number."""
    of = node.args[0] if node.op == "call_method" and node.target == "item" else None
    return isinstance(of, fx.Node) and of.op == "placeholder" and _source_of(of) is not None


def _source_of(node: Any) -> Source | None:
    return getattr(node.meta.get("grapharg"), "source", None)


def _require_undecided(tx: Any, number: Any) -> None:
    """Require that the code has not used any property of it, which may differ for another block."""
    if not isinstance(number, torch.SymFloat):
        raise Differs("a number of the block is an input")
    symbols = number.node.expr.free_symbols
    if any(symbols & guard.expr.free_symbols for guard in tx.output.shape_env.guards):
        raise Differs("a number of the block decides what is computed")


def _result_place(leaf: Any, own: set[fx.Node], given: dict[fx.Node, int]) -> Any:
    node = leaf.as_proxy().node
    if node not in own and node not in given:
        raise Differs("a result that the block did not compute")
    return leaf


def _copied_result(result: Any, tensor: Callable[[Any], Any]) -> Any:
    """A copy of the result with each tensor replaced."""
    result = result.realize() if hasattr(result, "realize") else result
    if type(result) is TensorVariable:
        return tensor(result)
    if isinstance(result, ConstantVariable) and not isinstance(result, NumberVariable):
        return result
    if type(result) in (TupleVariable, ListVariable):
        return type(result)([_copied_result(i, tensor) for i in result.items], mutation_type=_as_new(result))
    raise Differs("a result that is neither tensor nor a list of tensors")


def _as_new(result: Any) -> Any:
    return ValueMutationNew() if type(result) is ListVariable else None


# --- copying ----------------------------------------------------------------------------------------------------


class _Copy:
    """A recorded call, made again for another block."""

    def __init__(
        self, tx: Any, record: _Recorded, variable: Any, described: tuple[Any, ...], leaves: list[Any], span: Span
    ) -> None:
        self.tx = tx
        self.record = record
        self.leaves = leaves
        self.span = span
        self.moved = Moved(record.source, variable.source)
        self.resolve = Resolver(tx)
        if record.arguments != described:
            raise Differs("other arguments")
        if record.state != _state(tx):
            raise Differs("something was changed since")
        for number in record.numbers:
            self._find(number)
        roots = [*self.moved.roots, *self.moved.roots.values()]
        if any(v.source is not None and within_any(v.source, roots) for v in _changed(tx)):
            raise Differs("a part of it was changed")

    def _find(self, number: Number) -> None:
        """The element at the block's own number replaces the recorded one."""
        new = self.resolve(self.moved(number.source))
        if not number.fits(new):
            raise Differs(f"the number {self.moved(number.source).name}")
        for held in number.lists:
            place = self.moved(held)
            if not new < len(self.resolve(place)):
                raise Differs(f"{place.name} ends before its number")
            self.moved.root(GetItemSource(held, number.value), GetItemSource(place, new))

    def make(self) -> Any:
        guards = [guard for guard in map(self._checked, self.record.guards) if guard is not None]
        places = {node: self._outside(node, origin) for node, origin in self.record.outside}
        self._require_same_sharing(places)
        install_guard(*guards)
        last = self.tx.output.graph._root._prev
        try:
            return self._written(places)
        except BaseException:
            for node in reversed(_after(last)):
                self.tx.output.graph.erase_node(node)
            raise

    def _written(self, places: dict[fx.Node, fx.Node]) -> Any:
        graph = self.tx.output.graph
        for node in self.record.nodes:
            copy = graph.create_node(
                node.op,
                node.target,
                fx.map_arg(node.args, places.__getitem__),
                fx.map_arg(node.kwargs, places.__getitem__),
            )
            copy.meta = {**node.meta, MARK: self.span}
            if "nn_module_stack" in node.meta:  # separate modules, called separately
                stack = node.meta["nn_module_stack"]
                copy.meta["nn_module_stack"] = {f"{key}@{self.span.serial}": value for key, value in stack.items()}
            places[node] = copy
        return _copied_result(self.record.result, lambda leaf: self._result(leaf, places))

    def _checked(self, guard: Guard) -> Guard | None:
        """The guard for the new block, if it holds there; None if the value does not belong to the new block."""
        old, new = guard.originating_source, self.moved(guard.originating_source)
        kind = guard.create_fn_name()
        if new is old and kind != "DUPLICATE_INPUT":
            return None
        if kind == "DUPLICATE_INPUT" and new in map(self.moved, sources(guard)[1:]):
            return None
        was, now = self.record.values[old], self.resolve(new)
        is_number = kind in _OF_NUMBERS and any(number.source == old for number in self.record.numbers)  # which fit
        if not is_number and not holds(guard, was, now, self.moved, self.resolve):
            raise Differs(f"{kind} of {new.name}")
        if kind == "TENSOR_MATCH":
            self._input(new)
            return None
        create = guard.create_fn
        if isinstance(create, functools.partial):
            moved = {k: self.moved(v) if isinstance(v, Source) else v for k, v in create.keywords.items()}
            if create.args or "value" in moved:
                raise Differs(f"a guard about an object: {kind} of {new.name}")
            if moved != create.keywords:
                create = functools.partial(create.func, **moved)
        return Guard(new, create, stack=guard.stack, user_stack=guard.user_stack)  # a new stack takes 100 us

    def _input(self, source: Source) -> Any:
        return VariableBuilder(self.tx, source)(self.resolve(source)).realize()

    def _outside(self, node: fx.Node, origin: int | Source | None) -> fx.Node:
        if origin is None:
            return node
        if isinstance(origin, int):
            given: fx.Node = self.leaves[origin].as_proxy().node
            return given
        variable = self._input(self.moved(origin))
        found: fx.Node = variable.as_proxy().node
        number = node.meta["example_value"]
        if isinstance(number, torch.SymFloat) and isinstance(variable, SymNodeVariable):
            if number.node.expr.is_number and not bool(variable.sym_num == float(number.node.expr)):  # which is guarded
                raise Differs(f"{self.moved(origin).name} has another value")
            return found
        if type(variable) is not TensorVariable:
            raise Differs(f"{self.moved(origin).name} is no plain tensor")
        if metadata(found.meta["example_value"]) != metadata(node.meta["example_value"]):
            raise Differs(f"{self.moved(origin).name} has another size or type")
        return found

    def _require_same_sharing(self, places: dict[fx.Node, fx.Node]) -> None:
        if len(set(places.values())) != len(places):
            raise Differs("two of its weights are one")

    def _result(self, leaf: Any, places: dict[fx.Node, fx.Node]) -> Any:
        node = leaf.as_proxy().node
        if node in self.record.given:
            return self.leaves[self.record.given[node]]
        proxy = fx.Proxy(places[node], self.tx.output.current_tracer)
        value = self._fresh(node.meta["example_value"])
        places[node].meta.pop("example_value", None)
        places[node].meta[SHARES] = node in self.record.sharing
        return wrap_fx_proxy(tx=self.tx, proxy=proxy, example_value=value)

    def _fresh(self, value: torch.Tensor) -> torch.Tensor:
        """A new tensor with the recorded one's metadata."""
        with self.tx.fake_mode, torch.no_grad():
            made = blank_like(value).requires_grad_(value.requires_grad)
        if not value.requires_grad or value.is_leaf:
            return made
        with self.tx.fake_mode, torch.enable_grad():
            # only a tensor that is not a view may be resized
            made = made.view_as(made) if value._is_view() else made.clone()
        if made.stride() != value.stride():
            raise Differs("its result has strides that a new one would not have")
        return made


# --- into Dynamo ------------------------------------------------------------------------------------------------

_trace_call = UnspecializedNNModuleVariable.call_function


def _call_function(self: Any, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    replay: Replay | None = getattr(_active, "replay", None)
    if replay is None:
        return _trace_call(self, tx, list(args), kwargs)
    return replay.call(_trace_call, self, tx, args, kwargs)


@contextlib.contextmanager
def copying_blocks(frame: Any, regions: Regions, log: CompileLog) -> Iterator[None]:
    """While Dynamo traces this frame in this thread (under Dynamo's lock), calls of equal blocks are copied."""
    if regions is None:
        yield
        return
    replay = _active.replay = Replay(regions)
    for value in frame.f_locals.values():
        owner = getattr(value, "__self__", value)  # of a method
        if isinstance(owner, torch.nn.Module):
            replay.look_at(owner)
    try:
        with calling_modules_with(_call_function):
            yield
    finally:
        _active.replay = None
        for name in {*replay.traced, *replay.copied}:
            traced, copied = replay.traced.get(name, 0), replay.copied.get(name, 0)
            log.region(name, traced=traced, copied=copied, reason=replay.reasons.get(name, ""))
