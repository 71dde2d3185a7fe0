"""Attention of few queries reads the keys in splits, which a loop puts together."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from burnish.lower.contractions import FEWEST_QUERIES
from burnish.schedule.kernels import KEY_BLOCK, AttendKernel, AttendSplits, LoopKernel
from tests.schedule.one_pass import OnePass, one_pass


def attended(batch: int, heads: int, queries: int, keys: int, mask: torch.Tensor | None = None) -> OnePass:
    """The pass on attention of these sizes."""
    q = torch.randn(batch, heads, queries, 16).bfloat16()
    k, v = (torch.randn(batch, heads, keys, 16).bfloat16() for _ in range(2))
    if mask is None:
        return one_pass("split attention", F.scaled_dot_product_attention, q, k, v)
    return one_pass("split attention", F.scaled_dot_product_attention, q, k, v, mask)


def splits_of(found: OnePass) -> AttendSplits:
    (splits,) = (k for k in found.after.kernels if isinstance(k, AttendSplits))
    return splits


def test_one_querys_keys_are_cut_and_a_loop_puts_the_splits_together() -> None:
    found = attended(1, 4, 1, 8 * KEY_BLOCK)
    assert [type(k) for k in found.after.kernels] == [AttendSplits, LoopKernel]
    assert splits_of(found).splits == 8 and found.after.kernels[1].reads == splits_of(found).writes
    found.require_same_results(2e-2)


def test_the_last_split_may_have_fewer_keys() -> None:
    found = attended(1, 4, 2, 2 * KEY_BLOCK + 1)
    assert splits_of(found).splits == 3
    found.require_same_results(2e-2)


def test_no_split_is_empty() -> None:
    """33 blocks in 32 splits would be two blocks in each: the first 17 have them all."""
    assert splits_of(attended(1, 2, 1, 33 * KEY_BLOCK)).splits == 17


def test_heads_that_fill_the_gpu_have_one_split_each_and_nothing_to_add() -> None:
    found = attended(8, 33, 1, 3 * KEY_BLOCK)
    (together,) = (k for k in found.after.kernels if isinstance(k, LoopKernel))
    assert splits_of(found).splits == 1 and not together.loop.reduction
    found.require_same_results(2e-2)


def test_a_query_that_sees_no_key_gets_zeros() -> None:
    mask = torch.rand(1, 1, 4, 130) < 0.5
    mask[:, :, 1] = False
    found = attended(1, 4, 4, 130, mask)
    assert splits_of(found).op.has_mask
    found.require_same_results(2e-2)


@pytest.mark.parametrize("queries", [FEWEST_QUERIES, 40])
def test_many_queries_keep_programs_busy_and_stay_one_kernel(queries: int) -> None:
    found = attended(1, 4, queries, 512)
    assert any(isinstance(k, AttendKernel) for k in found.after.kernels)
    assert str(found.after) == str(found.before)


def test_it_takes_no_fuel() -> None:
    """It is how a GPU computes such attention: there is no other kernel for it to fall back on."""
    found = attended(1, 4, 1, 512)
    assert not found.steps and str(found.without_fuel) == str(found.after)
