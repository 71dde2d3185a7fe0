"""TARGET on the command line: a built-in workload, or a factory in the user's own file or package.

    bert-base              a built-in workload (`burnish workloads` lists them); bert-base@tiny is its small variant
    model.py:build         the function `build` in the file model.py
    package.module:build   the same, by import path

A factory takes no arguments and returns (model, example_inputs); the inputs are a tuple or a dict of keyword arguments.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from burnish.errors import BadTarget, TargetFailed, UnknownTarget
from burnish.options import nearest
from burnish.workloads import SIZES, WORKLOADS, Inputs, Kind


@dataclass(frozen=True)
class Target:
    """A model with the inputs to call it on."""

    name: str
    model: Callable[..., Any]
    inputs: Inputs
    kind: Kind = "inference"

    def grad_mode(self) -> AbstractContextManager[object]:
        """What every call of the target, eager or compiled, runs under."""
        return torch.no_grad() if self.kind == "inference" else torch.enable_grad()

    def step(self, model: Callable[..., Any] | None = None) -> Callable[[], Any]:
        """One call of `model` (the target's own, or a compiled version of it) on the inputs: what is timed and
        compared. Call it inside `grad_mode()`. A training step ends with the backward pass."""
        model = self.model if model is None else model
        args, kwargs = split_inputs(self.inputs)
        # A partial adds nothing measurable to a call of some 10 µs; a closure with its own context manager would.
        call = functools.partial(model, *args, **kwargs)
        return call if self.kind == "inference" else functools.partial(_train_step, model, call)


def _train_step(model: Callable[..., Any], call: Callable[[], Any]) -> Any:
    if isinstance(model, torch.nn.Module):
        model.zero_grad(set_to_none=True)
    loss = call()
    loss.backward()
    return loss


def split_inputs(inputs: Inputs) -> tuple[tuple[object, ...], dict[str, object]]:
    return ((), inputs) if isinstance(inputs, dict) else (inputs, {})


def load_target(text: str) -> Target:
    """Parse TARGET and build it; every way this can fail has an error that says what to write instead."""
    if ":" in text:
        place, _, function = text.rpartition(":")
        return _from_factory(text, place, function)
    name, at, size = text.partition("@")
    if name not in WORKLOADS:
        if text.endswith(".py"):
            raise BadTarget(text, f"it names a file but no factory in it. Write {text}:FUNCTION")
        raise UnknownTarget(text, nearest(name, WORKLOADS), tuple(WORKLOADS))
    if at and size not in SIZES:
        raise BadTarget(text, f"there is no size {size!r}. Sizes: {', '.join(SIZES)}")
    workload = WORKLOADS[name]
    model, inputs = workload.build(size or "full")
    return Target(text, model, inputs, workload.kind)


def _from_factory(text: str, place: str, function: str) -> Target:
    module = _load_file(text, Path(place)) if place.endswith(".py") else _load_module(text, place)
    factory = getattr(module, function, None)
    if factory is None:
        public = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        guess = nearest(function, public)
        hint = f". Did you mean {guess!r}?" if guess else ""
        raise BadTarget(text, f"{place} has no {function!r}{hint}")
    if not callable(factory):
        raise BadTarget(text, f"{function!r} in {place} is {type(factory).__name__}, not a function")
    try:
        made = factory()
    except Exception as error:
        raise TargetFailed(text, f"calling {function}()", error) from error
    return Target(text, *_checked(text, function, made))


def _checked(text: str, function: str, made: object) -> tuple[Callable[..., Any], Inputs]:
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise BadTarget(text, f"{function}() must return (model, example_inputs), not {_describe(made)}")
    model, inputs = made
    if not callable(model):
        raise BadTarget(text, f"{function}() must return a module or function first, not {_describe(model)}")
    if isinstance(inputs, torch.Tensor):
        return model, (inputs,)
    if isinstance(inputs, dict) and all(isinstance(key, str) for key in inputs):
        return model, dict(inputs)
    if isinstance(inputs, (tuple, list)):
        return model, tuple(inputs)
    raise BadTarget(text, f"example_inputs must be a tuple or a dict of keyword arguments, not {_describe(inputs)}")


def _describe(value: object) -> str:
    size = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    return f"{type(value).__name__}{size}"


def _load_file(text: str, path: Path) -> ModuleType:
    if not path.is_file():
        siblings = [sibling.name for sibling in path.parent.glob("*.py")] if path.parent.is_dir() else []
        guess = nearest(path.name, siblings)
        hint = f". Did you mean {path.parent / guess}?" if guess else ""
        raise BadTarget(text, f"there is no file {path}{hint}")
    # Registered under its own name so that pickling and dataclasses inside it work; its folder is importable, as it
    # would be if the file were run.
    name = f"burnish_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise TargetFailed(text, f"running {path}", error) from error
    finally:
        sys.path.pop(0)
    return module


def _load_module(text: str, place: str) -> ModuleType:
    # Console scripts do not put the working directory on the path; `python -m` does. Both should find the user's code.
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(error.name + ".")):
            raise BadTarget(text, f"there is no module {place!r}. For a file, write FILE.py:FUNCTION") from error
        raise TargetFailed(text, f"importing {place}", error) from error
    except Exception as error:
        raise TargetFailed(text, f"importing {place}", error) from error
    finally:
        sys.path.pop(0)
