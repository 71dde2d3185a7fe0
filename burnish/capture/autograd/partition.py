"""Split the joint forward-and-backward graph that AOTAutograd traces into the two graphs we compile.

The split itself is torch's min-cut. Its common-subexpression pass is disabled and replaced, because that pass imports
all of Inductor (most of a second) for one helper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from burnish.capture.autograd.own_memory import give_own_memory
from burnish.lower.aten_calls import memory_of_node, mutates
from burnish.torch_private.aot import config as functorch_config
from burnish.torch_private.aot import min_cut_rematerialization_partition
from burnish.torch_private.operators import TO_COPY, OpOverload

_PADDED_ON = ("cuda",)
_LONG_ROW = 1024  # shorter ones are not worth a padded copy of the operand


def partition(joint: fx.GraphModule, joint_inputs: Sequence[Any], **arguments: Any) -> tuple[fx.GraphModule, ...]:
    """A `partition_fn` for AOTAutograd; `arguments` are those that AOTAutograd defines for such a function."""
    keep_old_values(joint.graph)
    drop_detaches(joint.graph)
    merge_repeats(joint.graph)
    open_log_softmax(joint.graph)
    padded = pad_ragged_products(joint.graph)
    joint.recompile()
    # Save the whole of a padded product, because its inner part would be a copy.
    with functorch_config.patch(cse=False, recompute_views=functorch_config.recompute_views or padded > 0):
        forward, backward = min_cut_rematerialization_partition(joint, joint_inputs, **arguments)
    if give_own_memory(backward.graph):
        backward.recompile()
    return forward, backward


def save_copies(forward: fx.Graph, returned: int, changed: Sequence[int]) -> int:
    """Save copies of the inputs at these positions, and of their views, because AOTAutograd writes new values to them
    at the end of the forward. Saved tensors come after the `returned` results. Returns the number of copies."""
    inputs = forward.find_nodes(op="placeholder")
    memory = {memory_of_node(inputs[k]) for k in changed} - {None}
    (output,) = forward.find_nodes(op="output")
    results = list(output.args[0])
    count = 0
    for k, saved in enumerate(results):
        if k < returned or not isinstance(saved, fx.Node) or memory_of_node(saved) not in memory:
            continue
        with forward.inserting_before(output):
            results[k] = forward.call_function(torch.ops.aten.clone.default, (saved,))
        results[k].meta["val"] = saved.meta["val"].clone()
        count += 1
    output.args = (tuple(results),)
    return count


def keep_old_values(graph: fx.Graph) -> int:
    """Make all nodes read a copy of an input that the forward changes. Returns the number of copies.

    The min-cut treats inputs as free in the backward, but this input has another value by then. It never recomputes the
    copy. A copy that the backward does not need costs nothing, because its readers then read the input."""
    changed = [n.args[0] for n in graph.nodes if n.target is torch.ops.aten.copy_.default and _in_forward(n)]
    count = 0
    for held in changed:
        if not isinstance(held, fx.Node) or held.op != "placeholder":
            continue
        readers = [u for u in held.users if u.target is not torch.ops.aten.copy_.default or u.args[0] is not held]
        readers = [u for u in readers if u.op != "output"]
        if not readers:
            continue
        with graph.inserting_after(_last_placeholder(graph)):
            old = graph.call_function(torch.ops.aten.clone.default, (held,))
        old.meta["val"] = held.meta["val"].clone()
        old.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        for reader in readers:
            reader.replace_input_with(held, old)
        count += 1
    return count


def drop_detaches(graph: fx.Graph) -> int:
    """Remove `detach` nodes: a traced graph has no gradients, and the min-cut would assume that their results must be
    in memory. Returns the number of removed nodes."""
    count = 0
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        if all(user.op != "output" for user in node.users):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            count += 1
    return count


def open_log_softmax(graph: fx.Graph) -> int:
    """Decompose log-softmax and its gradient for the min-cut, so that it saves the logits and one number per row for
    the backward instead of the whole result, which may be twice as wide. Returns the number of decomposed nodes."""
    aten = torch.ops.aten
    opened: dict[Any, Callable[..., fx.Node]] = {
        aten._log_softmax.default: _log_softmax,
        aten._log_softmax_backward_data.default: _log_softmax_backward,
        aten.nll_loss_backward.default: _nll_loss_backward,
    }
    count = 0
    for node in list(graph.nodes):
        if node.target in opened and _is_static_and_full(node.meta["val"]):
            with graph.inserting_before(node):
                result = opened[node.target](_Maker(graph, node), *node.args)
            result.meta["val"] = node.meta["val"]  # in eager's strides, which the decomposition may not have
            node.replace_all_uses_with(result)
            graph.erase_node(node)
            count += 1
    return count


def _log_softmax(make: _Maker, x: fx.Node, dim: int, half_to_float: bool) -> fx.Node:
    aten = torch.ops.aten
    wide = make.cast(x, torch.promote_types(x.meta["val"].dtype, torch.float32))
    shifted = make(aten.sub.Tensor, wide, make(aten.amax.default, wide, [dim], True))
    total = make(aten.sum.dim_IntList, make(aten.exp.default, shifted), [dim], True)
    return make.cast(make(aten.sub.Tensor, shifted, make(aten.log.default, total)), make.dtype)


def _log_softmax_backward(make: _Maker, grad: fx.Node, out: fx.Node, dim: int, dtype: torch.dtype) -> fx.Node:
    aten = torch.ops.aten
    wide = torch.promote_types(grad.meta["val"].dtype, torch.float32)
    total = _loss_per_row(make, grad)
    grad, out = make.cast(grad, wide), make.cast(out, wide)
    if total is None:
        total = make(aten.sum.dim_IntList, grad, [dim], True)
    share = make(aten.mul.Tensor, make(aten.exp.default, out), total)
    return make.cast(make(aten.sub.Tensor, grad, share), make.dtype)


def _loss_per_row(make: _Maker, grad: fx.Node) -> fx.Node | None:
    """The sum of each row of a gradient with one non-zero element per row, without a reduction."""
    aten = torch.ops.aten
    if grad.target is not aten.nll_loss_backward.default or grad.meta["val"].dim() != 2:
        return None
    tangent, _, target, weight, reduction, ignored, number = grad.args
    if weight is not None or tangent.meta["val"].dim():  # type: ignore[union-attr]
        return None
    value = make(aten.div.Tensor, tangent, number) if reduction == 1 else tangent
    zero = make(aten.full.default, [], 0.0, dtype=make.dtype, device=grad.meta["val"].device)
    chosen = make(aten.where.self, make(aten.ne.Scalar, target, ignored), make(aten.neg.default, value), zero)
    return make(aten.unsqueeze.default, chosen, 1)


def _nll_loss_backward(make: _Maker, grad: fx.Node, x: fx.Node, *rest: Any) -> fx.Node:
    """It needs only the shape of the log-probabilities: any tensor of that shape suffices."""
    like = x.meta["val"]
    blank = make(torch.ops.aten.full.default, list(like.shape), 0.0, dtype=like.dtype, device=like.device)
    return make(torch.ops.aten.nll_loss_backward.default, grad, blank, *rest)


def pad_ragged_products(graph: fx.Graph) -> int:
    """Give products of a GPU with rows of odd length (a vocabulary's logits) rows that start at multiples of 128 bytes:
    the library has fast kernels for those only, and readers can load 16 bytes at a time. Returns the number of
    products."""
    aten, count = torch.ops.aten, 0
    for node in graph.find_nodes(op="call_function", target=aten.mm.default):
        value = node.meta["val"]
        columns = value.shape[1]
        if value.device.type not in _PADDED_ON or value.dtype not in (torch.float16, torch.bfloat16):
            continue
        if not _is_static_and_full(value) or columns < _LONG_ROW or columns % 8 == 0 or not _in_forward(node):
            continue
        a, b = node.args
        assert isinstance(b, fx.Node)
        more = -columns % 64
        with graph.inserting_before(node):
            make = _Maker(graph, node)
            if b.target is aten.t.default:  # a weight as stored gets additional rows
                wide = make(aten.t.default, _with_more_rows(make, b.args[0], more))
            else:
                wide = make(aten.constant_pad_nd.default, b, [0, more])
            part = make(aten.slice.Tensor, make(aten.mm.default, a, wide), 1, 0, columns)
        node.replace_all_uses_with(part)
        graph.erase_node(node)
        count += 1
    return count


def _with_more_rows(make: _Maker, weight: Any, more: int) -> fx.Node:
    """A weight with this many rows of zeros appended. If the weight is cast, all readers of the cast use the padded
    one: it is made once, and saved for the backward."""
    aten = torch.ops.aten
    if weight.target is not TO_COPY or set(weight.kwargs) != {"dtype"}:
        return make(aten.constant_pad_nd.default, weight, [0, 0, 0, more])
    padded = make.cast(make(aten.constant_pad_nd.default, weight.args[0], [0, 0, 0, more]), weight.kwargs["dtype"])
    part = make(aten.slice.Tensor, padded, 0, 0, weight.meta["val"].shape[0])
    view = make(aten.t.default, part)
    place = {node: n for n, node in enumerate(make.graph.nodes)}
    for old, new in ((weight, part), *((u, view) for u in weight.users if u.target is aten.t.default)):
        old.replace_all_uses_with(new, delete_user_cb=lambda user: place[user] > place[view])
    return padded


def _is_static_and_full(value: torch.Tensor) -> bool:
    return value.dim() > 0 and all(isinstance(size, int) and size > 0 for size in value.shape)


class _Maker:
    """Adds calls to a traced graph in place of one of its nodes, with the fake results every node carries."""

    def __init__(self, graph: fx.Graph, replaced: fx.Node) -> None:
        self.graph, self.meta = graph, replaced.meta
        self.dtype: torch.dtype = replaced.meta["val"].dtype

    def cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        same = node.meta["val"].dtype is dtype
        return node if same else self(TO_COPY, node, dtype=dtype)

    def __call__(self, op: OpOverload, *args: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(op, args, kwargs)
        node.meta = dict(self.meta)
        values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in args]
        with self.meta["val"].fake_mode:
            node.meta["val"] = op(*values, **kwargs)
        return node


def _in_forward(node: fx.Node) -> bool:
    return node.meta.get("partitioner_tag") != "must_be_in_backward"


def _last_placeholder(graph: fx.Graph) -> fx.Node:
    return graph.find_nodes(op="placeholder")[-1]


def merge_repeats(graph: fx.Graph) -> int:
    """Common-subexpression elimination. Returns the number of removed nodes."""
    nodes = list(graph.nodes)
    if any(map(mutates, nodes)):
        return 0  # two reads of one tensor may see different values
    escaping = _escaping(graph)
    first: dict[Any, fx.Node] = {}
    merged = 0
    for node in nodes:
        if node.op != "call_function" or not _is_pure(node) or node in escaping:
            continue
        key = (node.target, _frozen(node.args), _frozen(node.kwargs))
        try:
            representative = first.setdefault(key, node)
        except TypeError:  # an unhashable argument
            continue
        if representative is not node:
            node.replace_all_uses_with(representative)
            graph.erase_node(node)
            merged += 1
    return merged


def _is_pure(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload) or "recompute" in node.meta:
        return False  # a checkpointed node is repeated on purpose
    if torch.Tag.nondeterministic_seeded in target.tags:
        return False
    return "empty" not in target._schema.name  # uninitialised memory is not a value


def _escaping(graph: fx.Graph) -> set[fx.Node]:
    """Nodes whose memory is returned to the caller: merged, two results of a model would become one tensor."""
    (output,) = graph.find_nodes(op="output")
    pending = list(output.all_input_nodes)
    escaping: set[fx.Node] = set()
    while pending:
        node = pending.pop()
        if node in escaping:
            continue
        escaping.add(node)
        target = node.target
        if not isinstance(target, OpOverload) or any(argument.alias_info for argument in target._schema.arguments):
            pending.extend(node.all_input_nodes)
    return escaping


def _frozen(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple((name, _frozen(item)) for name, item in value.items())
    return type(value), value  # 1, 1.0 and True are equal but not the same argument
