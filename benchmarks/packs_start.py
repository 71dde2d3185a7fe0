"""One start in a process of its own, for `benchmarks.packs`: `python -m benchmarks.packs_start JOB`."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch


def main(text: str) -> None:
    job = json.loads(text)
    torch.manual_seed(0)
    model, inputs = built(job["row"], job["size"])
    begin, spent = time.perf_counter(), time.process_time()
    with torch.no_grad():
        call(started(job, model), inputs)
        found = {"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - spent}
    print(json.dumps(found))


def built(row: str, size: str) -> tuple[Any, Any]:
    """The registry of workloads imports nothing of the compiler."""
    from burnish.tools.workloads import WORKLOADS

    return WORKLOADS[row].build(size)


def started(job: dict[str, Any], model: Any) -> Any:
    if job["start"] == "eager":
        return model
    if job["start"] == "inductor":
        return torch.compile(model)
    import burnish

    if job["start"] == "pack":
        return burnish.load(job["pack"], model, missing="error")
    compiled = burnish.compile(model)
    if job["start"] == "write":
        _, inputs = built(job["row"], job["size"])
        for _ in range(3):
            call(compiled, inputs)
        burnish.pack(compiled, job["pack"])
    return compiled


def call(model: Any, inputs: Any) -> None:
    model(**inputs) if isinstance(inputs, dict) else model(*inputs)


if __name__ == "__main__":
    main(sys.argv[1])
