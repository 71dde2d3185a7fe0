"""The pure parts of `generation`: chunks of prompts, draws, ends, pace."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.generation.buckets import CHUNKS, chunks, grown, rows, slack
from burnish.generation.ends import Ends
from burnish.generation.pace import Pace
from burnish.generation.selection import Choice, Knobs, choose, noise


@given(
    st.integers(1, 3000), st.integers(0, 500), st.sampled_from([CHUNKS, (16,), (1, 8), (7, 100)]), st.integers(0, 90)
)
def test_chunks_cover_a_prompt_and_stay_inside(tokens: int, start: int, sizes: tuple[int, ...], more: int) -> None:
    capacity = start + tokens + more + slack(sizes)
    plan = chunks(tokens, start, capacity, sizes)
    assert plan[0].start == start and sum(chunk.used for chunk in plan) == tokens
    for chunk, following in itertools.pairwise(plan):
        assert chunk.start + chunk.used == following.start
    assert all(c.size in sizes and 0 < c.used <= c.size and c.start + c.size <= capacity for c in plan)


@given(st.integers(1, 100_000), st.integers(1, 4096) | st.none())
def test_caches_grow_by_doubling(needed: int, limit: int | None) -> None:
    length = grown(needed, limit)
    assert length >= needed and (length < 2 * needed or length in (64, limit))


def test_rows() -> None:
    assert [rows(n) for n in (1, 2, 3, 4, 5, 32)] == [1, 2, 4, 4, 8, 32]


def draws(choice: Choice, logits: torch.Tensor, count: int) -> torch.Tensor:
    """`count` independent draws, as shares of each token."""
    knobs = Knobs(logits.device)
    knobs.set(choice)
    how = choice.selection(True, logits.shape[-1])
    ends = torch.zeros(logits.shape[-1], dtype=torch.bool)
    many = logits.expand(256, -1)
    found = [choose(many, how, knobs, torch.tensor(slot), ends, None) for slot in range(count // 256)]
    return torch.bincount(torch.cat(found), minlength=logits.shape[-1]) / count


def test_draws_have_the_distribution_that_is_asked_for() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5, -torch.inf])
    count = 256 * 64
    p = torch.softmax(logits, -1)
    tolerance = 4 * float((p * (1 - p) / count).sqrt().max())
    assert (draws(Choice(seed=1), logits, count) - p).abs().max() < tolerance
    warm = torch.softmax(logits / 2, -1)
    assert (draws(Choice(temperature=2.0, seed=2), logits, count) - warm).abs().max() < tolerance
    best = torch.where(torch.tensor([1, 1, 0, 0, 1, 0]).bool(), p, 0)
    best = best / best.sum()
    assert (draws(Choice(top_k=3, seed=3), logits, count) - best).abs().max() < tolerance
    two = torch.where(torch.tensor([1, 0, 0, 0, 1, 0]).bool(), p, 0)
    two = two / two.sum()
    assert (draws(Choice(top_p=0.7, seed=4), logits, count) - two).abs().max() < tolerance
    assert (draws(Choice(top_k=5, top_p=0.7, seed=5), logits, count) - two).abs().max() < tolerance
    assert (draws(Choice(min_p=0.5, seed=6), logits, count) - two).abs().max() < tolerance


def test_noise_of_rows_slots_and_seeds_is_apart() -> None:
    tokens = torch.arange(4096).expand(3, -1)
    a = noise(torch.tensor(1), torch.tensor(5), tokens)
    others = [
        a[1],
        noise(torch.tensor(2), torch.tensor(5), tokens)[0],
        noise(torch.tensor(1), torch.tensor(6), tokens)[0],
    ]
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([a[0], other]))[0, 1])) < 0.08
    assert abs(float(a.mean()) - 0.5772) < 0.04 and bool(a.isfinite().all())


def test_ends() -> None:
    ends = Ends(2, [9], pad=0)
    tokens, told = ends.add(torch.tensor([[1, 9, 5], [2, 3, 4]]))
    assert tokens.tolist() == [[1, 9, 0], [2, 3, 4]] and told == [] and not ends.is_over
    tokens, _ = ends.add(torch.tensor([[5, 5, 5], [9, 7, 7]]))
    assert tokens.tolist() == [[0], [9]] and ends.is_over
    assert ends.mask().tolist() == [[True, True, False, False], [True] * 4]
    assert Ends(2, [], 0).stop([True, False]) == [0]


def test_the_host_looks_seldom_but_not_late() -> None:
    pace = Pace(ahead=True)
    asked = []
    for _ in range(8):
        asked.append(pace.steps(1000))
        pace.took(0.001 * asked[-1], asked[-1])
    assert asked[0] == 1 and asked[-1] == 10 and asked == sorted(asked)
    assert pace.steps(3) == 3
    pace.took(1.0, 10)
    assert pace.steps(1000) == 1  # steps have become slow
    on_host = Pace(ahead=False)
    on_host.took(1e-6, 1)
    assert on_host.steps(1000) == 1
