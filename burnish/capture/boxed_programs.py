"""The calling conventions of programs: one list, which they may empty, or separate arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Program = Callable[[list[Any]], Sequence[Any]]  # boxed: takes its arguments in one list, which it may empty


def counting_versions(program: Program, written: tuple[int, ...]) -> Program:
    """A program writes to addresses, not tensors, so the tensors' version counters are advanced here for autograd."""
    if not written:
        return program
    increment = torch.autograd.graph.increment_version

    def run(args: list[Any]) -> Sequence[Any]:
        increment([args[i] for i in written])
        return program(args)

    return marked(run)


def unboxed(program: Program) -> Callable[..., Sequence[Any]]:
    def run(*args: Any) -> Sequence[Any]:
        return program(list(args))

    return run


def boxed(function: Callable[..., Any]) -> Program:
    def run(args: list[Any]) -> Sequence[Any]:
        inputs = tuple(args)
        args.clear()
        result: Sequence[Any] = function(*inputs)
        return result

    return marked(run)


def marked(program: Program) -> Program:
    """AOTAutograd calls functions with this mark with one list, and others with separate arguments."""
    try:
        program._boxed_call = True  # type: ignore[attr-defined]
        return program
    except AttributeError:  # an object without room for it

        def run(args: list[Any]) -> Sequence[Any]:
            return program(args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run
