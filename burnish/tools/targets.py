"""TARGET on the command line: a built-in workload, or a factory in the user's own file or package.

    bert-base              a built-in workload (`burnish workloads` lists them); bert-base@tiny is its small variant
    model.py:build         the function `build` in the file model.py
    package.module:build   the same, by import path

A factory takes no arguments and returns (model, example_inputs); the inputs are a tuple or a dict of keyword arguments.
To be told what compiling means for a whole step and not only for the model, it returns a dict instead:

    model       the module or function to compile; the only key that must be there
    inputs      what to call it on; left out, it is what the first step calls it on, or the first batch of `data`
    data        the batches: an iterable, or a function that returns one (a DataLoader, a generator function)
    step        the loop's body, as step(model, batch), or step(model) where there is no `data`
    kind        "inference" (default) or "train": the model's forward returns the loss, and backward is timed with it
    batch_size  samples in one call, where the inputs' first dimension is not it
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from burnish.errors import BadOptionValue, BadTarget, BurnishError, TargetFailed, UnknownTarget
from burnish.options import nearest
from burnish.tools.workloads import SIZES, WORKLOADS, Inputs, Kind, Workload


@dataclass(frozen=True)
class Pipeline:
    """What the user's program does around the model: where its batches come from, and the body of its loop."""

    data: Iterable[Any] | Callable[[], Iterable[Any]] | None = None
    step: Callable[..., Any] | None = None

    def batches(self) -> Iterator[Any]:
        """The data from its beginning, again and again; without data, nothing in particular for ever."""
        while True:
            empty = True
            for batch in self._once():
                empty = False
                yield batch
            if empty:
                return

    def _once(self) -> Iterable[Any]:
        if self.data is None:
            return (None,)
        return self.data() if callable(self.data) else self.data

    def run(self, model: Callable[..., Any], batch: Any) -> Any:
        """One step of the user's program, the fetching of the batch apart."""
        if self.step is None:
            args, kwargs = split_inputs(as_inputs(batch))
            return model(*args, **kwargs)
        return self.step(model) if self.data is None else self.step(model, batch)


@dataclass(frozen=True)
class Target:
    """A model with the inputs to call it on."""

    name: str
    model: Callable[..., Any]
    inputs: Inputs
    kind: Kind = "inference"
    pipeline: Pipeline | None = None
    batch_size: int | None = None  # samples in one call, where the target says so

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


def placed(target: Target, device: str | None = None, dtype: torch.dtype | None = None) -> Target:
    """The target with its model and inputs on another device, or its floating-point numbers of another type."""
    model = target.model
    if isinstance(model, torch.nn.Module):
        model = model.to(device=device, dtype=dtype)

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
        if isinstance(value, dict):
            return {name: move(item) for name, item in value.items()}
        return type(value)(map(move, value)) if type(value) in (tuple, list) else value

    return dataclasses.replace(target, model=model, inputs=move(target.inputs))


@contextmanager
def running(name: str, doing: str) -> Iterator[None]:
    """What the target's own code raises in here is an error that names its line."""
    try:
        yield
    except BurnishError:
        raise
    except (Exception, SystemExit) as error:
        raise TargetFailed(name, doing, error) from error


def check_device(option: str, device: str) -> None:
    """Raise at once if this machine has no such device."""
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise BadOptionValue(option, device, "a device as torch names it: cpu, cuda, cuda:1") from None
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        found = f"torch sees {count} of them here" if count else "torch sees none here (burnish doctor says why)"
        raise BadOptionValue(option, device, f"a GPU of this machine: {found}")


def as_inputs(value: object) -> Inputs:
    """Example inputs, or a batch, as the arguments of a call: one tensor is the only argument, a dict is by name."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def split_inputs(inputs: Inputs) -> tuple[tuple[object, ...], dict[str, object]]:
    return ((), inputs) if isinstance(inputs, dict) else (inputs, {})


def load_target(text: str) -> Target:
    """Parse TARGET and build it; every way this can fail has an error that says what to write instead."""
    if ":" in text:
        place, _, function = text.rpartition(":")
        return _from_factory(text, place, function)
    workload, size = _named_workload(text)
    model, inputs = workload.build(size)
    return Target(text, model, inputs, workload.kind)


def check_target(text: str) -> None:
    """Raise at once what can be told without building the target: a name that does not exist."""
    if ":" not in text:
        _named_workload(text)


def _named_workload(text: str) -> tuple[Workload, str]:
    name, at, size = text.partition("@")
    if name not in WORKLOADS:
        if text.endswith(".py"):
            raise BadTarget(text, f"it names a file but no factory in it. Write {text}:FUNCTION")
        raise UnknownTarget(text, nearest(name, WORKLOADS), tuple(WORKLOADS))
    if at and size not in SIZES:
        raise BadTarget(text, f"there is no size {size!r}. Sizes: {', '.join(SIZES)}")
    return WORKLOADS[name], size or "full"


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
    except (Exception, SystemExit) as error:
        raise TargetFailed(text, f"calling {function}()", error) from error
    return _from_dict(text, function, made) if isinstance(made, dict) else Target(text, *_checked(text, function, made))


_KEYS = ("model", "inputs", "data", "step", "kind", "batch_size")


def _from_dict(text: str, function: str, made: dict[object, Any]) -> Target:
    for key in made:
        if key not in _KEYS:
            guess = nearest(str(key), _KEYS)
            hint = f" Did you mean {guess!r}?" if guess else ""
            raise BadTarget(text, f"{function}() returned the key {key!r}. Keys: {', '.join(_KEYS)}.{hint}")
    kind, data, step = made.get("kind", "inference"), made.get("data"), made.get("step")
    if kind not in ("inference", "train"):
        raise BadTarget(text, f'"kind" must be "inference" or "train", not {kind!r}')
    if step is not None and not callable(step):
        raise BadTarget(text, f'"step" must be a function of the model and a batch, not {_describe(step)}')
    if data is not None and not (callable(data) or isinstance(data, Iterable)):
        raise BadTarget(text, f'"data" must be an iterable or a function that returns one, not {_describe(data)}')
    pipeline = None if data is None and step is None else Pipeline(data, step)
    if made.get("inputs") is None and pipeline is None:
        raise BadTarget(text, f'{function}() must return "inputs", or "data" or "step" to take them from')
    model = made.get("model")
    if not callable(model):
        raise BadTarget(text, f'"model" must be a module or function, not {_describe(model)}')
    inputs = made.get("inputs")
    if inputs is None:
        assert pipeline is not None
        try:
            inputs = first_call_inputs(model, pipeline)
        except (Exception, SystemExit) as error:
            raise TargetFailed(text, "running its first step", error) from error
    return Target(text, *_checked(text, function, (model, inputs)), kind, pipeline, made.get("batch_size"))


class _Reached(BaseException):
    """Ends a step as soon as it has called the model; no `except Exception` of the user's holds it up."""


def first_call_inputs(model: Callable[..., Any], pipeline: Pipeline) -> Inputs:
    """What the first step calls the model on. The model does not run, so that nothing has happened to it yet."""
    caught: list[Inputs] = []

    def catch(*args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise ValueError("the step calls the model with positional and named arguments; give 'inputs' as well")
        caught.append(kwargs if kwargs else args)
        raise _Reached

    batch = next(pipeline.batches(), None)
    if pipeline.step is None:
        return as_inputs(batch)
    hook = None
    if isinstance(model, torch.nn.Module):
        hook = model.register_forward_pre_hook(lambda module, args, kwargs: catch(*args, **kwargs), with_kwargs=True)
    try:
        pipeline.run(model if hook else catch, batch)
    except _Reached:
        return caught[0]
    finally:
        if hook is not None:
            hook.remove()
    raise ValueError("its step never called the model")


def _checked(text: str, function: str, made: object) -> tuple[Callable[..., Any], Inputs]:
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise BadTarget(text, f"{function}() must return (model, example_inputs), not {_describe(made)}")
    model, inputs = made
    if not callable(model):
        raise BadTarget(text, f"{function}() must return a module or function first, not {_describe(model)}")
    if isinstance(inputs, (torch.Tensor, tuple, list)):
        return model, as_inputs(inputs)
    if isinstance(inputs, Mapping) and all(isinstance(key, str) for key in inputs):
        return model, dict(inputs)
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
    except (Exception, SystemExit) as error:
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
    except (Exception, SystemExit) as error:
        raise TargetFailed(text, f"importing {place}", error) from error
    finally:
        sys.path.pop(0)
