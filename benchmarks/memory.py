"""How much memory one call takes: `python -m benchmarks.memory TARGET ENGINE`, in a process of its own.

`call` is the rise of the resident set above what was resident before the call, at its highest; `held` is what the
engine keeps between calls in tensors that are not the model's or the caller's (arenas, packed weights).
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from burnish.tools.bench.candidates import Candidate
from burnish.tools.bench.memory import call_rise
from burnish.tools.measure import quantile
from burnish.tools.parity import tensors_in
from burnish.tools.targets import Target, load_target

REPEATS = 7


def measured_in_child(target: str, engine: str, environment: dict[str, str]) -> dict[str, int] | None:
    """None where this machine cannot tell, or the engine fails."""
    command = [sys.executable, "-m", "benchmarks.memory", target, engine]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        return None
    found: dict[str, int] | None = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(target: Target, engine: str) -> dict[str, int] | None:
    compiled = Candidate(engine).apply(target.model)
    with target.grad_mode():
        step = target.step(compiled)
        for _ in range(3):
            step()
        _drop_gradients(target)
        rises = [_rise_during(target, step) for _ in range(REPEATS)]
    if any(rise is None for rise in rises):
        return None
    call = quantile([rise for rise in rises if rise is not None], 0.5)
    return {"call": int(call), "held": _held_bytes(target)}


def _rise_during(target: Target, step: Callable[[], Any]) -> int | None:
    rise = call_rise(step)
    _drop_gradients(target)
    return rise


def _drop_gradients(target: Target) -> None:
    if isinstance(target.model, torch.nn.Module):
        target.model.zero_grad(set_to_none=True)


def _held_bytes(target: Target) -> int:
    gc.collect()
    owned: set[int] = set(_storages(tensors_in(target.inputs)))
    if isinstance(target.model, torch.nn.Module):
        owned |= set(_storages([*target.model.parameters(), *target.model.buffers()]))
    # issubclass: isinstance asks every object alive for its __class__, and some answer with a warning.
    alive = _storages(thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor))
    return sum(size for pointer, size in alive.items() if pointer not in owned)


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    found: dict[int, int] = {}
    for tensor in tensors:
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu":
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return found


if __name__ == "__main__":
    print(json.dumps(measure(load_target(sys.argv[1]), sys.argv[2])))
