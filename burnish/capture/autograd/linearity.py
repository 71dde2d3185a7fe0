"""Whether the backward of a custom autograd function is linear in its gradients.

The double backward of a compiled graph assumes linearity: the function's result gets one gradient through the captured
graph and another through the compiled backward, and the two are passed separately and added. For a backward that clips
its gradient, or divides it by its norm, that sum is different.

The backward is analysed as Dynamo traced it. Operations that are not known to be linear count as non-linear, except
operators of other libraries.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from burnish.capture.graphs.called import operation_name
from burnish.capture.graphs.written_memory import memory_of_values, operands_written
from burnish.torch_private.operators import OpOverload, OpOverloadPacket, pytree


class Kind(enum.Enum):
    """The kind of a value as a function of the gradients."""

    ZERO = enum.auto()
    CONSTANT = enum.auto()
    LINEAR = enum.auto()
    OTHER = enum.auto()


ZERO, CONSTANT, LINEAR, OTHER = Kind

# The kind of an operation if one operand is linear and all others are constant: in the first operand,
_KEEPS = frozenset(
    """
    neg negative positive clone contiguous detach to type type_as float double half bfloat16 cpu cuda alias
    sum mean cumsum trace sum_to_size
    view view_as reshape reshape_as flatten unflatten ravel squeeze unsqueeze expand expand_as broadcast_to repeat
    repeat_interleave tile transpose permute t T mT swapaxes swapdims movedim moveaxis adjoint mH H conj resolve_conj
    resolve_neg real imag view_as_real view_as_complex unfold fold as_strided
    getitem select narrow index_select gather take take_along_dim masked_select diagonal diag diag_embed tril triu flip
    fliplr flipud roll rot90 split split_with_sizes chunk tensor_split unbind unsafe_split unsafe_chunk
    avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d pixel_shuffle
    pixel_unshuffle fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn
    fft_rfftn fft_irfftn interpolate
    """.split()
)
# in any one of them,
_PRODUCTS = frozenset(
    """
    mul multiply matmul mm bmm mv dot vdot inner outer ger kron einsum tensordot linear conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d cross conv1d_input conv2d_input conv3d_input conv1d_weight
    conv2d_weight conv3d_weight
    """.split()
)
_WITH_BIAS = frozenset("linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d".split())
# in a dividend,
_QUOTIENTS = frozenset("div divide true_divide truediv".split())
# in all operands at once.
_SUMS = frozenset("add sub subtract rsub".split())
_JOINS = frozenset("cat concat concatenate stack hstack vstack dstack column_stack".split())
# These write a value or a tensor into their first operand, so they are linear in both.
_PUTS = {
    "setitem": (2, "value"),
    "copy": (1, "src"),
    "fill": (1, "value"),
    "masked_fill": (2, "value"),
    "masked_scatter": (2, "source"),
    "index_put": (2, "values"),
    "index_add": (3, "source"),
    "index_copy": (3, "source"),
    "index_fill": (3, "value"),
    "scatter": (3, "src"),
    "scatter_add": (3, "src"),
    "slice_scatter": (1, "src"),
    "select_scatter": (1, "src"),
    "diagonal_scatter": (1, "src"),
}
_ZEROS = frozenset("zero zeros zeros_like new_zeros empty empty_like new_empty".split())
# These read only the shape and type of their operands.
_FORMS = _ZEROS - {"zero"} | frozenset(
    """
    ones_like new_ones full_like new_full size shape dim ndim ndimension numel nelement stride dtype device layout
    is_floating_point is_complex is_contiguous is_cuda element_size itemsize get_device requires_grad
    """.split()
)
# Random numbers, drawn separately for each gradient.
_DRAWS = ("rand", "bernoulli", "normal", "uniform", "multinomial", "poisson", "exponential", "dropout", "rrelu")
_IN_PLACE = {name: name[1:] for name in ("iadd", "isub", "imul", "itruediv", "imatmul")}


def is_linear(backward: fx.GraphModule, gradients: int) -> bool:
    """`gradients` come first among its inputs."""
    reading = _Reading()
    for position, node in enumerate(backward.graph.find_nodes(op="placeholder")):
        reading.begin(node, LINEAR if position < gradients else CONSTANT)
    for node in backward.graph.nodes:
        if node.op == "output":
            return reading.is_linear(node.args[0])
        if node.op != "placeholder":
            reading.read(node)
    return False


class _Reading:
    """The kinds of a graph's values. Values that share memory have the same kind, and a write changes it."""

    def __init__(self) -> None:
        self._same: dict[fx.Node, fx.Node] = {}  # the first of the nodes that share memory
        self._kinds: dict[fx.Node, Kind] = {}
        self._is_pure = True

    def is_linear(self, results: Any) -> bool:
        return self._is_pure and self.kind(results) in (ZERO, LINEAR)

    def begin(self, node: fx.Node, kind: Kind, memory_of: fx.Node | None = None) -> None:
        self._same[node] = node if memory_of is None else self._same[memory_of]
        if memory_of is None:
            self._kinds[node] = kind

    def kind(self, value: Any) -> Kind:
        """The kind of a value, or of all values in a container."""
        return _together([self._kind(x) for x in pytree.tree_leaves(value) if x is not None])

    def _kind(self, x: Any) -> Kind:
        if isinstance(x, fx.Node):
            return self._kinds[self._same[x]]
        return ZERO if isinstance(x, (int, float)) and x == 0 else CONSTANT

    def read(self, node: fx.Node) -> None:
        kind = self._computed(node)
        if kind is LINEAR and not _is_continuous(node):
            kind = OTHER
        for written in pytree.tree_leaves(list(operands_written(node))):
            if isinstance(written, fx.Node):
                first = self._same[written]
                is_its_own = first.op != "placeholder"  # a write to external memory happens once for each gradient
                self._kinds[first] = _together([self._kinds[first], kind if is_its_own else OTHER])
                self._is_pure = self._is_pure and is_its_own
        own = memory_of_values(node)
        self.begin(node, kind, next((x for x in node.all_input_nodes if own & memory_of_values(x)), None))

    def _computed(self, node: fx.Node) -> Kind:
        name = operation_name(node)
        name = _IN_PLACE.get(name, name.rstrip("_"))
        if node.op not in ("call_function", "call_method"):
            return CONSTANT
        leaves = pytree.tree_leaves((node.args, dict(node.kwargs)))
        kinds = [self._kind(x) for x in leaves if x is not None]
        if name.startswith(_DRAWS):
            return OTHER
        if name in _ZEROS:
            return ZERO
        if name in _FORMS:
            return CONSTANT
        if LINEAR not in kinds and OTHER not in kinds:
            return ZERO if name in _KEEPS and self.kind(node.args[:1]) is ZERO else CONSTANT
        return self._of_linear(node, name, kinds) if OTHER not in kinds and "out" not in node.kwargs else OTHER

    def _of_linear(self, node: fx.Node, name: str, kinds: Sequence[Kind]) -> Kind:
        first, *rest = (self.kind(x) for x in (*node.args, *node.kwargs.values()))
        only_first = first is LINEAR and LINEAR not in rest
        if name in _KEEPS or (name.endswith(("_backward", "_backward_data")) and _is_torchs(node)):
            return LINEAR if only_first else OTHER
        if name in _PRODUCTS:
            bias = _argument(node, 2, "bias") if name in _WITH_BIAS else None
            return LINEAR if kinds.count(LINEAR) == 1 and self.kind(bias) is ZERO else OTHER
        if name in _QUOTIENTS:
            return LINEAR if only_first and node.kwargs.get("rounding_mode") is None else OTHER
        if name in _SUMS:
            return self.kind([*node.args, *(x for name, x in node.kwargs.items() if name != "alpha")])
        if name in _JOINS:
            return self.kind(_argument(node, 0, "tensors"))
        if name == "where" and len(node.args) == 3:
            condition = 1 if node.op == "call_method" else 0
            return self.kind([x for k, x in enumerate(node.args) if k != condition])
        if name == "pad":
            return LINEAR if only_first and self.kind(_argument(node, 3, "value")) is ZERO else OTHER
        if name in _PUTS:
            return self._put(node, *_PUTS[name])
        return LINEAR if _is_of_others(node) else OTHER

    def _put(self, node: fx.Node, position: int, name: str) -> Kind:
        """Whatever else is named says how: to add, to multiply."""
        named = set(node.kwargs) - {name}
        if named or (position >= len(node.args) and name not in node.kwargs) or not node.args:
            return OTHER
        return self.kind((node.args[0], _argument(node, position, name)))


def _together(kinds: Sequence[Kind]) -> Kind:
    """A sum of such values, or a tensor assembled from them."""
    found = set(kinds)
    if OTHER in found or found >= {LINEAR, CONSTANT}:
        return OTHER
    return next((kind for kind in (LINEAR, CONSTANT) if kind in found), ZERO)


def _argument(node: fx.Node, position: int, name: str) -> Any:
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


def _is_continuous(node: fx.Node) -> bool:
    """Whether the results are not rounded coarsely (to integers, or to one-byte floats)."""
    values = pytree.tree_leaves(node.meta.get("example_value"))
    return bool(values) and all(_is_fine(x) for x in values if x is not None)


def _is_fine(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and ((x.is_floating_point() and x.element_size() > 1) or x.is_complex())


def _is_of_others(node: fx.Node) -> bool:
    """Whether it is another library's operator for a backward (an attention's), which computes a derivative. Its code
    cannot be analysed, and most users never differentiate it."""
    return isinstance(node.target, OpOverload | OpOverloadPacket) and not _is_torchs(node)


def _is_torchs(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload | OpOverloadPacket):
        return True
    return str(node.target).partition(".")[0] in ("aten", "prims")
