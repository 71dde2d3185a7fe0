"""What a workload is: a named, seeded, random-weight model with example inputs, at full size and at a tiny one."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

import torch

from burnish.errors import MissingExtra

Inputs = tuple[object, ...] | dict[str, object]
Kind = Literal["inference", "train"]
SIZES: tuple[str, ...] = ("full", "tiny")


@dataclass(frozen=True)
class Workload:
    """`build("full")` is what the benchmarks measure; `build("tiny")` has the same structure and compiles in seconds.

    A `train` workload's forward returns the loss; its step is forward and backward.
    """

    name: str
    description: str
    builder: Callable[[str], tuple[torch.nn.Module, Inputs]]
    kind: Kind = "inference"
    extra: str | None = None  # the optional dependency it needs, as in pip install 'burnish[hf]'

    def build(self, size: str = "full", seed: int = 0) -> tuple[torch.nn.Module, Inputs]:
        """Model and inputs, the same ones every time; the caller's random state is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.builder(size)


def import_transformers(workload: str) -> ModuleType:
    """transformers takes seconds to import and is optional, so only the workloads that need it pay, when built."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise MissingExtra(f"the workload {workload!r}", "transformers", "hf") from error
