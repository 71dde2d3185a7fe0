"""Greedy decoding of every family: the tokens of the model's own `generate`, from two compiled programs."""

from __future__ import annotations

import pytest

from burnish import generation
from tests.generation.tiny import CHUNKS, FAMILIES, family, left_padded, prompt, same_tokens

NEW = 16
# What is known to be left to ATen in the decode step: routing, and the experts' products.
ROUTED = {
    "aten::topk.default",
    "aten::sort.default",
    "aten::histc.default",
    "aten::empty_permuted.default",
    "transformers::grouped_mm_fallback.default",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_greedy(name: str) -> None:
    """Rows of unequal lengths, longer than a sliding window, and into a second turn of it."""
    model = family(name)
    llm = generation.compile(model, max_length=48, max_batch=2, chunk_sizes=CHUNKS)
    inputs = left_padded(prompt(2, 9), [9, 5])
    settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    theirs = model.generate(**inputs, **settings)
    for compiles in (1, 2):  # the first prompt runs in eager
        same_tokens(model, llm.generate(**inputs, **settings), theirs, inputs["attention_mask"])
        stats = llm.stats()
        assert stats.fallbacks == () and (stats.compiles, stats.eager_chunks) == (compiles, 1), stats
    assert stats.steps == 2 * (NEW - 1) and stats.wasted_steps == 0
    for program in stats.programs:
        assert program.fallbacks == () and program.graph_breaks == (), program
        assert [v.engine for v in program.variants] == ["burnish"], program
    left = set(stats.aten_calls)
    assert left <= (ROUTED if name in ("mixtral", "qwen3_moe") else set()), left
