"""Which operations keep padding apart from real elements, and which are refused, with a reason that names them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from burnish.ir.expr import sym
from burnish.shapes.padding import grows
from tests.shapes.cases import BATCH, SEQUENCE, proof_of

B, S = BATCH, SEQUENCE
X = torch.linspace(-2, 2, B * S * 4).reshape(B, S, 4)
MASK = torch.ones(B, S)
HIDES = torch.zeros(B, S, dtype=torch.bool)
IDS = torch.arange(B * S).reshape(B, S)
LENGTHS = torch.arange(1, B + 1)


def reason_of(proof: object) -> str:
    return str(proof)


# --- element by element, and along other dimensions -------------------------------------------------------------


def test_elements_are_independent() -> None:
    assert proof_of(lambda x: F.gelu(x) * 2 + x.exp(), X).safe


def test_rows_are_independent() -> None:
    assert proof_of(lambda x: F.layer_norm(x, (4,)).softmax(-1).sort(-1)[0], X).safe


def test_a_result_says_what_it_is_cut_to() -> None:
    proof = proof_of(lambda x: x[:, 1:].transpose(0, 1), X)
    (cut,) = proof.outputs
    (symbol,) = {s.name for _, size in cut.dims for s in _symbols(size)}
    assert cut.sizes({symbol: S}) == {0: S - 1}


def _symbols(size: object) -> tuple[object, ...]:
    from burnish.ir.expr import symbols

    return symbols(size)  # type: ignore[arg-type]


def test_the_batch_is_proven_by_itself() -> None:
    assert proof_of(lambda x: x.mean(1), X, over=["batch"]).safe


def test_batch_and_sequence_together() -> None:
    assert proof_of(lambda x: (x.reshape(-1, 4) @ torch.ones(4, 3)).relu().reshape(x.shape[0], -1, 3), X).safe
    assert proof_of(lambda x: x.reshape(-1, 4).relu().reshape(x.shape), X, over=["batch", "sequence"]).safe


# --- reductions -------------------------------------------------------------------------------------------------


def test_a_sum_of_zeros_is_safe() -> None:
    assert proof_of(lambda x: x.sum(1), X).safe


def test_a_sum_of_what_padding_became_is_refused() -> None:
    assert "sums over the padded dimension sequence" in reason_of(proof_of(lambda x: (x + 1).sum(1), X))


def test_a_mean_divides_by_a_size_that_padding_changes() -> None:
    assert "aten::mean.dim uses the size" in reason_of(proof_of(lambda x: x.mean(1), X))


def test_a_mean_under_a_mask_is_safe_if_what_it_hides_is_finite() -> None:
    def pooled(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(x + 1)
        return (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1e-9)

    proof = proof_of(pooled, X, MASK)
    assert proof.safe and "finite" not in {n.kind for n in proof.needs}  # tanh of a number is


def test_zero_times_what_may_be_infinite_is_refused() -> None:
    assert not proof_of(lambda x, mask: (x.reciprocal() * mask[..., None]).sum(1), X, MASK).safe


def test_a_product_of_unbounded_numbers_with_a_mask_needs_them_finite() -> None:
    proof = proof_of(lambda x, mask: ((x + 1).exp() * mask[..., None]).sum(1), X, MASK)
    assert proof.safe


def test_where_hides_even_nan() -> None:
    proof = proof_of(lambda x, m: torch.where(m[..., None], x.log(), 0.0).sum(1), X, HIDES)
    assert proof.safe and {n.kind for n in proof.needs} == {"fill", "size"}


def test_padding_with_nan_has_a_sign() -> None:
    assert not proof_of(lambda x: x.sign().sum(1), X, fills={0: math.nan}).safe
    assert not proof_of(lambda x: torch.copysign(x * 0, x).sum(1), X, fills={0: math.nan}).safe


def test_a_maximum_is_safe_where_padding_is_not_above_it() -> None:
    assert proof_of(lambda x: x.relu().amax(1), X).safe
    assert proof_of(lambda x, m: x.masked_fill(~m[..., None], -math.inf).amax(1), X, HIDES).safe
    assert not proof_of(lambda x: x.amax(1), X).safe


def test_any_and_all() -> None:
    assert proof_of(lambda m: m.any(1), HIDES).safe
    assert not proof_of(lambda m: m.all(1), HIDES).safe
    assert proof_of(lambda m: m.all(1), HIDES, fills={0: True}).safe


def test_an_argmax_over_padding_is_refused() -> None:
    assert "looks for the greatest" in reason_of(proof_of(lambda x: x.argmax(1), X))
    assert proof_of(lambda x: x.argmax(-1), X).safe


def test_a_softmax_over_the_sequence_is_refused() -> None:
    assert "_softmax" in reason_of(proof_of(lambda x: x.softmax(1), X))


def test_a_softmax_over_masked_scores_is_safe() -> None:
    def weights(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = x @ x.mT + torch.where(mask, 0.0, -math.inf)[:, None]
        return scores.softmax(-1) @ x

    proof = proof_of(weights, X, HIDES)
    assert proof.safe and {"finite", "unmasked"} <= {n.kind for n in proof.needs}


def test_a_softmax_over_scores_with_the_least_number_added_is_safe() -> None:
    def weights(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = x @ x.mT + (1 - mask[:, None]) * torch.finfo(torch.float32).min
        return scores.softmax(-1) @ x

    assert proof_of(weights, X, MASK).safe


def test_a_mask_that_hides_too_little_is_refused() -> None:
    assert not proof_of(lambda x, m: ((x @ x.mT) + (1 - m[:, None]) * -5.0).softmax(-1) @ x, X, MASK).safe


def test_causal_scores_are_safe() -> None:
    def causal(x: torch.Tensor) -> torch.Tensor:
        visible = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return (x @ x.mT).masked_fill(~visible, -math.inf).softmax(-1) @ x

    assert proof_of(causal, X).safe


def test_causal_attention_is_safe_and_attention_is_not() -> None:
    def attend(x: torch.Tensor, causal: bool) -> torch.Tensor:
        heads = x[:, None]
        return F.scaled_dot_product_attention(heads, heads, heads, is_causal=causal)

    assert proof_of(lambda x: attend(x, True), X).safe
    assert "there is no mask" in reason_of(proof_of(lambda x: attend(x, False), X))


def test_a_mask_of_lengths_is_safe_if_they_fit() -> None:
    def masked(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        visible = torch.arange(x.shape[1])[None] < lengths[:, None]
        return torch.where(visible[..., None], x + 1, 0.0).sum(1)

    proof = proof_of(masked, X, LENGTHS)
    assert proof.safe and "bounded" in {n.kind for n in proof.needs}


# --- positions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.flip(1),
        lambda x: x.roll(1, 1),
        lambda x: x[:, -1],
        lambda x: x[:, -2:],
        lambda x: torch.cat([x, x], 1),
        lambda x: x.sort(1)[0],
        lambda x: x.topk(2, 1)[0],
        lambda x: x.flip(1).cumsum(1),
        lambda x: x.var(1),
        lambda x: x * x.shape[1],
        lambda x: x * torch.rand_like(x),
    ],
    ids="flip roll last two_last cat sort topk flipped_cumsum var size random".split(),
)  # fmt: skip
def test_what_looks_at_the_end_of_a_dimension_is_refused(fn: object) -> None:
    assert not proof_of(fn, X).safe  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.cumsum(1),
        lambda x: x[:, 0],
        lambda x: x[:, 1:] - x[:, :-1],
        lambda x: torch.cat([x[:, :1] * 0, x], 1),
        lambda x: x + torch.arange(x.shape[1])[:, None],
        lambda x: x.repeat_interleave(2, 1),
        lambda x: F.pad(x, (0, 0, 2, 0)),
        lambda x: F.pad(x, (0, 0, 0, 2)),
        lambda x: x.cummax(1)[0],
        lambda x: x.tril(),
    ],
    ids="cumsum first difference cat arange repeat_interleave left_pad right_pad_of_zeros cummax tril".split(),
)  # fmt: skip
def test_what_looks_at_its_start_is_safe(fn: object) -> None:
    assert proof_of(fn, X).safe, proof_of(fn, X)  # type: ignore[arg-type]


def test_padding_of_another_number_is_refused_at_the_end() -> None:
    assert "beyond the end" in reason_of(proof_of(lambda x: F.pad(x, (0, 0, 0, 2), value=1.0), X))


def test_rows_joined_with_padding_between_are_not_returned() -> None:
    assert "between real elements" in reason_of(proof_of(lambda x: x.reshape(-1, 4), X))


# --- lookups ----------------------------------------------------------------------------------------------------


def test_an_embedding_looks_up_what_the_ids_are_padded_with() -> None:
    table = torch.ones(60, 4)
    assert proof_of(lambda ids: F.embedding(ids, table), IDS).safe
    assert not proof_of(lambda ids: F.embedding(ids, table), IDS, fills={0: -1}).safe


def test_a_division_by_the_padding_of_whole_numbers_is_refused() -> None:
    assert "eager raises at zero" in reason_of(proof_of(lambda ids: 100 // ids, IDS + 1))


# --- convolutions -----------------------------------------------------------------------------------------------


def test_a_first_convolution_reads_the_zeros_it_would_make_itself() -> None:
    kernel = torch.ones(3, 4, 3)
    assert proof_of(lambda x: F.conv1d(x.mT, kernel, padding=1), X).safe
    assert proof_of(lambda x: F.conv1d(x.mT + 1, kernel), X).safe  # without padding nothing is read beyond the end


def test_a_convolution_beside_what_may_be_infinite_is_refused() -> None:
    kernel = torch.ones(3, 4, 3)
    assert "infinities" in reason_of(proof_of(lambda x: F.conv1d(x.mT.log(), kernel), X))


def test_a_constant_is_none_beyond_its_end() -> None:
    assert not proof_of(lambda x: F.pad(x[:, :1].expand_as(x), (0, 0, 0, 2)), X).safe


def test_equal_queries_see_different_keys_under_causality() -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        heads = x[:, None]
        return F.scaled_dot_product_attention(heads[:, :, :1].expand_as(heads), heads, heads, is_causal=True)

    (cut,) = proof_of(attend, X).outputs
    assert [dim for dim, _ in cut.dims] == [2]


def test_a_later_convolution_is_refused() -> None:
    kernel = torch.ones(3, 4, 3)
    assert "convolves over the end" in reason_of(proof_of(lambda x: F.conv1d(x.mT + 1, kernel, padding=1), X))


# --- losses -----------------------------------------------------------------------------------------------------


def loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x.reshape(-1, 4), labels.reshape(-1))


def test_a_loss_that_ignores_padding_is_safe() -> None:
    assert proof_of(loss, X, IDS % 4, fills={1: -100}).safe


def test_a_loss_of_everything_is_refused() -> None:
    assert not proof_of(loss, X, IDS % 4).safe


# --- results ----------------------------------------------------------------------------------------------------


def test_the_proof_prints() -> None:
    assert str(proof_of(lambda x: x.relu(), X)).startswith("padding is safe\n  output 0 is cut to")
    assert "the dimension sequence is at least 2 long" in str(proof_of(lambda x: x.relu(), X))
    assert str(proof_of(lambda x: x.mean(1), X)).startswith("padding is refused\n  aten::mean.dim")


def test_sizes_that_grow() -> None:
    s = sym("s")
    names = frozenset({"s"})
    assert grows(2 * s + 1, names) and grows((s + 1) // 2, names) and grows(7, names)
    assert not grows(10 - s, names) and not grows(s % 4, names)
