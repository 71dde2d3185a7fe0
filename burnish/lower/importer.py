"""The captured FX graph of ATen calls → our Graph.

Every call is lowered by name. A call without a lowering, or whose lowering disagrees with eager's shape or type,
becomes an Extern node: an ATen call inside the program. It never fails the import.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from burnish.assumptions import meets_itself
from burnish.errors import CompileError
from burnish.ir.dtypes import from_torch
from burnish.ir.expr import Dim, Expr, coefficient, contiguous_strides, dot, steps_over, terms_of
from burnish.ir.graph import Constant, Extern, Full, Graph, Input, Iota, Node, Ref, TensorType, View
from burnish.lower import LOWERINGS
from burnish.lower.aten_calls import memory_of, memory_of_node
from burnish.lower.builder import Builder, NotLowered
from burnish.lower.captured import Captured, Window
from burnish.lower.symbols import Symbols
from burnish.torch_private.aot import with_effects
from burnish.torch_private.operators import CPU_ATTENTION, OpOverload

_TOKENS = frozenset(
    getattr(torch.ops.prims, name).default for name in ("_make_token", "_sink_tokens") if hasattr(torch.ops.prims, name)
)

_COUNTING_FROM_STORAGE = frozenset(("aten::as_strided.default", "aten::as_strided_copy.default"))
_SCATTERING_INTO_STORAGE = "aten::as_strided_scatter.default"


def import_graph(gm: GraphModule, kind: str | None = None, returned: int | None = None) -> Captured:
    """`kind` is the kind of device to lower for; by default the one that the graph was captured on. `returned` is the
    number of results that go to the caller; by default all."""
    return _Importer(gm, kind, returned).run()


_HIGHER_ORDER = (
    "docs/limits.md lists what is left to eager; keep that part out with burnish.disable to compile the rest"
)


def _op_name(target: Any) -> str:
    name = getattr(target, "__name__", None) or getattr(target, "_name", None)
    return str(name or target)


def _called(fx_node: FxNode) -> str:
    """The name of the called operation, for a message. An operation that writes its arguments, or draws random numbers
    in a checkpointed region, is the first argument of another one."""
    inner = fx_node.args[0] if fx_node.args else None
    if isinstance(inner, OpOverload):
        draws = "rng_state" in _op_name(fx_node.target)
        does = "draws random numbers in a checkpointed region" if draws else "writes its arguments"
        return f"{inner.name()}, which {does},"
    return _op_name(fx_node.target)


class _Importer:
    def __init__(self, gm: GraphModule, kind: str | None, returned: int | None) -> None:
        self.gm = gm
        self.returned = returned
        self.graph = Graph()
        self.builder = Builder(self.graph)
        self.captured = Captured(self.graph, Symbols(), device=_device_of(gm))
        self.captured.target = self.builder.device = kind or self.captured.device.type
        self.values = self.captured.values

    def run(self) -> Captured:
        for fx_node in self.gm.graph.nodes:
            handler: Callable[[FxNode], None] = getattr(self, f"_{fx_node.op}")
            handler(fx_node)
        self.graph.eliminate_dead()
        return self.captured

    # --- one method per FX opcode -------------------------------------------------------------------------------

    def _placeholder(self, fx_node: FxNode) -> None:
        position = len(self.graph.inputs)
        val = fx_node.meta.get("val")
        value: Node | Expr | int | None = None
        if isinstance(val, torch.Tensor):
            self._require_plain(val)
            strides = tuple(self.captured.symbols.dim(s) for s in val.stride())
            node = self.graph.add(Input(position, strides), (), self._type(val), str(fx_node.name))
            node.layout = strides
            offset = self.captured.symbols.dim(val.storage_offset())
            self.captured.symbols.bind_tensor(position, node.shape, strides, offset)
            value = node
        elif isinstance(val, torch.SymInt | int) and not isinstance(val, bool):
            value = self.captured.symbols.dim(val)
            self.captured.symbols.bind_scalar(position, value)
        elif val is not None and not isinstance(val, torch.Tensor | float | bool):
            raise CompileError("capture", f"argument {fx_node.name} is a {type(val).__name__}")
        self.values[fx_node] = value if value is not None else val
        self.graph.inputs.append(value)

    def _get_attr(self, fx_node: FxNode) -> None:
        held: Any = self.gm
        for part in str(fx_node.target).split("."):
            held = getattr(held, part)
        if not isinstance(held, torch.Tensor):
            users = ", ".join(sorted({_op_name(user.target) for user in fx_node.users})) or str(fx_node.target)
            raise CompileError("capture", f"{users} runs a graph of its own, which eager does", _HIGHER_ORDER)
        self._require_plain(held)
        dtype = from_torch(held.dtype)
        if held.dim() == 0 and dtype is not None and type(held) is torch.Tensor:
            self.values[fx_node] = self.graph.add(Full(held.item()), (), TensorType(dtype, ()))
            return
        node = self.graph.add(Constant(held, tuple(held.stride())), (), TensorType(dtype, tuple(held.shape)))
        self.values[fx_node] = node

    def _call_function(self, fx_node: FxNode) -> None:
        val = fx_node.meta.get("val")
        if fx_node.target is operator.getitem:
            source = self.values[fx_node.args[0]]  # type: ignore[index]
            self.values[fx_node] = source[fx_node.args[1]]
        elif isinstance(val, torch.SymInt | int) and not isinstance(val, bool):
            self.values[fx_node] = self.captured.symbols.dim(val)
        elif fx_node.target in _TOKENS:
            self.values[fx_node] = None
        elif fx_node.target is with_effects:
            self.values[fx_node] = self._ordered_effect(fx_node, val)
        elif isinstance(fx_node.target, OpOverload):
            self.values[fx_node] = self._call_op(fx_node, fx_node.target, val)
        elif val is None and not fx_node.users:
            self.values[fx_node] = None  # an assertion about sizes: the guards already hold
        else:
            raise CompileError("capture", f"{_called(fx_node)} is no ATen operation", _HIGHER_ORDER)

    def _output(self, fx_node: FxNode) -> None:
        results: Sequence[Any] = fx_node.args[0]  # type: ignore[assignment]
        positions = {p: i for i, p in enumerate(_placeholders(self.gm))}
        for k, arg in enumerate(results):
            value = self._value(arg)
            self.graph.outputs.append(value)
            val = arg.meta.get("val") if isinstance(arg, FxNode) else None
            if isinstance(value, Node) and isinstance(val, torch.Tensor):
                origin = _origin(arg)
                if origin in positions and _same_kind(val, base := origin.meta["val"]):
                    self.captured.aliases[k] = self._window(positions[origin], val, base)
                else:
                    self.graph.output_layouts[k] = self._strides(val)
        self.captured.results = len(results)
        self.captured.objects = tuple(_objects(results[: self.returned]))
        self._find_windows([arg if isinstance(arg, FxNode) else None for arg in results])

    def _find_windows(self, results: list[FxNode | None]) -> None:
        """Results that share memory in eager share it here: they are windows of the result that holds all of it."""
        sharing: dict[int, list[int]] = {}
        for k in self.graph.output_layouts:
            key = memory_of_node(results[k])
            if key is not None:
                sharing.setdefault(key, []).append(k)
        for key, members in sharing.items():
            if len({results[k] for k in members}) < 2:
                continue
            source = next(n for n in self.gm.graph.nodes if memory_of_node(n) == key)
            whole = source.meta["val"]
            if not isinstance(self.values[source], Node) or whole.storage_offset() != 0:
                continue
            if not all(_same_kind(results[k].meta["val"], whole) for k in members):  # type: ignore[union-attr]
                continue  # parts of a complex number are no windows of it
            of = next((k for k in members if results[k] is source), None)
            if of is None:
                of = len(self.graph.outputs)
                self.graph.outputs.append(self.values[source])
                self.graph.output_layouts[of] = self._strides(whole)
            for k in members:
                val = results[k].meta["val"]  # type: ignore[union-attr]
                if k != of and results[k] is not source and _same_kind(val, whole):
                    self.captured.windows[k] = self._window(of, val, whole)

    def _window(self, of: int, val: torch.Tensor, base: torch.Tensor) -> Window:
        """The offset counts from the beginning of `base`, whose position in its storage differs from call to call."""
        dim = self.captured.symbols.dim
        offset = dim(val.storage_offset()) - dim(base.storage_offset())
        return of, tuple(map(dim, val.shape)), self._strides(val), offset

    def _strides(self, val: torch.Tensor) -> tuple[Dim, ...]:
        return tuple(map(self.captured.symbols.dim, val.stride()))

    # --- calls --------------------------------------------------------------------------------------------------

    def _call_op(self, fx_node: FxNode, target: OpOverload, val: Any) -> Any:
        name = f"{target.namespace}::{target._schema.name.split('::')[1]}.{target._overloadname}"
        if (
            name == "aten::copy_.default"
            and isinstance(fx_node.args[0], FxNode)
            and fx_node.args[0].op == "placeholder"
        ):
            return self._mutation(fx_node)
        if target._schema.is_mutable:
            raise CompileError("capture", f"{name} changes its argument in place")
        args = [self._value(a) for a in fx_node.args]
        kwargs = {k: self._value(a) for k, a in fx_node.kwargs.items()}
        vals = val if isinstance(val, tuple | list) else (val,)
        for v in vals:
            if isinstance(v, torch.Tensor):
                self._require_plain(v)
        require_true_rank(fx_node, target, val)
        require_true_types(target, vals)
        self.builder.out = tuple(self._type(v) for v in vals if isinstance(v, torch.Tensor))
        self.builder.strides = tuple(self._strides(v) for v in vals if isinstance(v, torch.Tensor))
        self.builder.results, self.builder.wanted = len(vals), _read_results(fx_node, len(vals))
        self.builder.origin = name
        ours = args
        lower, reason = LOWERINGS.get(name), "no lowering"
        if name in _COUNTING_FROM_STORAGE:
            ours, args = self._counting_from_tensor(fx_node, args)
            if not ours:
                lower, reason = None, "as_strided of a tensor that is not contiguous"
        elif name == _SCATTERING_INTO_STORAGE:
            args = self._scattering_into_tensor(fx_node, args)
        if lower is not None:
            try:
                return self._lowered(lower, ours, kwargs, val)
            except NotLowered as why:
                reason = str(why)
            except (TypeError, ValueError, AssertionError, IndexError, KeyError, AttributeError) as why:
                reason = f"{type(why).__name__}: {why}"
        self.captured.externs.append((name, reason))
        in_order = torch.Tag.nondeterministic_seeded in target.tags  # random numbers are drawn in the order of memory
        args = [self._as_eager_shows(shown, a, in_order) for shown, a in zip(fx_node.args, args, strict=True)]
        return self._extern(target, args, kwargs, val, name)

    def _as_eager_shows(self, fx: Any, value: Any, in_order: bool) -> Any:
        """An operand of an ATen call. If eager copied it because its elements shared memory (`contiguous` of an
        expanded tensor), it is copied here, too: not every ATen kernel reads an expanded tensor correctly
        (`median`). `in_order`: the call depends on the order of its elements in memory."""
        if isinstance(fx, list | tuple):
            return type(value)(
                self._as_eager_shows(shown, each, in_order) for shown, each in zip(fx, value, strict=True)
            )
        if not isinstance(fx, FxNode) or not isinstance(value, Node) or value.type.dtype is None:
            return value
        strides = self._strides(fx.meta["val"])
        overlaps = _meets_itself(value.shape, strides)
        odd = _is_made(value) and strides != contiguous_strides(value.shape)
        if not overlaps and (odd or (in_order and not _same_places(value.shape, _known_steps(value), strides))):
            return self._copied_in_order(value, strides)  # a result is as dense as this copy, gaps or not
        shares = _meets_itself(value.shape, _steps(value))
        return self.builder.copied(value) if shares and not overlaps else value

    def _counting_from_tensor(self, fx_node: FxNode, args: list[Any]) -> tuple[list[Any], list[Any]]:
        """The arguments of an `as_strided`: for its lowering, and for an ATen call.

        Its offset counts from the start of the storage. Where an input begins in its storage is known of the captured
        call only; `capture/graphs/assume.py:counts_from_storage` makes it an assumption about later calls. A lowering
        reads the argument's own elements, so its offset counts from the first of them; so does that of the ATen call if
        the argument is a view. There is a lowering only where the elements lie one after the other in eager; else the
        first list is empty."""
        source, size, stride = fx_node.args[0], args[1], args[2]
        assert isinstance(source, FxNode)
        base, origin = source.meta["val"], _origin(source)
        offset = args[3] if len(args) > 3 else None
        start = 0 if offset is None else offset - self.captured.symbols.dim(base.storage_offset())
        if _lies_within(start, size, stride, base):
            placed = [self._laid_out_as_in_eager(source), size, stride]
            return [args[0], size, stride, start], [*placed, offset if origin is source else start]
        whole = origin.meta["val"]
        first = (base.storage_offset() if offset is None else offset) - whole.storage_offset()
        if origin is not source and _lies_within(first, size, stride, whole):  # beyond the view, but within its base
            return [self._value(origin), size, stride, first], [self._laid_out_as_in_eager(origin), size, stride, first]
        if origin is not source or (origin.op == "placeholder" and self.captured.target != "cpu"):
            # Our kernels do not have the storage of the view's base.
            raise CompileError("capture", "as_strided reaches beyond the elements of a view")
        return [], [self._laid_out_as_in_eager(source), *args[1:]]

    def _scattering_into_tensor(self, fx_node: FxNode, args: list[Any]) -> list[Any]:
        """The arguments of the ATen call: into a copy of the first one's memory, from the start of its storage."""
        source = fx_node.args[0]
        assert isinstance(source, FxNode)
        if _origin(source) is not source and source.meta["val"].storage_offset() != 0:
            raise CompileError("capture", "as_strided_scatter into a view that does not begin where its storage does")
        return [self._laid_out_as_in_eager(source), *args[1:]]

    def _laid_out_as_in_eager(self, source: FxNode) -> Node:
        """A tensor for an ATen call that reads memory: a copy, unless its elements are where eager has them. (`clone`,
        `contiguous` and the like are no operations here, and a computed value may be laid out in any way.)"""
        value = self._value(source)
        assert isinstance(value, Node)
        strides = self._strides(source.meta["val"])
        if source.op == "placeholder" or _same_places(value.shape, _steps(value), strides):
            return value
        if not _is_dense(value.shape, strides):
            raise CompileError("capture", "the memory of a tensor with gaps between its elements is read")
        return self._copied_in_order(value, strides)

    def _copied_in_order(self, value: Node, strides: Sequence[Dim]) -> Node:
        """A dense copy, with the dimensions in memory in the order of these strides; sizes may vary."""
        order = _order(value.shape, strides)
        shape = [value.shape[d] for d in order]
        permuted = self.builder.view(value, shape, lambda *at: [at[order.index(d)] for d in range(len(order))])
        return self.builder.view(self.builder.copied(permuted), value.shape, lambda *at: [at[d] for d in order])

    def _ordered_effect(self, fx_node: FxNode, val: Any) -> Any:
        """An op that must run for its effect (a check that raises); its place in the list keeps the order."""
        _, target, *rest = fx_node.args
        args = [self._value(a) for a in rest]
        kwargs = {k: self._value(a) for k, a in fx_node.kwargs.items()}
        results = list(val)[1:]
        self.captured.externs.append((str(target), "it has effects"))
        shown = results if len(results) != 1 else results[0]
        made = self._extern(target, args, kwargs, shown if results else [], str(target), effect=True)
        return [None, *(made if isinstance(made, list) else [made])]

    def _mutation(self, fx_node: FxNode) -> Any:
        target, value = self._value(fx_node.args[0]), self._value(fx_node.args[1])
        if target.type.dtype is None:
            raise CompileError("capture", "an input that no kernel computes with is changed in place")
        if _meets_itself(target.shape, target.layout or ()):
            raise CompileError("capture", "an input whose elements share memory is changed in place, in eager's order")
        self.builder.origin = "aten::copy_"
        value = self.builder.expand(self.builder.cast(value, target.dtype), target.shape)
        self.graph.mutations.append((target, value))
        return value

    def _lowered(self, lower: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], val: Any) -> Any:
        for a in _nodes_in((args, kwargs)):
            if a.type.dtype is None:
                raise NotLowered("a type no kernel computes in")
        tensors = [v for k, v in enumerate(val) if k in self.builder.wanted] if isinstance(val, tuple | list) else [val]
        if any(self._type(v).dtype is None for v in tensors if isinstance(v, torch.Tensor)):
            raise NotLowered("a type no kernel computes in")
        result = lower(self.builder, *args, **kwargs)
        many = isinstance(val, tuple | list)
        pairs = list(zip(result, val, strict=True)) if many else [(result, val)]
        for node, fake in pairs:
            if node is None or not isinstance(fake, torch.Tensor):
                continue
            if node.type != self._type(fake):
                raise NotLowered(f"lowering gives {node.type}, eager {self._type(fake)}")
            self._hint_layout(node, fake)
        return result

    def _hint_layout(self, node: Node, fake: torch.Tensor) -> None:
        if node.layout is None and not isinstance(node.op, View | Input | Full):
            node.layout = tuple(self.captured.symbols.dim(s) for s in fake.stride())

    def _extern(
        self, target: Any, args: list[Any], kwargs: dict[str, Any], val: Any, name: str, effect: bool = False
    ) -> Any:
        inputs: list[Node] = []

        def template(value: Any) -> Any:
            if isinstance(value, Node):
                if value not in inputs:
                    inputs.append(value)
                return Ref(inputs.index(value))
            if isinstance(value, list | tuple):
                return tuple(template(v) for v in value) if isinstance(value, tuple) else [template(v) for v in value]
            return value

        held_args = tuple(template(a) for a in args)
        held_kwargs = tuple((k, template(v)) for k, v in kwargs.items())
        many = isinstance(val, tuple | list)
        vals = list(val) if many else [val]
        tensors = [v for v in vals if isinstance(v, torch.Tensor)]
        if not all(v is None or isinstance(v, torch.Tensor | torch.SymInt | int) for v in vals):
            raise CompileError("capture", f"{name} returns something that is neither tensor nor size")
        strides = tuple(tuple(map(self.captured.symbols.dim, v.stride())) for v in tensors)
        op = Extern(
            target,
            held_args,
            held_kwargs,
            strides,
            name,
            positions=tuple(i for i, v in enumerate(vals) if isinstance(v, torch.Tensor)),
            many=many,
        )
        node = self.graph.add(op, inputs, [self._type(v) for v in tensors], name)
        is_for_effect = effect or not target._schema.returns  # an assertion on values
        if is_for_effect or torch.Tag.nondeterministic_seeded in target.tags:
            self.graph.effects.append(node)  # an unused draw still advances the generator
        picks = iter(range(len(tensors)))
        results = [self._picked(node, next(picks), v) if isinstance(v, torch.Tensor) else self._value(v) for v in vals]
        return results if many else results[0]

    def _picked(self, node: Node, position: int, fake: torch.Tensor) -> Node:
        picked = self.builder.pick(node, position)
        picked.layout = tuple(map(self.captured.symbols.dim, fake.stride()))
        return picked

    # --- values -------------------------------------------------------------------------------------------------

    def _require_plain(self, val: torch.Tensor) -> None:
        if val.layout is not torch.strided or val.device.type not in ("cpu", "cuda"):
            raise CompileError("capture", f"a {val.layout} tensor on {val.device} has no code generator here")

    def _value(self, arg: Any) -> Any:
        if isinstance(arg, FxNode):
            return self.values[arg]
        if isinstance(arg, tuple | list):
            return type(arg)(self._value(a) for a in arg) if isinstance(arg, tuple) else [self._value(a) for a in arg]
        if isinstance(arg, torch.SymInt):
            return self.captured.symbols.dim(arg)
        return arg

    def _type(self, val: torch.Tensor) -> TensorType:
        """The type in our graph. A tensor on another device, or one that is lazily negated or conjugated, has no
        element type: it only passes from one ATen call to the next."""
        readable = val.device == self.captured.device and not val.is_neg() and not val.is_conj()
        return TensorType(
            from_torch(val.dtype) if readable else None, tuple(self.captured.symbols.dim(s) for s in val.shape)
        )


def _is_made(node: Node) -> bool:
    """Whether a value is computed from constants and positions alone: it is in no memory, and so has no layout."""
    return isinstance(node.op, Full | Iota) or (isinstance(node.op, View) and _is_made(node.inputs[0]))


def _objects(results: Sequence[Any]) -> Iterator[tuple[int, int, bool]]:
    """The results that share memory with an earlier one: both numbers, and whether they are one object. A tensor that
    is returned twice is one object in eager; the result of an operation on it is another one, even over the same
    memory."""
    first: dict[FxNode, int] = {}
    sharing: dict[int, int] = {}
    for k, result in enumerate(results):
        memory = memory_of_node(result)
        if memory is None:
            continue
        if result in first:
            yield k, first[result], True
        elif memory in sharing:
            yield k, sharing[memory], False
        first.setdefault(result, k)
        sharing.setdefault(memory, k)


def _read_results(fx_node: FxNode, results: int) -> frozenset[int]:
    """The results of a call that have readers."""
    read = [user.args[1] for user in fx_node.users if user.target is operator.getitem]
    whole = len(read) < len(fx_node.users)
    return frozenset(range(results)) if whole else frozenset(k for k in read if isinstance(k, int))


def _device_of(gm: GraphModule) -> torch.device:
    """The GPU if any tensor is on one, else the CPU: scalars and generator states on the CPU do not count."""
    values = [v for n in gm.graph.nodes for v in _flat(n.meta.get("val"))]
    found = next((v.device for v in values if v.device.type == "cuda"), None)
    return found or torch.device("cpu")


def _flat(val: Any) -> list[torch.Tensor]:
    items = val if isinstance(val, tuple | list) else [val]
    return [v for v in items if isinstance(v, torch.Tensor)]


def _placeholders(gm: GraphModule) -> list[FxNode]:
    return [n for n in gm.graph.nodes if n.op == "placeholder"]


def _origin(fx_node: FxNode) -> FxNode:
    """The value that owns a value's storage: itself, or the origin of its base."""
    key = memory_of_node(fx_node)
    origin = fx_node
    while key is not None and (viewed := next((n for n in origin.all_input_nodes if key in _storages(n)), None)):
        origin = viewed
    return origin


def _storages(fx_node: FxNode) -> set[int | None]:
    """The storages of a call's result or results (split, unbind)."""
    values = fx_node.meta.get("val")
    many = values if isinstance(values, tuple | list) else (values,)
    return {memory_of(v) for v in many if isinstance(v, torch.Tensor) and v.layout is torch.strided}


def _lies_within(start: Dim, size: Sequence[Dim], stride: Sequence[Dim], base: torch.Tensor) -> bool:
    """Whether `base` is contiguous, and a strided window of it contains none but its elements."""
    numbers = (start, *size, *stride, *base.shape, *base.stride())
    if not all(isinstance(x, int) for x in numbers) or not base.is_contiguous():
        return False
    last: Any = sum(((d - 1) * s for d, s in zip(size, stride, strict=True)), start)
    return start >= 0 and last < base.numel()  # type: ignore[operator]


def _steps(value: Node) -> tuple[Dim, ...]:
    """The strides of an input, or of a window of one. A computed value has none."""
    match value.op:
        case Input(_, strides):
            return strides
        case View(axes, index, None) if isinstance(source := value.inputs[0].op, Input):
            offset = dot(index, source.strides)
            return tuple(step if (step := coefficient(offset, a.name)) is not None else 1 for a in axes)
    return ()


def _known_steps(value: Node) -> tuple[Dim, ...]:
    """The strides that a value will have in memory; nothing if that is not known, or it is in none."""
    match value.op:
        case Input(_, strides):
            return strides
        case Full() | Iota():
            return ()
        case View(axes, index, None) if source := _known_steps(value.inputs[0]):
            steps = [coefficient(dot(index, source), a.name) for a in axes]
            return () if None in steps else tuple(steps)  # type: ignore[arg-type]
        case View():
            return ()
    contiguous = contiguous_strides(value.shape)
    if value.layout is None or value.layout == contiguous:
        return contiguous
    return value.layout if all(isinstance(s, int) for s in value.layout) else ()  # the others are not followed


def _same_places(shape: Sequence[Dim], steps: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    """Whether two strides of a tensor lead to the same elements."""
    return len(steps) == len(strides) and all(a == b for d, a, b in zip(shape, steps, strides, strict=True) if d != 1)


def _order(shape: Sequence[Dim], strides: Sequence[Dim]) -> list[int]:
    """The dimensions, the outermost in memory first."""

    def inwards(d: int) -> tuple[bool, tuple[int, int]]:
        return shape[d] != 1, _factors_of_stride((strides[d], shape[d]))

    return sorted(range(len(shape)), key=inwards)[::-1]


def _is_dense(shape: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    """Whether the elements lie one after the other."""
    width: Dim = 1
    for d in reversed(_order(shape, strides)):
        if shape[d] != 1:
            if strides[d] != width:
                return False
            width = width * shape[d]
    return True


def _meets_itself(shape: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    """Whether elements are known to share memory. If sizes vary, each call checks the inputs that it writes."""
    pairs = [(d, s) for d, s in zip(shape, strides, strict=False) if d != 1]
    if any(d == 0 for d, _ in pairs):
        return False
    known = [(d, s) for d, s in pairs if isinstance(d, int) and isinstance(s, int)]
    is_known = len(known) == len(pairs)
    return meets_itself(*zip(*known, strict=True)) if is_known and known else any(s == 0 for _, s in pairs)


def _never_meets_itself(shape: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    """Whether no two elements share memory, whatever the sizes: each stride exceeds the span of all narrower
    dimensions."""
    return steps_over(sorted(((s, d) for d, s in zip(shape, strides, strict=True) if d != 1), key=_factors_of_stride))


def _factors_of_stride(pair: tuple[Dim, Dim]) -> tuple[int, int]:
    stride, _ = pair
    return max(map(len, terms_of(stride)), default=0), max(terms_of(stride).values(), default=0)


def require_known_views(gm: GraphModule, metadata: Any) -> None:
    """Raise unless AOTAutograd can regenerate the results that are views of inputs.

    It makes such a view again after the program. If sizes vary, it takes the sizes and the offset from the result that
    the program returns. They are right for a window of the input. They are wrong for a view as another type, and for a
    view of the value that the call writes into the input. `metadata` is AOTAutograd's."""
    placeholders = _placeholders(gm)
    if not any(isinstance(p.meta.get("val"), torch.SymInt) for p in placeholders):
        return
    (output,) = gm.graph.find_nodes(op="output")
    results, symbols = output.args[0][len(metadata.mutated_inp_runtime_indices) :], Symbols()
    for result, info in zip(results, metadata.output_info, strict=False):  # after them what it saves
        if info.output_type.name != "alias_of_input" or not isinstance(result, FxNode):
            continue
        origin = _origin(result)
        if origin not in placeholders or not _same_kind(result.meta["val"], base := origin.meta["val"]):
            raise CompileError("capture", "a result views an input that the call changes, or as another type, by sizes")
        # Autograd gives an element of memory that several share a part of what reaches it through such a window.
        shape, strides = (tuple(map(symbols.dim, dims)) for dims in (base.shape, base.stride()))
        if info.requires_grad and not _never_meets_itself(shape, strides):
            raise CompileError("capture", "a result views an input whose elements may share memory, by sizes")


def require_whole_windows(gm: GraphModule) -> None:
    """Raise unless the windows through which a graph writes cover their tensor, and no two of their elements share
    memory. AOTAutograd writes through `unfold` by its gradient, which is zero for elements that are in no window."""
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.unfold_backward.default):
        _, sizes, dim, size, step = node.args
        whole = sizes[dim] if sizes else 1
        if not isinstance(whole, int) or size != step or whole % step:
            raise CompileError("capture", "windows of a tensor are written, and tracing forgets what lies in none")
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided_scatter.default):
        _, _, sizes, strides = node.args[:4]
        if all(isinstance(d, int) for d in (*sizes, *strides)) and _meets_itself(sizes, strides):
            raise CompileError("capture", "a window whose elements share memory is written, in an order of eager's own")


def _same_kind(val: torch.Tensor, base: torch.Tensor) -> bool:
    """A view of another type (complex as real), or of other values, is no strided window of its base."""
    same_values = val.is_conj() == base.is_conj() and val.is_neg() == base.is_neg()
    return bool(val.dtype == base.dtype and same_values)


def require_true_rank(fx_node: FxNode, target: OpOverload, val: Any) -> None:
    """Raise where the traced rank is wrong: torch 2.11 keeps the dimensions of some reductions of one element each,
    which eager drops."""
    names = [argument.name for argument in target._schema.arguments]
    if "keepdim" not in names or not isinstance(val, torch.Tensor):
        return
    given = dict(zip(names, fx_node.args, strict=False)) | fx_node.kwargs
    source = given.get("self")
    leaves_out = not given.get("keepdim", False) and given.get("dim") not in ((), [])
    if leaves_out and isinstance(source, FxNode) and 0 < source.meta["val"].dim() == val.dim():
        raise CompileError("capture", f"torch traces other sizes of {target} than it returns")


def _nodes_in(value: Any) -> list[Node]:
    if isinstance(value, Node):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [n for v in value for n in _nodes_in(v)]
    return []


def require_true_types(target: OpOverload, vals: Sequence[Any]) -> None:
    """Raise where a traced type is wrong: before 2.13, torch traces attention's logsumexp as float32 on a CPU, although
    it is float64 for float64 operands."""
    if target is CPU_ATTENTION and vals[0].dtype is torch.float64 and vals[1].dtype is not torch.float64:
        raise CompileError("capture", f"torch traces another type of {target} than it returns")
