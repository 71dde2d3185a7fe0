"""0 mismatches and 0 crashes over every entry of op_db in float32, forward and backward."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from burnish.options import Options
from tests.lower.op_db_runner import check_op, op_db

# No graph of these reaches a compiler: eager refuses them on this build, or their result's shape depends on values,
# where Dynamo breaks the graph and leaves the op to eager.
UNTRACEABLE = frozenset(
    """
    nn.functional.batch_norm.without_cudnn item allclose combinations corrcoef cov equal sparse.sampled_addmm
    sparse.mm.reduce masked_select torch._scaled_mm_v2 torch._scaled_mm torch.ops.aten._flash_attention_forward
    torch.ops.aten._efficient_attention_forward unique unique_consecutive bincount to_sparse nonzero
    jiterator_unary jiterator_binary jiterator_4inputs_with_extra_args jiterator_binary_return_by_ref
    jiterator_2inputs_2outputs nn.functional.one_hot argwhere nn.functional.ctc_loss
    nn.functional.gaussian_nll_loss linalg.lstsq linalg.lstsq.grad_oriented
    """.split()
)


def _name(op: object) -> str:
    variant = getattr(op, "variant_test_name", "")
    return f"{op.name}.{variant}" if variant else op.name  # type: ignore[attr-defined]


@pytest.mark.parametrize("op", op_db, ids=_name)
def test_op(op: object) -> None:
    options = Options(cache_dir=Path(os.environ["BURNISH_CACHE_DIR"]), verify_ir=True)
    outcome = check_op(op, options, backward=True)
    assert not outcome.mismatches, "\n".join(outcome.mismatches)
    assert not outcome.crashes, "\n".join(outcome.crashes)
    if _name(op) in UNTRACEABLE:
        assert outcome.checked == 0, "this op is captured now: take it off the list"
    else:
        assert outcome.checked > 0, "\n".join(outcome.untraceable)
