"""`burnish generate MODEL`, and the bytes it counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers as hf

from burnish.generation.traffic import weight_bytes
from burnish.tools.cli import main
from tests.generation.tiny import family, sizes

FACTORY = """
from tests.generation.tiny import family, prompt

def build():
    return family("llama"), {"input_ids": prompt(2, 5)}

def nothing():
    import torch
    return torch.nn.Linear(2, 2), (torch.ones(1, 2),)
"""


@pytest.mark.slow
def test_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(FACTORY)
    assert main(["generate", f"{file}:build", "--new", "6", "--runs", "1", "--bits", "8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["batch"], told["prompt"], told["new"], told["compiles"]) == (2, 5, 6, 2)
    assert told["same_as_eager"] is True and told["fallbacks"] == [] and told["aten_calls"] == {}
    assert told["bits"] == 8 and 0 < told["logit_error"] < 0.1
    assert told["tokens_per_s"] > 0 and told["token_p50_ms"] <= told["token_p99_ms"]
    assert told["gigabytes_per_s"] == pytest.approx(told["gigabytes"] / told["token_p50_ms"] * 1e3)
    assert told["share_of_ceiling"] == pytest.approx(told["gigabytes_per_s"] / told["ceiling_gigabytes_per_s"])
    assert main(["generate", f"{file}:nothing"]) == 2
    assert "no Hugging Face causal language model" in capsys.readouterr().err
    assert main(["generate", f"{file}:build", "--new", "0"]) == 2


def test_bytes_of_a_step() -> None:
    every = sum(p.numel() for p in family("llama").parameters()) * 4
    assert weight_bytes(family("llama"), 1) == every - 61 * 32 * 4  # the table of words is read by its rows
    tied = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes(tie_word_embeddings=True)))
    assert weight_bytes(tied, 1) == sum(p.numel() for p in tied.parameters()) * 4
    routed = family("mixtral")
    expert = 3 * 32 * 48 * 4
    assert weight_bytes(routed, 1) == sum(p.numel() for p in routed.parameters()) * 4 - 61 * 32 * 4 - 2 * expert
