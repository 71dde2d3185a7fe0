"""The built-in workloads: the models the benchmarks, the demo and the tests share."""

from __future__ import annotations

from burnish.tools.workloads import bert, gpt2, llama, mlp, resnet
from burnish.tools.workloads.registry import SIZES, Inputs, Kind, Workload

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (mlp.MLP, bert.BERT_BASE, llama.PREFILL, llama.DECODE, resnet.RESNET50, gpt2.TRAIN)
}

__all__ = ["SIZES", "WORKLOADS", "Inputs", "Kind", "Workload"]
