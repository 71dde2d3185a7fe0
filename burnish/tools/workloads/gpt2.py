"""GPT-2 small, one training step: forward, loss, backward."""

from __future__ import annotations

import torch
from torch import nn

from burnish.tools.workloads.registry import Inputs, Workload, import_transformers

# No dropout: its random draws depend on the dtype, and the float64 referee must draw the same ones.
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
TINY = {
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 500,
    "n_positions": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


class NextTokenLoss(nn.Module):
    """The mean cross-entropy of predicting each token from those before it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        logits = self.model(input_ids=input_ids, use_cache=False).logits
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())


def build(size: str) -> tuple[nn.Module, Inputs]:
    transformers = import_transformers("gpt2-train")
    config = transformers.GPT2Config(**NO_DROPOUT, **(TINY if size == "tiny" else {}))
    length = {"full": 64, "tiny": 16}[size]
    model = NextTokenLoss(transformers.GPT2LMHeadModel(config)).train()
    return model, (torch.randint(0, config.vocab_size, (2, length)),)


TRAIN = Workload("gpt2-train", "GPT-2 small training step, batch 2 × 64 tokens, fp32", build, kind="train", extra="hf")
