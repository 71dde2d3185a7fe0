"""Attention of few queries over a cache, of any size, under the interpreter: a call of torch's, or written out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from burnish.schedule.evaluate import evaluate_schedule
from burnish.schedule.kernels import AttendSplits
from tests.codegen.triton.interpreter import Interpreter
from tests.codegen.triton.test_decode import captured, for_gpu, same_as_unfused, same_under
from tests.programs import copies


@dataclass(frozen=True)
class Sizes:
    batch: int
    groups: int
    queries_per_group: int
    queries: int
    width: int
    keys: int
    held: int  # keys that there are
    window: int | None
    cap: float | None = None

    @property
    def heads(self) -> int:
        return self.groups * self.queries_per_group

    def mask(self) -> torch.Tensor:
        """Of which keys each query sees: those up to its own, and of these the last few."""
        own = torch.arange(self.held - self.queries, self.held).clamp(min=0)[:, None]
        key = torch.arange(self.keys)
        return (key <= own) & (key > own - (self.window or self.keys))

    def tensors(self) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        q = torch.randn(self.batch, self.heads, self.queries, self.width)
        k, v = (torch.randn(self.batch, self.groups, self.keys, self.width) for _ in range(2))
        return q.bfloat16(), k.bfloat16(), v.bfloat16(), self.mask()

    def repeated(self, x: torch.Tensor) -> torch.Tensor:
        shape = (self.batch, self.groups, self.queries_per_group, self.keys, self.width)
        return x[:, :, None].expand(shape).reshape(self.batch, self.heads, self.keys, self.width)


@st.composite
def sizes(draw: st.DrawFn) -> Sizes:
    keys = draw(st.integers(2, 200))
    queries = draw(st.integers(1, 3))
    return Sizes(
        batch=draw(st.integers(1, 2)),
        groups=draw(st.integers(1, 3)),
        queries_per_group=draw(st.sampled_from([1, 2, 3, 8])),
        queries=queries,
        width=draw(st.sampled_from([8, 24, 64, 80, 128])),
        keys=keys,
        held=draw(st.integers(min(queries, keys), keys)),
        window=draw(st.none() | st.integers(1, 70)),
        cap=draw(st.none() | st.sampled_from([5.0, 50.0])),
    )


def written_out(s: Sizes, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """As models write it that want more than torch's call has."""
    k, v = s.repeated(k), s.repeated(v)
    scores = torch.matmul(q, k.transpose(2, 3)) * s.width**-0.5
    if s.cap is not None:
        scores = torch.tanh(scores / s.cap) * s.cap
    scores = scores + torch.where(seen, 0.0, torch.finfo(torch.bfloat16).min).to(q.dtype)
    weights = torch.softmax(scores, -1, dtype=torch.promote_types(q.dtype, torch.float32))
    return torch.matmul(weights.to(q.dtype), v).transpose(1, 2).contiguous()


def called(s: Sizes, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, s.repeated(k), s.repeated(v), attn_mask=seen[None, None])


def one_key_head(s: Sizes, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Torch writes its call out by itself, in full precision and with zeros for who sees nothing."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen[None, None])


@pytest.mark.slow
@settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(s=sizes())
def test_of_any_size(s: Sizes, interpreter: Interpreter) -> None:
    q, k, v, seen = s.tensors()
    attention = called if s.cap is None else written_out
    found = captured(lambda *t: attention(s, *t), q, k, v, seen)
    schedule = for_gpu(found)
    (splits,) = [kernel for kernel in schedule.kernels if isinstance(kernel, AttendSplits)]
    assert splits.op.cap == (s.cap or 0.0) and splits.inputs[1].shape[1] == s.groups, "keys are not repeated"
    same_under(interpreter, found, schedule)
    want = written_out(s, q.double(), k.double(), v.double(), seen)
    (ours,), eager = evaluate_schedule(schedule, copies(found.inputs)), attention(s, q, k, v, seen)
    results = [t if attention is written_out else t.transpose(1, 2) for t in (ours, eager)]
    error, allowed = (float((t.double() - want).abs().max()) for t in results)
    assert error <= 1.5 * allowed + 1e-3


@pytest.mark.parametrize("attention", [written_out, one_key_head])
def test_written_out_is_one_operation(attention, interpreter: Interpreter) -> None:  # type: ignore[no-untyped-def]
    s = Sizes(2, 1, 4, 1, 16, 70, 40, window=None, cap=30.0 if attention is written_out else None)
    found = captured(lambda *t: attention(s, *t), *s.tensors())
    schedule = for_gpu(found)
    (splits,) = [kernel for kernel in schedule.kernels if isinstance(kernel, AttendSplits)]
    assert splits.op.cap == (s.cap or 0.0) and abs(splits.op.scale - s.width**-0.5) < 1e-6
    assert len(schedule.kernels) == 3, "the mask, the splits, and all together"
    same_as_unfused(found, schedule)
    same_under(interpreter, found, schedule)
