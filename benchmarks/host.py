"""Host time of a call: open and sealed, beside what launching its CUDA graph (or, on a CPU, its program) costs alone.

    PYTHONPATH=. python3 -m benchmarks.host [OUT.json]

Rounds are interleaved and the median of each is taken; `host` is the time until the call returns, without waiting for
the device, `wall` with waiting. `beyond` is host time beyond replaying the graph.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import burnish

ROUNDS = 15
CALLS = 100 if torch.cuda.is_available() else 10


def _models(device: str) -> dict[str, tuple[torch.nn.Module, dict[str, torch.Tensor], torch.dtype]]:
    mlp = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh())
    found: dict[str, tuple[torch.nn.Module, dict[str, torch.Tensor], torch.dtype]] = {
        "MLP 64-64 b1": (mlp, {"input": torch.randn(1, 64)}, torch.float32)
    }
    try:
        from transformers import BertConfig, BertModel
    except ImportError:
        return found
    small = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 500}
    ids = torch.randint(0, 500, (1, 128 if device == "cuda" else 8))
    config = BertConfig(**({} if device == "cuda" else small))
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    found["BERT-base b1"] = (BertModel(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, dtype)
    return found


def _replay(compiled: Any) -> Callable[[], Any] | None:
    """What replays the object's captured graph, and nothing else."""
    for program in list(compiled.burnish.log._programs):
        for case in getattr(program, "_cases", {}).values():
            if case.captured is not None:
                return case.captured.graph.replay
    return None


def _microseconds(call: Callable[[], Any], wait: Callable[[], None], waiting: bool) -> float:
    wait()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
        if waiting:
            wait()
    spent = time.perf_counter() - start
    wait()
    return spent / CALLS * 1e6


def measure(name: str, model: torch.nn.Module, inputs: dict[str, torch.Tensor], device: str) -> dict[str, Any]:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    settings: dict[str, Any] = {"mode": "reduce-overhead", "gate": False, "verify": "off"}
    opened, sealed = (burnish.compile(model, name=f"{name} {k}", **settings) for k in ("open", "sealed"))
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: model(**inputs)}
    with torch.no_grad():
        for compiled in (opened, sealed):
            for _ in range(4):
                compiled(**inputs)
        burnish.seal(sealed)
        sealed(**inputs), sealed(**inputs)
        calls |= {"open": lambda: opened(**inputs), "sealed": lambda: sealed(**inputs)}
        replay = _replay(sealed)
        if replay is not None:
            calls["replay"] = replay
        taken: dict[str, dict[str, list[float]]] = {k: {"host": [], "wall": []} for k in calls}
        for _ in range(ROUNDS):
            for k, call in calls.items():
                taken[k]["host"].append(_microseconds(call, wait, waiting=False))
                taken[k]["wall"].append(_microseconds(call, wait, waiting=True))
    row = {k: {w: round(statistics.median(v), 2) for w, v in each.items()} for k, each in taken.items()}
    alone = row.get("replay", {"host": 0.0})["host"]
    beyond = {k: round(row[k]["host"] - alone, 2) for k in ("open", "sealed")} if replay is not None else {}
    return {"model": name, **row, "beyond": beyond, "notices": dict(burnish.stats(sealed).notices)}


def main(arguments: list[str]) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for name, (model, inputs, dtype) in _models(device).items():
        model = model.eval().to(device, dtype=dtype)
        placed = {k: x.to(device, dtype=dtype if x.is_floating_point() else None) for k, x in inputs.items()}
        rows.append(measure(name, model, placed, device))
        print(json.dumps(rows[-1], indent=1))
    if arguments:
        with open(arguments[0], "w") as file:
            json.dump({"device": device, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
