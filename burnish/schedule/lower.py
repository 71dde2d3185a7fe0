"""Graph → kernels: decide what is stored, write each stored node's loop, leave the rest inlined in its readers."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

from burnish.device import gpu_of
from burnish.errors import CompileError
from burnish.ir.body import (
    Apply,
    Axis,
    Checked,
    Load,
    Loop,
    Reduced,
    Scanned,
    const,
    make_axis,
)
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, coefficient, contiguous_strides, dot, product, substitute, symbols
from burnish.ir.graph import (
    Attend,
    Concat,
    Constant,
    Contract,
    Convolve,
    Extern,
    Full,
    Gather,
    Graph,
    Input,
    Iota,
    Map,
    Node,
    Pick,
    Reduce,
    Scan,
    Scatter,
    View,
)
from burnish.ir.scalar import SCALAR_OPS, TRANSCENDENTAL
from burnish.lower.captured import Captured
from burnish.schedule.axes import hits_each_once
from burnish.schedule.emit import Emitter
from burnish.schedule.kernels import (
    AttendKernel,
    Buffer,
    ContractKernel,
    ConvolveKernel,
    ExternKernel,
    Kernel,
    LoopKernel,
    Operand,
    ResultBuffer,
    Schedule,
    channels_last_strides,
)
from burnish.schedule.layouts import (
    as_views_have,
    attend_layout,
    dense,
    ends_product,
    has_odd_rows,
    multiplied,
    padded,
    sharing_axes,
    steps_forward,
)

_ALWAYS_STORED = (Input, Constant, Pick, Reduce, Scan, Scatter, Concat, Contract, Convolve, Attend, Extern)
_CHEAP = 4  # scalar work that is cheaper to repeat in each reader than to store
_MANY = 4  # readers of a costly vector: that of all positions' sines is read by every layer
_MANY_WINDOWS = 4  # windows onto a padded value: each would check at every point whether it is inside
_FEW_PARTS = 4  # parts of a concatenation from which readers select
_DEEPEST = 60  # inlined chains are cut here, so bodies stay readable and recursion shallow
_CHEAP_VECTOR = 2 * TRANSCENDENTAL  # the same limit for a vector on a GPU, which a tile computes only once


def lower_graph(captured: Captured) -> Schedule:
    return _Lowerer(captured).run()


@dataclass
class _Work:
    """The cost of computing one element of an inlined node."""

    cost: int = 0
    depth: int = 0
    sources: frozenset[int] = frozenset()


class _Lowerer:
    def __init__(self, captured: Captured) -> None:
        self.captured = captured
        self.graph: Graph = captured.graph
        self.buffers: dict[str, Buffer] = {}
        self.kernels: list[Kernel] = []
        self.constants: dict[str, object] = {}
        self.names: dict[int, str] = {}  # stored node -> buffer
        self.in_place: dict[int, Node] = {}  # scatter node -> the input it updates
        self.overwritten: set[str] = set()  # inputs that hold their new values already
        self.output_roles: dict[int, tuple[Dim, ...]] = {}
        self._by_id = {n.id: n for n in self.graph.nodes}
        self.multiplied = multiplied(self.graph) if captured.target == "cuda" else frozenset()
        self.lent: dict[int, Node] = {}  # result -> the value in whose memory it is
        self._plan_outputs()
        self._plan_in_place()
        self.stored = self._choose_stored()

    # --- what is stored -----------------------------------------------------------------------------------------

    def _choose_stored(self) -> set[int]:
        forced = self._forced()
        stored = {n.id for n in self.graph.nodes if isinstance(n.op, _ALWAYS_STORED) and not self._selects(n)} | forced
        uses = self._uses()
        work: dict[int, _Work] = {}
        for node in self.graph.nodes:
            if node.id in stored or isinstance(node.op, Full | Iota):
                work[node.id] = _Work(0, 0, frozenset({node.id}) if node.id in stored else frozenset())
                continue
            parts = [work[x.id] for x in node.inputs]
            own = SCALAR_OPS[node.op.fn].cost if isinstance(node.op, Map) else 1 if isinstance(node.op, Gather) else 0
            own += 2 * len(node.inputs) if isinstance(node.op, Concat) else 0
            mine = _Work(
                own + sum(p.cost for p in parts),
                1 + max((p.depth for p in parts), default=0),
                frozenset().union(*(p.sources for p in parts)),
            )
            if isinstance(node.op, Map | Gather | Concat) and self._worth_storing(node, mine, uses[node.id]):
                stored.add(node.id)
                mine = _Work(0, 0, frozenset({node.id}))
            work[node.id] = mine
        return stored

    def _selects(self, node: Node) -> bool:
        """Whether a concatenation may be read as a select between its parts, without storing it (two swapped halves). A
        gather's index must not be loaded where it is not used, so the parts contain no gather."""
        if self.captured.target != "cuda" or not isinstance(node.op, Concat) or len(node.inputs) > _FEW_PARTS:
            return False
        stack = list(node.inputs)
        if any(isinstance((x.inputs[0] if isinstance(x.op, View) else x).op, Reduce) for x in stack):
            return False  # a row-level result is stored by the rows' own loop
        while stack:
            part = stack.pop()
            if isinstance(part.op, Gather | Concat):
                return False
            if isinstance(part.op, Map | View):
                stack.extend(part.inputs)
        return True

    def _worth_storing(self, node: Node, work: _Work, uses: int) -> bool:
        if work.depth > _DEEPEST or work.cost > 40 * TRANSCENDENTAL:
            return True
        if uses > _MANY and work.cost > TRANSCENDENTAL and sum(d != 1 for d in node.shape) == 1:
            return True
        if self._is_vector_on_gpu(node, work) and work.cost <= _CHEAP_VECTOR:
            return False
        if self.captured.target == "cuda" and work.cost <= _CHEAP_VECTOR and self._large_sources(node, work) <= 1:
            return False  # reading it would take as long as reading its operands
        return uses > 1 and (work.cost > _CHEAP or len(work.sources) > 1)

    def _large_sources(self, node: Node, work: _Work) -> int:
        """The number of stored values of about its size on which it depends."""
        size, nodes = product(node.shape), self._by_id
        sizes = [product(nodes[s].shape) for s in work.sources]
        return sum(not isinstance(n, int) or not isinstance(size, int) or 4 * n > size for n in sizes)

    def _is_vector_on_gpu(self, node: Node, work: _Work) -> bool:
        """Whether launching a kernel for this value alone would take longer than recomputing it in all readers (a
        norm's scale and shift per channel). A product's result is stored by the product's own kernel."""
        if self.captured.target != "cuda" or sum(d != 1 for d in node.shape) != 1:
            return False
        return all(isinstance(self._by_id[s].op, Input | Constant | Reduce) for s in work.sources)

    def _uses(self) -> dict[int, int]:
        """Readers of each node, counted through views; a view that repeats costly elements counts twice."""
        uses: dict[int, int] = defaultdict(int)
        for root in self.graph.roots():
            uses[root.id] += 1
        for node in reversed(self.graph.nodes):
            for x in node.inputs:
                if isinstance(node.op, View):
                    uses[x.id] += uses[node.id] + (1 if self._repeats(node) else 0)
                else:
                    uses[x.id] += 1
        return uses

    @staticmethod
    def _repeats(view: Node) -> bool:
        """Whether a view reads elements again along an axis other than the last: no compiler hoists that."""
        return any(n < len(view.shape) - 1 for n in _repeated_axes(view))

    def _forced(self) -> set[int]:
        forced: set[int] = set()
        windows = Counter(node.inputs[0].id for node in self.graph.nodes if isinstance(node.op, View))
        for node in self.graph.nodes:
            match node.op:
                case Contract() | Convolve() | Attend():
                    forced |= {self._window_source(x).id for x in node.inputs}
                case Extern():
                    forced |= {self._window_of_call(x).id for x in node.inputs}
                case Gather():
                    forced.add(node.inputs[0].id)
                case Map("cast") if ends_product(node):
                    forced.add(node.id)
                case View(_, _, fill) if fill is not None:
                    forced.add(node.inputs[0].id)
                    if windows[node.id] >= _MANY_WINDOWS and self.captured.target == "cpu":
                        forced.add(node.id)
                case Scatter():
                    pass
        for k, out in enumerate(self.graph.outputs):
            if k in self.lent:
                forced.add(self.lent[k].id)
            elif (
                isinstance(out, Node)
                and k not in self.captured.aliases
                and k not in self.captured.windows
                and isinstance(out.op, Map | Gather | Full | Iota | View | Concat)
            ):
                forced.add(out.id)
        return forced

    def _window_source(self, node: Node) -> Node:
        """The node whose buffer a strided window can stand for this operand, or the operand itself."""
        if isinstance(node.op, View) and node.op.fill is None and not isinstance(node.inputs[0].op, Full | Iota):
            source = node.inputs[0]
            offset = dot(node.op.index, self._layout(source))
            if all(steps_forward(coefficient(offset, a.name)) for a in node.op.axes):
                return source
        return node

    def _window_of_call(self, node: Node) -> Node:
        """As above, for an ATen call. It sees an expanded operand only where it does in eager: not every kernel of
        ATen's reads one rightly (`median`)."""
        source = self._window_source(node)
        if source is node or (node.layout is not None and _is_expanded(node.layout, node.shape)):
            return source
        return node if _repeated_axes(node) else source

    def _layout(self, node: Node) -> tuple[Dim, ...]:
        """The strides of the memory a stored node is in, or will be."""
        if node.id in self.in_place:
            return self._layout(self.in_place[node.id])
        match node.op:
            case Input(_, strides) | Constant(_, strides):
                return strides
            case Pick(position):
                maker = node.inputs[0].op
                return maker.strides[position] if isinstance(maker, Extern) else attend_layout(node.shape, position)
        if node.id in self.output_roles:
            return self.output_roles[node.id]
        if node.id in self.multiplied and has_odd_rows(node):
            return padded(node.shape)
        return dense(node.layout, node.shape) or contiguous_strides(node.shape)

    # --- buffers ------------------------------------------------------------------------------------------------

    def _buffer(self, node: Node) -> Buffer:
        """The buffer of a node's value, for its readers."""
        name = self.names[node.id]
        if isinstance(node.op, Input) and name in self.overwritten:
            raise CompileError("schedule", f"{name} would be read after it was overwritten")
        return self.buffers[name]

    def _declare(
        self, node: Node, role: str = "temp", strides: tuple[Dim, ...] | None = None, name: str | None = None
    ) -> Buffer:
        layout = self._layout(node) if strides is None else strides
        if node.id in self.output_roles and role == "temp":
            role = "output"
        buffer = Buffer(name or f"b{node.id}", node.type.dtype, node.shape, layout, role)
        self.buffers[buffer.name] = buffer
        self.names[node.id] = buffer.name
        return buffer

    def _offset(self, buffer: Buffer, index: tuple[Dim, ...]) -> Dim:
        return dot(index, buffer.strides)

    def _operand(self, node: Node, source: Node | None = None) -> Operand:
        source = source or self._window_source(node)
        if source is node or source.id not in self.stored:
            source = node
        buffer = self._buffer(source)
        if source is node:
            return Operand(buffer.name, 0, node.shape, buffer.strides, node.type.dtype)
        assert isinstance(node.op, View)
        offset = self._offset(buffer, node.op.index)
        strides = tuple(coefficient(offset, a.name) or 0 for a in node.op.axes)
        base = substitute(offset, {a.name: 0 for a in node.op.axes})
        return Operand(buffer.name, base, node.shape, as_views_have(strides, node.shape), node.type.dtype)

    # --- the walk -----------------------------------------------------------------------------------------------

    def run(self) -> Schedule:
        for node in self.graph.nodes:
            if node.id in self.stored:
                self._store_node(node)
        results = self._results()  # before inputs change: a result may be the old value of one
        self._write_mutations()
        gpu = gpu_of(self.captured.device)
        objects = self.captured.objects
        schedule = Schedule(self.buffers, self.kernels, results, dict(self.constants), gpu=gpu, objects=objects)
        schedule.drop_dead_kernels()
        schedule.drop_unused_buffers()
        return schedule

    def _plan_outputs(self) -> None:
        """A result gets its own memory, with eager's strides."""
        for k, out in enumerate(self.graph.outputs):
            if not isinstance(out, Node) or isinstance(out.op, Input | Constant | Pick):
                continue
            if k in self.captured.aliases or k in self.captured.windows:
                continue
            source = self._lender(k, out)
            if source is not None:
                self.lent[k] = source
            else:
                self.output_roles.setdefault(out.id, self._layout_of_result(k, out))

    def _layout_of_result(self, k: int, out: Node) -> tuple[Dim, ...]:
        """The traced strides, unless different values would share memory. Elements of an expanded or unfolded result
        may share memory, because they are equal. A result that eager computes is never expanded, whatever the trace
        says."""
        wanted = self.graph.output_layouts[k]
        if not sharing_axes(wanted, out.shape) or _repeats(out, wanted):
            return wanted
        if not _is_expanded(wanted, out.shape) or any(of == k for of, *_ in self.captured.windows.values()):
            raise CompileError("schedule", "elements of a result share memory, in eager's order of writing them")
        return dense(out.layout, out.shape) or contiguous_strides(out.shape)

    def _lender(self, k: int, out: Node) -> Node | None:
        """The value a result is a view of, if it can be handed out as a window of that value's memory: a transposed
        activation that the backward pass wants is not copied, nor was it in eager."""
        source = self._window_source(out)
        if source is out or isinstance(source.op, Input | Constant) or source.type.dtype is None:
            return None
        if source in self.graph.outputs or source in self.lent.values() or isinstance(source.op, Full | Iota):
            return None
        assert isinstance(out.op, View)
        offset = dot(out.op.index, self._layout(source))
        strides = [coefficient(offset, a.name) for a in out.op.axes]
        wanted = self.graph.output_layouts[k]
        same = all(d == 1 or s == t for d, s, t in zip(out.shape, strides, wanted, strict=True))
        return source if same else None

    def _plan_in_place(self) -> None:
        """A cache update that ends as the input's new value writes the input itself, if nothing else reads the old."""
        reads = Counter(x.id for n in self.graph.nodes for x in n.inputs)
        results = [out for k, out in enumerate(self.graph.outputs) if k not in self.captured.aliases]
        kept = {x.id for x in (*results, *(v for _, v in self.graph.mutations)) if isinstance(x, Node)}
        for target, value in self.graph.mutations:
            if not isinstance(value.op, Scatter) or value.inputs[0] is not target:
                continue
            if reads[target.id] == 1 and target.id not in kept and value.id not in self.output_roles:
                self.in_place[value.id] = target

    def _store_node(self, node: Node) -> None:
        match node.op:
            case Input(position, strides):
                self._declare(node, "input", strides, f"in{position}")
                self.buffers[f"in{position}"] = Buffer(
                    f"in{position}", node.type.dtype, node.shape, strides, "input", position
                )
            case Constant(tensor, strides):
                buffer = self._declare(node, "constant", strides, f"const{node.id}")
                self.constants[buffer.name] = tensor
            case Extern():
                self._store_extern(node)
            case Pick(position):
                self._store_pick(node, position)
            case Contract() | Convolve():
                self._store_product(node)
            case Attend():
                self._store_attend(node)
            case Concat(axis):
                self._store_concat(node, axis)
            case Scatter():
                self._store_scatter(node)
            case Reduce():
                self._store_reduce(node)
            case Scan():
                self._store_scan(node)
            case _:
                self._store_map(node)

    def _axes(self, shape: tuple[Dim, ...], reduce: tuple[int, ...] = ()) -> tuple[tuple[Axis, ...], tuple[Dim, ...]]:
        """Axes for a shape, and the index over them; a dimension of size 1 needs no axis."""
        axes: list[Axis] = []
        index: list[Dim] = []
        for d, size in enumerate(shape):
            if size == 1:
                index.append(0)
            else:
                axis = make_axis(f"i{d}", size, d in reduce)
                axes.append(axis)
                index.append(axis.expr)
        return tuple(axes), tuple(index)

    def _emit_loop(self, axes: tuple[Axis, ...], emitter: Emitter, sequential: bool = False) -> None:
        if any(a.size == 0 for a in axes):  # nothing to write; a load hoisted out of the loop would read out of bounds
            return
        self.kernels.append(LoopKernel(Loop(axes, tuple(emitter.body.instrs), sequential)))

    def _store_map(self, node: Node) -> None:
        buffer = self._declare(node)
        axes, index = self._axes(node.shape)
        emitter = Emitter(self.stored, self._buffer)
        value = emitter.compute(node, index)
        emitter.store(buffer, self._offset(buffer, index), value)
        self._emit_loop(axes, emitter)

    def _store_reduce(self, node: Node) -> None:
        assert isinstance(node.op, Reduce)
        buffer = self._declare(node)
        source = node.inputs[0]
        axes, index = self._axes(source.shape, node.op.axes)
        emitter = Emitter(self.stored, self._buffer)
        value = emitter.value(source, index)
        if any(a.reduce for a in axes):
            position: Dim = 0
            for d in node.op.axes:
                position = position * source.shape[d] + index[d]
            value = emitter.body.emit(Reduced(node.op.kind, value, node.dtype.compute, position))
        elif node.op.kind.startswith("arg"):  # of one element: the position is 0, and only checks of indices remain
            if not any(isinstance(i, Checked) for i in emitter.body.instrs):
                emitter = Emitter(self.stored, self._buffer)
            value = emitter.body.emit(const(0, DType.i64))
        else:
            value = _of_one(emitter, node.op.kind, value, node.dtype.compute)
        kept = tuple(i for d, i in enumerate(index) if d not in node.op.axes)
        emitter.store(buffer, self._offset(buffer, kept), value)
        self._emit_loop(axes, emitter)

    def _store_scan(self, node: Node) -> None:
        assert isinstance(node.op, Scan)
        buffer = self._declare(node)
        axes, index = self._axes(node.shape, (node.op.axis,))
        emitter = Emitter(self.stored, self._buffer)
        value = emitter.value(node.inputs[0], index)
        if any(a.reduce for a in axes):
            value = emitter.body.emit(Scanned(node.op.kind, value, node.dtype.compute))
        else:
            value = _of_one(emitter, node.op.kind, value, node.dtype.compute)
        emitter.store(buffer, self._offset(buffer, index), value)
        self._emit_loop(axes, emitter)

    def _store_concat(self, node: Node, axis: int) -> None:
        buffer = self._declare(node)
        start: Dim = 0
        for part in node.inputs:
            axes, index = self._axes(part.shape)
            emitter = Emitter(self.stored, self._buffer)
            value = emitter.value(part, index)
            at = tuple(i + start if d == axis else i for d, i in enumerate(index))
            emitter.store(buffer, self._offset(buffer, at), value)
            self._emit_loop(axes, emitter)
            start = start + part.shape[axis]

    def _store_scatter(self, node: Node) -> None:
        assert isinstance(node.op, Scatter)
        base, src, *indices = node.inputs
        if node.id in self.in_place:
            self.names[node.id] = self.names[self.in_place[node.id].id]
            buffer = self._buffer(node)
        else:
            buffer = self._declare(node)
            axes, index = self._axes(base.shape)
            emitter = Emitter(self.stored, self._buffer)
            emitter.store(buffer, self._offset(buffer, index), emitter.value(base, index))
            self._emit_loop(axes, emitter)
        axes, index = self._axes(src.shape)
        emitter = Emitter(self.stored, self._buffer)
        at = emitter.indirect(node.op, base.shape, indices, index)
        value = emitter.value(src, index)
        offset = self._offset(buffer, at)
        emitter.store(buffer, offset, value, node.op.mode)
        apart = node.op.mode == "set" and hits_each_once(offset, axes, emitter.body.instrs)
        self._emit_loop(axes, emitter, sequential=bool(indices) and not apart)
        if node.id in self.in_place:
            self.overwritten.add(buffer.name)

    def _store_product(self, node: Node) -> None:
        x, y = (self._operand(i) for i in node.inputs)
        buffer = self._declare(node)
        axes, index = self._axes(node.shape)
        acc = f"acc{node.id}"
        emitter = Emitter(self.stored, self._buffer)
        order = channels_last_strides if isinstance(node.op, Convolve) else contiguous_strides
        value = emitter.body.emit(Load(acc, dot(index, order(node.shape)), node.dtype))
        emitter.store(buffer, self._offset(buffer, index), value)
        loop = Loop(axes, tuple(emitter.body.instrs))
        if isinstance(node.op, Convolve):
            self.kernels.append(ConvolveKernel(node.op, x, y, acc, node.dtype, loop))
        else:
            self.kernels.append(ContractKernel(x, y, acc, node.dtype, loop))

    def _store_attend(self, node: Node) -> None:
        assert isinstance(node.op, Attend)
        inputs = tuple(self._operand(x) for x in node.inputs)
        results = []
        for k, t in enumerate(node.types):
            buffer = Buffer(f"b{node.id}_{k}", t.dtype, t.shape, attend_layout(t.shape, k), "temp")
            self.buffers[buffer.name] = buffer
            results.append(Operand(buffer.name, 0, t.shape, buffer.strides, t.dtype))
        self.kernels.append(AttendKernel(node.op, inputs, results[0], results[1]))

    def _store_extern(self, node: Node) -> None:
        assert isinstance(node.op, Extern)
        inputs = tuple(self._operand(x, self._window_of_call(x)) for x in node.inputs)
        names = []
        for k, (t, strides) in enumerate(zip(node.types, node.op.strides, strict=True)):
            buffer = Buffer(f"b{node.id}_{k}", t.dtype, t.shape, strides, "extern")
            self.buffers[buffer.name] = buffer
            names.append(buffer.name)
        self.kernels.append(ExternKernel(node.op, inputs, tuple(names)))

    def _store_pick(self, node: Node, position: int) -> None:
        self.names[node.id] = f"b{node.inputs[0].id}_{position}"

    # --- mutations and results ----------------------------------------------------------------------------------

    def _write_mutations(self) -> None:
        """Before the first input is written, every value is stored or does not depend on written inputs."""
        changes = [(t, v) for t, v in self.graph.mutations if self.in_place.get(v.id) is not t and v is not t]
        early = {v.id: self._staged(v) for t, v in changes if self._may_overwrite_early(t, v)}
        for target, value in changes:
            buffer = self.buffers[self.names[target.id]]
            axes, index = self._axes(target.shape)
            emitter = Emitter(self.stored, self._buffer)
            if value.id in early:
                read = emitter.load_from(early[value.id], index)
            else:
                read = emitter.value(value, index)
            emitter.store(buffer, self._offset(buffer, index), read)
            self._emit_loop(axes, emitter)
            self.overwritten.add(buffer.name)

    def _may_overwrite_early(self, target: Node, value: Node) -> bool:
        """A value inlined over another mutated input, or over shifted reads of this one, must be stored first."""
        mutated = {t.id for t, _ in self.graph.mutations}
        stack, seen = [value], set()
        while stack:
            node = stack.pop()
            if node.id in mutated and node is not value:
                return True
            if node.id in self.stored or node.id in seen:
                continue
            seen.add(node.id)
            stack.extend(node.inputs)
        return value.id in mutated

    def _staged(self, value: Node) -> Buffer:
        """An inlined value, or an input's old one, in a buffer of its own (fusion may still join it to its writer)."""
        if isinstance(value.op, Input):
            copy = Buffer(f"old{value.id}", value.dtype, value.shape, contiguous_strides(value.shape), "temp")
            self.buffers[copy.name] = copy
            self._copy_into(copy, value)
            return copy
        if value.id not in self.stored:
            self.stored.add(value.id)
            self._store_map(value)
        return self._buffer(value)

    def _copy_into(self, buffer: Buffer, value: Node) -> None:
        axes, index = self._axes(value.shape)
        emitter = Emitter(self.stored, self._buffer)
        emitter.store(buffer, self._offset(buffer, index), emitter.value(value, index))
        self._emit_loop(axes, emitter)

    def _results(self) -> list[ResultBuffer | Dim | None]:
        results: list[ResultBuffer | Dim | None] = []
        taken: set[str] = set()
        again = {k: first for k, first, is_one in self.captured.objects if is_one}
        for k, out in enumerate(self.graph.outputs):
            if not isinstance(out, Node):
                results.append(out)
            elif k in again:
                results.append(None)
            elif k in self.captured.aliases:
                position, shape, strides, offset = self.captured.aliases[k]
                results.append(ResultBuffer(Operand(f"in{position}", offset, shape, strides, out.type.dtype), position))
            elif k in self.captured.windows:
                results.append(None)
            elif k in self.lent:
                results.append(self._lent_result(k, out))
            else:
                results.append(self._fresh_result(k, out, taken))
        for k, (of, shape, strides, offset) in self.captured.windows.items():
            whole = results[of]
            assert isinstance(whole, ResultBuffer)
            results[k] = ResultBuffer(replace(whole.operand, offset=offset, shape=shape, strides=strides))
        for k, first in again.items():
            results[k] = results[first]
        return results[: self.captured.results]

    def _lent_result(self, k: int, out: Node) -> ResultBuffer:
        window = self._operand(out)
        buffer = self.buffers[window.buffer]
        if buffer.role == "temp":  # a result is never handed out from the arena
            self.buffers[buffer.name] = replace(buffer, role="output")
        return ResultBuffer(replace(window, strides=self.graph.output_layouts[k]))

    def _fresh_result(self, k: int, out: Node, taken: set[str]) -> ResultBuffer:
        layout = self.graph.output_layouts[k]
        buffer = self._buffer(out)
        same = all(d == 1 or s == t for d, s, t in zip(out.shape, buffer.strides, layout, strict=True))
        free = buffer.role in ("output", "extern", "temp") and buffer.name not in taken
        if not same:
            layout = self._layout_of_result(k, out)
            same = layout == buffer.strides
        if free and (same or product(out.shape) == 0):
            taken.add(buffer.name)
            if buffer.role == "temp":  # a result is never handed out from the arena
                self.buffers[buffer.name] = replace(buffer, role="output")
            return ResultBuffer(Operand(buffer.name, 0, out.shape, layout, out.type.dtype))
        if out.type.dtype is None:
            raise CompileError("schedule", "a result of a type no kernel copies")
        copy = Buffer(f"out{k}", out.type.dtype, out.shape, layout, "output")
        self.buffers[copy.name] = copy
        taken.add(copy.name)
        self._copy_into(copy, out)
        return ResultBuffer(Operand(copy.name, 0, out.shape, layout, out.type.dtype))


def _of_one(emitter: Emitter, kind: str, value: int, dtype: DType) -> int:
    """A reduction of one element. A sum starts with zero, so the sum of a negative zero is a positive zero."""
    if kind != "sum" or not dtype.is_float:
        return value
    return emitter.body.emit(Apply("add", (value, emitter.body.emit(const(0.0, dtype))), dtype))


def _repeated_axes(view: Node) -> list[int]:
    """Axes along which a view reads one element again and again."""
    assert isinstance(view.op, View)
    read = {s.name for i in view.op.index for s in symbols(i)}
    axes = zip(view.op.axes, view.shape, strict=True)
    return [n for n, (axis, size) in enumerate(axes) if axis.name not in read and size != 1]


def _repeats(node: Node, strides: tuple[Dim, ...]) -> bool:
    """Whether elements that these strides give one place have one value."""
    match node.op:
        case Full():
            return True
        case Input(_, own) | Constant(_, own):
            return own == strides
        case Map():
            return all(_repeats(x, strides) for x in node.inputs)
        case Scatter():  # eager copies windows that overlap as they are, and writes into them
            return not _is_expanded(strides, node.shape) and _repeats(node.inputs[0], strides)
    shared = {a: strides[a] for a in sharing_axes(strides, node.shape)}
    if isinstance(node.op, Iota):
        return all(coefficient(node.op.expr, node.op.axes[a].name) == 0 for a in shared)
    if not isinstance(node.op, View):
        return False
    source, axes = node.inputs[0], node.op.axes
    read = {x.name for i in node.op.index for x in symbols(i)}
    if not any(axes[a].name in read for a in shared):
        return True
    if node.op.fill is not None:
        return False
    offsets = [dot(node.op.index, layout) for layout in (contiguous_strides(source.shape), source.layout) if layout]
    return any(all(coefficient(offset, axes[a].name) == s for a, s in shared.items()) for offset in offsets)


def _is_expanded(strides: tuple[Dim, ...], shape: tuple[Dim, ...]) -> bool:
    return any(s == 0 and d != 1 for s, d in zip(strides, shape, strict=True))
