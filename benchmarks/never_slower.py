"""`python -m benchmarks.never_slower`: small workloads after the gate, compiled against eager, in turns.

An MLP policy (host overhead is all there is), a NumPy-heavy pipeline with a small model in it, and a loop of
reinforcement learning (policy at batch 1, the environment's step in Python). The claim is a ratio of at most 1.03.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import burnish
from benchmarks.core import RESULTS, machine, machine_slug, provenance
from benchmarks.trust import gate_share
from burnish.measure import interleave
from burnish.workloads import WORKLOADS

LIMIT = 1.03
Work = Callable[[Callable[..., Any]], Callable[[], object]]  # of a model: one step of the workload


def mlp() -> tuple[nn.Module, Work]:
    model, (x,) = WORKLOADS["mlp"].build("full")
    return model, lambda net: lambda: net(x)


def pipeline() -> tuple[nn.Module, Work]:
    """Windows of a signal: filtered, transformed and normalised in NumPy, scored by a small model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(129, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    signal = np.random.default_rng(0).standard_normal(4096).astype(np.float32)

    def work(net: Callable[..., Any]) -> Callable[[], object]:
        def step() -> object:
            windows = np.lib.stride_tricks.sliding_window_view(signal, 256)[::64] * np.hanning(256)
            spectrum = np.log1p(np.abs(np.fft.rfft(windows, axis=-1)))
            spectrum = (spectrum - spectrum.mean(0)) / (spectrum.std(0) + 1e-6)
            scores = net(torch.from_numpy(spectrum.astype(np.float32)))
            return np.argsort(scores.numpy(), axis=-1)

        return step

    return model, work


def rl_loop() -> tuple[nn.Module, Work]:
    """Sixteen steps of a cart and its pole, the policy asked at each of them."""
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)).eval()

    def work(net: Callable[..., Any]) -> Callable[[], object]:
        def episode() -> object:
            x, v, angle, spin = 0.0, 0.0, 0.05, 0.0
            for _ in range(16):
                push = 10.0 if int(net(torch.tensor([[x, v, angle, spin]])).argmax()) else -10.0
                sine, cosine = math.sin(angle), math.cos(angle)
                force = (push + 0.05 * spin * spin * sine) / 1.1
                turn = (9.8 * sine - cosine * force) / (0.5 * (4 / 3 - 0.1 * cosine * cosine / 1.1))
                x, v = x + 0.02 * v, v + 0.02 * (force - 0.05 * turn * cosine / 1.1)
                angle, spin = angle + 0.02 * spin, spin + 0.02 * turn
            return angle

        return episode

    return policy, work


WORK: dict[str, Callable[[], tuple[nn.Module, Work]]] = {"mlp": mlp, "numpy-pipeline": pipeline, "rl-loop": rl_loop}


def measure(name: str, seconds: float) -> dict[str, Any]:
    """With an empty cache: what an earlier process has judged is not judged again."""
    model, work = WORK[name]()
    with tempfile.TemporaryDirectory() as cache, torch.no_grad():
        compiled = burnish.compile(model, gate=True, options={"cache_dir": cache})
        race = interleave({"eager": work(model), "burnish": work(compiled)}, seconds=seconds)
    ratio = race.ratio("burnish", "eager")
    stats = burnish.stats(compiled)
    return {
        **provenance("never_slower"),
        "ratio": {**dataclasses.asdict(ratio), "noisy": ratio.noisy},  # of times: below 1, burnish is faster
        "eager": dataclasses.asdict(race.timing("eager")),
        "burnish": dataclasses.asdict(race.timing("burnish")),
        "variants": [dataclasses.asdict(variant) for variant in stats.variants],
        "gate_share_of_compile": gate_share(stats),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.never_slower", description=__doc__)
    parser.add_argument("workloads", nargs="*", help=f"some of {', '.join(WORK)} (default: all)")
    parser.add_argument("--seconds", type=float, default=10.0, help="timing budget per workload")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default: results/never_slower-MACHINE.json)")
    arguments = parser.parse_args()
    rows = {}
    for name in arguments.workloads or WORK:
        row = rows[name] = measure(name, arguments.seconds)
        served = ", ".join(f"{v['signature']} by {v['engine']}" for v in row["variants"])
        print(
            f"{name:15} takes {row['ratio']['value']:.3f} times as long as eager "
            f"(rounds' middle half {row['ratio']['low']:.3f}-{row['ratio']['high']:.3f}); "
            f"the gate took {row['gate_share_of_compile']:.1%} of the compile; {served}",
            flush=True,
        )
    out = arguments.out or RESULTS / f"never_slower-{machine_slug()}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"machine": machine(), "limit": LIMIT, "rows": rows}, indent=1) + "\n")
    print(f"wrote {out}")
    return 1 if any(row["ratio"]["value"] > LIMIT for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
