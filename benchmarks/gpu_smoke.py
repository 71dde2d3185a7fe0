"""First look at the CUDA path on a GPU: parity of small functions, then BERT-base, eager beside burnish.

PYTHONPATH=. python3 -m benchmarks.gpu_smoke [OUT.json]
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

F = torch.nn.functional


def _cases() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    x, w = torch.randn(128, 768, device="cuda"), torch.randn(768, device="cuda")
    ids = torch.randint(0, 128, (4, 7), device="cuda")
    return {
        "add": (lambda a: a + 1, (x,)),
        "gelu": (F.gelu, (x,)),
        "tanh gelu": (lambda a: F.gelu(a, approximate="tanh"), (x,)),
        "broadcast": (lambda a, b: (a * b + 2).relu(), (x, w)),
        "softmax": (lambda a: a.softmax(-1), (x,)),
        "softmax over rows": (lambda a: a.softmax(0), (x,)),
        "layer norm": (lambda a, b: F.layer_norm(a, (768,), b, b), (x, w)),
        "sum of columns": (lambda a: a.sum(0), (x,)),
        "mean, amax, argmax": (lambda a: (a.mean(), a.amax(1), a.argmax(1)), (x,)),
        "matmul": (lambda a: (a @ a.t()).relu() + 1, (x,)),
        "transpose": (lambda a: a.t().contiguous() + 1, (x,)),
        "cat": (lambda a: torch.cat([a, a * 2, a.flip(0)], 1), (x,)),
        "embedding": (lambda i, a: F.embedding(i, a) * 2, (ids, x)),
        "pad": (lambda a: F.pad(a, (1, 2, 3, 4), value=1.5), (x,)),
        "cumsum": (lambda a: a.cumsum(1), (x,)),
        "bfloat16": (lambda a: F.silu(a.bfloat16()) * a.bfloat16(), (x,)),
        "index_put": (lambda a: a.index_put((ids[0],), torch.ones(7, 768, device="cuda")), (x,)),
        "attention": (
            lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
            (torch.randn(2, 4, 64, 32, device="cuda"),),
        ),
    }


def check() -> list[dict[str, Any]]:
    rows = []
    for name, (fn, args) in _cases().items():
        torch.compiler.reset()
        compiled = burnish.compile(fn)
        with torch.no_grad():
            want, got = fn(*args), compiled(*args)
        wants, gots = (list(r) if isinstance(r, tuple) else [r] for r in (want, got))
        error = max(float((a.double() - b.double()).abs().max()) for a, b in zip(wants, gots, strict=True))
        strides = all(a.stride() == b.stride() for a, b in zip(wants, gots, strict=True))
        stats = burnish.stats(compiled)
        rows.append(
            {
                "case": name,
                "error": error,
                "strides": strides,
                "kernels": stats.kernels,
                "aten": dict(stats.aten_calls),
                "fallbacks": [str(f) for f in stats.fallbacks],
            }
        )
    return rows


def p50(fn: Callable[[], Any], seconds: float = 1.0) -> float:
    for _ in range(5):
        fn()
    torch.cuda.synchronize()
    samples = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        fn()
        torch.cuda.synchronize()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples) * 1e3


def bert(batch: int) -> list[dict[str, Any]]:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig()).eval().cuda().bfloat16()
    ids, mask = (
        torch.randint(0, 30000, (batch, 128), device="cuda"),
        torch.ones(batch, 128, dtype=torch.long, device="cuda"),
    )
    rows = []
    with torch.no_grad():
        want = model(ids, attention_mask=mask)[0]
        rows.append({"engine": "eager", "p50": p50(lambda: model(ids, attention_mask=mask))})
        for mode in (None, "reduce-overhead"):
            torch.compiler.reset()
            compiled = burnish.compile(model, mode=mode)
            start = time.perf_counter()
            got = compiled(ids, attention_mask=mask)[0]
            torch.cuda.synchronize()
            cold = time.perf_counter() - start
            stats = burnish.stats(compiled)
            rows.append(
                {
                    "engine": f"burnish {mode}",
                    "p50": p50(lambda c=compiled: c(ids, attention_mask=mask)),
                    "cold": cold,
                    "error": float((want.double() - got.double()).abs().max()),
                    "kernels": stats.kernels,
                    "seconds": dict(stats.seconds),
                    "aten": dict(stats.aten_calls),
                    "fallbacks": [str(f) for f in stats.fallbacks],
                }
            )
        torch.compiler.reset()
        peer = torch.compile(model, mode="reduce-overhead")
        start = time.perf_counter()
        peer(ids, attention_mask=mask)
        torch.cuda.synchronize()
        rows.append(
            {
                "engine": "inductor reduce-overhead",
                "cold": time.perf_counter() - start,
                "p50": p50(lambda: peer(ids, attention_mask=mask)),
            }
        )
    return rows


if __name__ == "__main__":
    found = {"torch": str(torch.__version__), "checks": check(), "bert b1": bert(1), "bert b32": bert(32)}
    for part in found.values():
        for row in part if isinstance(part, list) else []:
            print({k: (round(v, 5) if isinstance(v, float) else v) for k, v in row.items()})
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            json.dump(found, file, indent=1)
