"""BERT-base: an encoder, matmuls with layer norm, GELU and softmax between them."""

from __future__ import annotations

import torch
from torch import nn

from burnish.tools.workloads.registry import Inputs, Workload, import_transformers

TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 500,
}


def build(size: str) -> tuple[nn.Module, Inputs]:
    transformers = import_transformers("bert-base")
    config = transformers.BertConfig(**(TINY if size == "tiny" else {}))
    length = {"full": 128, "tiny": 16}[size]
    ids = torch.randint(0, config.vocab_size, (1, length))
    model = transformers.BertModel(config).eval()
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


BERT_BASE = Workload("bert-base", "BERT-base encoder, batch 1, 128 tokens, fp32", build, extra="hf")
