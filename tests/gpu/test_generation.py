"""`burnish.generation` on a GPU: eager's tokens, one captured graph a step, the host ahead of the device."""

from __future__ import annotations

import pytest
import torch

from burnish import generation
from tests.generation.tiny import CHUNKS, FAMILIES, family, left_padded, prompt

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
NEW = 24


def on_device(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cuda() for name, tensor in inputs.items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy(name: str) -> None:
    model = family(name).cuda()
    llm = generation.compile(model, max_length=48, max_batch=2, chunk_sizes=CHUNKS)
    inputs = on_device(left_padded(prompt(2, 9), [9, 5]))
    settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    theirs = model.generate(**inputs, **settings)
    for _ in range(3):  # the first prompt runs in eager; the third one replays what the second captured
        ours = llm.generate(**inputs, **settings)
        assert torch.equal(ours, theirs)
    stats = llm.stats()
    assert stats.fallbacks == () and stats.compiles == 2, stats
    assert stats.looks < 2 * NEW, stats  # several tokens a round trip


@pytest.mark.parametrize(
    ("name", "rows"),
    [*((name, 1) for name in FAMILIES), *((name, 2) for name in ("llama", "gemma2", "gpt2", "mixtral"))],
)
def test_half_precision(name: str, rows: int) -> None:
    """In the type that split attention, strips and experts have kernels for: every token is one that the model in
    full precision, shown the same tokens before it, finds as good as its best."""
    chosen_well(name, "cuda", rows)


def chosen_well(name: str, device: str, rows: int) -> None:
    wide = family(name).to(device)
    model = family(name).bfloat16().to(device)
    llm = generation.compile(model, max_length=48, chunk_sizes=CHUNKS, gate=False)
    ids = prompt(rows, 9).to(device)
    for _ in range(2):  # with the first prompt in eager, and compiled
        out = llm.generate(ids, max_new_tokens=NEW, do_sample=False, pad_token_id=0)
        with torch.no_grad():
            logits = wide(out[:, :-1]).logits[:, 8:].double()
        gaps = logits.amax(-1) - logits.gather(-1, out[:, 9:, None]).squeeze(-1)
        assert float(gaps.max()) <= 0.05 * float(logits.abs().max()), (name, gaps)
    stats = llm.stats()
    assert stats.fallbacks == () and all(program.fallbacks == () for program in stats.programs), stats
    assert {v.engine for program in stats.programs for v in program.variants} == {"burnish"}, stats
    llm.close()


def test_an_end_that_the_host_sees_late() -> None:
    """Steps run ahead of it; what they wrote is neither returned nor seen by the next turn."""
    model = family("llama").cuda()
    llm = generation.compile(model, max_length=96, chunk_sizes=CHUNKS)
    ids = prompt(1, 6).cuda()
    free = llm.generate(ids, max_new_tokens=60, do_sample=False)
    end = int(free[0, 30])
    settings = {"do_sample": False, "eos_token_id": end, "pad_token_id": 0}
    ours = llm.generate(ids, max_new_tokens=60, **settings)
    assert torch.equal(ours, model.generate(ids, max_new_tokens=60, **settings))
    turn = prompt(1, 3, seed=5).cuda()
    whole = llm.generate(turn, resume=True, max_new_tokens=10, do_sample=False)
    theirs = model.generate(torch.cat([ours, turn], 1), max_new_tokens=10, do_sample=False)
    assert torch.equal(whole, theirs)


def test_the_same_draws_as_on_a_cpu() -> None:
    settings = {"max_new_tokens": 20, "do_sample": True, "top_k": 5, "seed": 3}
    on_cpu, on_gpu = (
        generation.compile(family("llama").to(device), max_length=48, chunk_sizes=CHUNKS).generate(
            prompt(1, 6).to(device), **settings
        )
        for device in ("cpu", "cuda")
    )
    assert torch.equal(on_cpu, on_gpu.cpu())
