"""Prefetch: starts work while Dynamo traces that any graph of the model will need."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import torch
from torch.nn.parameter import is_lazy

from burnish.capture.entry.library_preload import Kind
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.build.shared_library import prepare_native
from burnish.runtime.host.extension import prepare_host
from burnish.torch_private.guards import guards_are_whole

_LARGE = 1 << 16  # elements of a weight whose products the native library will compute


class Ahead(NamedTuple):
    native: bool = False  # the C runtime is compiled
    workers: bool = False  # Triton's worker processes import Triton, and the launcher is compiled
    products: tuple[Kind, ...] = ()  # products with GPU matrices, which eager will compute


def wanted_by(target: object) -> Ahead:
    native = workers = False
    products: dict[Kind, None] = {}
    for model in _models_of(target):
        for weight in model.parameters():
            if is_lazy(weight):  # a lazy module's, before its first call
                continue
            native = native or (weight.device.type == "cpu" and weight.numel() >= _LARGE)
            if weight.device.type == "cuda":
                workers = True
                if weight.dim() > 1 and weight.is_floating_point() and weight.numel() >= _LARGE:
                    products[weight.dtype, weight.device] = None
    return Ahead(native, workers, tuple(products))


def _models_of(target: object) -> list[torch.nn.Module]:
    """The target, or what it is a method of or has in its closure."""
    cells = getattr(target, "__closure__", None) or ()
    held: list[object] = [target, getattr(target, "__self__", None)]
    for cell in cells:
        with contextlib.suppress(ValueError):  # one that is not filled yet
            held.append(cell.cell_contents)
    return [each for each in held if isinstance(each, torch.nn.Module)]


def begin(ahead: Ahead, options: Options, log: CompileLog) -> Ahead:
    """Start the prefetch, and return a function that starts the rest once it is known that there will be a trial."""
    if ahead.native:
        prepare_native(options, log)
        if not guards_are_whole():  # each call's tensors are checked
            prepare_host(options)
    if ahead.workers:
        from burnish.runtime.cuda.launch import prepare_launcher
        from burnish.runtime.triton.workers import prepare_workers

        prepare_workers()
        prepare_launcher(options)
        if options.captures_graphs:
            prepare_host(options)
    return Ahead(products=ahead.products)
