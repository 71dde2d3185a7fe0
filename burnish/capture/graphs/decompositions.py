"""The ATen composites that torch decomposes before we get the graph: those without a lowering of ours.

Tracing a decomposition costs Python time per op in AOTAutograd, and our lowerings are cheaper and keep patterns that a
pass can recognise. So an op that we lower is never decomposed. Neither is one that draws random numbers (the draw must
stay eager's), nor attention (its decomposition is unfused), nor an op that checks values, because its decomposition
does not (`max_unpool`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from burnish.capture.graphs.eager_results import as_eager_has_it, laid_out_as_eager_does
from burnish.lower import lowered_names
from burnish.torch_private.aot import core_aten_decompositions, core_aten_decompositions_post_autograd
from burnish.torch_private.aot import decomposition_table as every_decomposition
from burnish.torch_private.operators import OpOverload

# Composites outside the core table whose decompositions compile well.
_ALSO = frozenset(
    """
    native_group_norm_backward nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward
    hardswish_backward hardtanh_backward leaky_relu_backward elu_backward softplus
    softplus_backward mish mish_backward log_sigmoid_forward log_sigmoid_backward addcmul addcdiv lerp
    smooth_l1_loss mse_loss mse_loss_backward huber_loss huber_loss_backward
    binary_cross_entropy_backward upsample_nearest2d_backward glu glu_backward
    _fused_rms_norm_backward slice_backward select_backward _prelu_kernel _prelu_kernel_backward
    """.split()
)
_NEVER = frozenset(
    """
    native_dropout dropout bernoulli rand randn randint rand_like randn_like randint_like randperm multinomial normal
    uniform exponential geometric cauchy log_normal random rrelu_with_noise rrelu_with_noise_functional
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    scaled_dot_product_attention _scaled_dot_product_attention_math convolution _convolution unfold_backward
    binary_cross_entropy multilabel_margin_loss_forward max_unpool2d max_unpool3d
    """.split()
)
# Decomposed only if their operands have one real type. torch's decomposition converts an integer combined with a
# float16 to float32 directly, where float16 would overflow to infinity, and multiplies complex numbers in another order
# than eager.
_OF_ONE_TYPE = frozenset({"addcmul", "addcdiv", "lerp"})
# Operations that we lower, whose fake results have other strides than those of eager's kernels.
_LAID_OUT_OTHERWISE = tuple(
    """
    pow.Scalar copysign.Tensor div.Tensor_mode floor_divide.default slice_scatter.default select_scatter.default
    """.split()
)


@functools.lru_cache(maxsize=1)
def decomposition_table() -> dict[Any, Callable[..., Any]]:
    lowered = lowered_names()
    # The public table first scans every custom op for composites (150 ms), which AOTAutograd decomposes anyway.
    core = core_aten_decompositions_post_autograd
    table = dict(core_aten_decompositions() if core is None else core())
    for op, fn in every_decomposition.items():
        if isinstance(op, OpOverload) and op.namespace == "aten" and op._schema.name.split("::")[1] in _ALSO:
            table[op] = _of_one_type(fn) if op._schema.name.split("::")[1] in _OF_ONE_TYPE else fn
    kept = {op: _as_eager_has_it(op, fn) for op, fn in table.items() if not _keep_whole(op, lowered)}
    for name in _LAID_OUT_OTHERWISE:
        packet, overload = name.split(".")
        op = getattr(getattr(torch.ops.aten, packet), overload)
        kept[op] = laid_out_as_eager_does(op)
    return kept


def _of_one_type(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        kinds = {t.dtype for t in args if isinstance(t, torch.Tensor)}
        return NotImplemented if len(kinds) > 1 or any(k.is_complex for k in kinds) else fn(*args, **kwargs)

    return run


def _as_eager_has_it(op: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Ops that are views, write or draw are excluded: they have no own layout, or must not be run to find it."""
    if not isinstance(op, OpOverload) or torch.Tag.nondeterministic_seeded in op.tags:
        return fn
    returns = op._schema.returns
    if any(r.alias_info is not None for r in returns) or not all(str(r.type) == "Tensor" for r in returns):
        return fn
    return as_eager_has_it(op, fn)


def _keep_whole(op: Any, lowered: frozenset[str]) -> bool:
    if not isinstance(op, OpOverload):
        return False
    name = op._schema.name.split("::")[1]
    return name in _NEVER or f"{op.namespace}::{name}.{op._overloadname}" in lowered
