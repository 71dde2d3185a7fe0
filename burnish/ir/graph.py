"""Graph: the model as typed tensor operations. Data only: it prints, verifies, evaluates and is rewritten by passes.

An operation is a frozen dataclass; a node applies one to earlier nodes. Views are index maps over named axes, so a
reshape, a transpose, a flip or a stride costs nothing until something has to be stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, Expr, Sym, is_less, is_nonneg, sym, symbols
from burnish.ir.scalar import REDUCTIONS, SCALAR_OPS, Mistake


@dataclass(frozen=True)
class TensorType:
    """dtype is None for types only ATen computes in (complex, ...): such a tensor flows between Extern nodes."""

    dtype: DType | None
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype.value if self.dtype else '?'}[{', '.join(map(str, self.shape))}]"


# --- operations -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Op:
    pass


@dataclass(frozen=True)
class Input(Op):
    """A graph argument: `position` in the call, strides as the caller promises them."""

    position: int
    strides: tuple[Dim, ...]


@dataclass(frozen=True, eq=False)
class Constant(Op):
    """A tensor the graph carries with it."""

    tensor: Any
    strides: tuple[Dim, ...]


@dataclass(frozen=True)
class Full(Op):
    """One value everywhere. `value` may be symbolic (a size used as a number)."""

    value: bool | int | float | Expr


@dataclass(frozen=True)
class Iota(Op):
    """out[axes] = expr(axes): ranges, positions, masks."""

    axes: tuple[Sym, ...]
    expr: Dim


@dataclass(frozen=True)
class Map(Op):
    """A scalar operation on every element; inputs have the output's shape."""

    fn: str


@dataclass(frozen=True)
class View(Op):
    """out[axes] = x[index(axes)]. With `fill`, an index outside x yields it (padding, windows)."""

    axes: tuple[Sym, ...]
    index: tuple[Dim, ...]
    fill: bool | int | float | None = None


@dataclass(frozen=True)
class Gather(Op):
    """out[axes] = x[index], where the symbol `%k` in index stands for the k-th index tensor's element at axes."""

    axes: tuple[Sym, ...]
    index: tuple[Dim, ...]
    raises: Mistake = "IndexError"


@dataclass(frozen=True)
class Reduce(Op):
    kind: str
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Scan(Op):
    kind: str  # sum | prod | max | min
    axis: int


@dataclass(frozen=True)
class Concat(Op):
    axis: int


@dataclass(frozen=True)
class Scatter(Op):
    """out = base; out[index] (op)= src[axes], in order. inputs: base, src, index tensors (`%k`) of src's shape."""

    axes: tuple[Sym, ...]
    index: tuple[Dim, ...]
    mode: str  # set | add | prod | max | min
    raises: Mistake = "IndexError"


@dataclass(frozen=True)
class Contract(Op):
    """out[*batch, m, n] = sum_k a[*batch, m, k] * b[*batch, k, n]."""


@dataclass(frozen=True)
class Convolve(Op):
    """out[b, o, h, w] = sum over c, r, s of x[b, c, h', w'] * k[o, c, r, s] with h' = h * stride + r * dilation -
    padding and w' alike; outside itself x is 0. (x, k) -> out; pairs are for h and w."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


@dataclass(frozen=True)
class Attend(Op):
    """Scaled dot-product attention: (q, k, v[, mask]) -> out, logsumexp. With a `cap`, a tanh keeps scores within it
    before the mask is added."""

    causal: bool
    scale: float
    has_mask: bool
    cap: float = 0.0


@dataclass(frozen=True)
class Ref:
    """Stands for inputs[position] inside an Extern's argument template."""

    position: int


@dataclass(frozen=True)
class Extern(Op):
    """A call of `target` (an ATen overload) outside our kernels; args hold Ref and Expr where values go."""

    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    strides: tuple[tuple[Dim, ...], ...]
    name: str
    positions: tuple[int, ...] = (0,)  # which of the call's results our outputs are (the others are None)
    many: bool = False  # the call returns a tuple


@dataclass(frozen=True)
class Pick(Op):
    """One result of a node with several."""

    position: int


# --- nodes ------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Node:
    op: Op
    inputs: tuple[Node, ...]
    types: tuple[TensorType, ...]
    id: int
    origin: str = ""
    layout: tuple[Dim, ...] | None = None  # strides eager would give it: what an output must have, a hint elsewhere

    @property
    def type(self) -> TensorType:
        return self.types[0]

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.types[0].shape

    @property
    def dtype(self) -> DType:
        dtype = self.types[0].dtype
        assert dtype is not None, f"%{self.id} has a type no kernel computes in"
        return dtype

    def __repr__(self) -> str:
        return f"%{self.id}"


@dataclass
class Graph:
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Node | Expr | int | None] = field(default_factory=list)  # tensors, sizes, and arguments nobody reads
    outputs: list[Node | Dim | None] = field(default_factory=list)
    mutations: list[tuple[Node, Node]] = field(default_factory=list)  # (input, value it must hold afterwards)
    effects: list[Node] = field(default_factory=list)  # must run though nothing reads them
    output_layouts: dict[int, tuple[Dim, ...]] = field(default_factory=dict)  # strides each result must have
    _memo: dict[Any, Node] = field(default_factory=dict, repr=False)
    _next: int = 0

    def add(
        self, op: Op, inputs: Sequence[Node] = (), types: TensorType | Sequence[TensorType] = (), origin: str = ""
    ) -> Node:
        """Append a node, or return the equal one already there (every op but Extern is pure, so this is CSE)."""
        types = (types,) if isinstance(types, TensorType) else tuple(types)
        key = (
            None
            if isinstance(op, Extern | Input | Constant)
            else (op, tuple(n.id for n in inputs), types, _constant_kind(op))
        )
        if key is not None and key in self._memo:
            return self._memo[key]
        node = Node(op, tuple(inputs), types, self._next, origin)
        self._next += 1
        self.nodes.append(node)
        if key is not None:
            self._memo[key] = node
        return node

    def roots(self) -> list[Node]:
        return [n for n in self.outputs if isinstance(n, Node)] + [v for _, v in self.mutations] + self.effects

    def __str__(self) -> str:
        lines = [f"%{n.id}: {', '.join(map(str, n.types))} = {describe(n)}" for n in self.nodes]
        lines += [f"mutate {dst!r} <- {src!r}" for dst, src in self.mutations]
        return "\n".join([*lines, f"return {', '.join(map(str, self.outputs))}"])

    def verify(self) -> None:
        seen: set[int] = set()
        for node in self.nodes:
            for x in node.inputs:
                assert x.id in seen, f"%{node.id} uses {x!r} before it is defined"
            _verify_node(node)
            seen.add(node.id)
        for root in self.roots():
            assert root.id in seen, f"result {root!r} is not in the graph"

    def eliminate_dead(self) -> None:
        live: set[int] = set()
        stack = self.roots()
        while stack:
            node = stack.pop()
            if node.id not in live:
                live.add(node.id)
                stack.extend(node.inputs)
        self.nodes = [n for n in self.nodes if n.id in live or isinstance(n.op, Input)]
        self._memo = {k: n for k, n in self._memo.items() if n.id in live}


def _constant_kind(op: Op) -> str:
    """1, 1.0 and True are equal in Python and different constants here; so are 0.0 and -0.0."""
    value = op.value if isinstance(op, Full) else op.fill if isinstance(op, View) else None
    return f"{type(value).__name__}:{value!r}"


def describe(node: Node) -> str:
    """The operation with its operands, as the printed graph shows it."""
    args = ", ".join(map(repr, node.inputs))
    op = node.op
    match op:
        case Map(fn):
            return f"{fn}({args})"
        case View(axes, index, fill):
            pad = "" if fill is None else f" else {fill}"
            return f"view({args})[{', '.join(s.name for s in axes)} -> {', '.join(map(str, index))}]{pad}"
        case Gather(axes, index):
            return f"gather({args})[{', '.join(s.name for s in axes)} -> {', '.join(map(str, index))}]"
        case Scatter(axes, index, mode):
            return f"scatter_{mode}({args})[{', '.join(s.name for s in axes)} -> {', '.join(map(str, index))}]"
        case Reduce(kind, over):
            return f"{kind}({args}, over={list(over)})"
        case Full(value):
            return f"full({value})"
        case Iota(axes, expr):
            return f"iota[{', '.join(s.name for s in axes)} -> {expr}]"
        case Input(position, strides):
            return f"input({position}, strides={list(strides)})"
        case Extern():
            return f"{op.name}({args})"
        case _:
            return f"{type(op).__name__.lower()}({args}{''.join(f', {k}={v}' for k, v in vars(op).items())})"


def _verify_node(node: Node) -> None:
    op = node.op
    match op:
        case Map(fn):
            assert fn in SCALAR_OPS, f"unknown scalar op {fn}"
            assert len(node.inputs) == SCALAR_OPS[fn].arity, f"{fn} takes {SCALAR_OPS[fn].arity} inputs"
            for x in node.inputs:
                assert x.shape == node.shape, f"{node!r}: {fn} over {x.shape}, result {node.shape}"
        case View(axes, index, fill):
            assert len(axes) == len(node.shape) and len(index) == len(node.inputs[0].shape)
            _verify_axes(axes, node.shape)
            if fill is None:
                for i, size in zip(index, node.inputs[0].shape, strict=True):
                    free = {s.name for s in symbols(i)} - {a.name for a in axes}
                    if (
                        all(isinstance(d, int) for d in node.shape)
                        and isinstance(size, int)
                        and not free
                        and 0 not in node.shape
                    ):
                        assert is_nonneg(i) and is_less(i, size), f"{node!r}: index {i} may leave [0, {size})"
        case Gather(axes, index) | Scatter(axes, index):
            source = node.inputs[0]
            assert len(index) == len(source.shape)
            _verify_axes(axes, node.shape if isinstance(op, Gather) else node.inputs[1].shape)
        case Reduce(kind, over):
            assert kind in REDUCTIONS
            kept = tuple(d for i, d in enumerate(node.inputs[0].shape) if i not in over)
            assert node.shape == kept, f"{node!r}: reduces {node.inputs[0].shape} over {over} to {node.shape}"
        case _:
            pass


def _verify_axes(axes: tuple[Sym, ...], shape: tuple[Dim, ...]) -> None:
    for axis, size in zip(axes, shape, strict=True):
        assert axis.hi == size - 1, f"axis {axis} does not span {size}"


def axes_for(shape: Iterable[Dim]) -> tuple[Sym, ...]:
    """The canonical axes of a shape: a0, a1, ... Their names repeat from node to node so equal views are equal data."""
    return tuple(Sym(f"a{i}", 0, d - 1) for i, d in enumerate(shape))


def axis_exprs(axes: Sequence[Sym]) -> tuple[Expr, ...]:
    return tuple(sym(a.name, a.lo, a.hi) for a in axes)
