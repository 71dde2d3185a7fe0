"""Make a failing case small: whatever can be taken away, or made plainer, without the failure going away, is."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.fuzz.case import NAME, Arg, Call, Case, Program, Step
from tests.fuzz.generate import without_unused
from tests.fuzz.inputs import contiguous, extent

Fails = Callable[[Case], bool]


def shrunk(case: Case, fails: Fails, seconds: float = 45.0) -> Case:
    """The smallest case that was found to fail in the given time."""
    end, changed = time.monotonic() + seconds, True
    while changed:
        changed = False
        for simplify in _WAYS:
            done = False
            while not done:
                done = True
                for candidate in simplify(case):
                    if time.monotonic() > end:
                        return case
                    if candidate != case and _holds_together(candidate) and fails(candidate):
                        case, changed, done = candidate, True, False
                        break
    return case


def _holds_together(case: Case) -> bool:
    """Every name is defined before it is read."""
    known = set(case.program.inputs)
    for step in case.program.steps:
        if not set(NAME.findall(" ".join((*step.args,)))) <= known:
            return False
        known.add(step.target)
    return set(case.program.results) <= known and bool(case.program.results) and bool(case.calls)


def _with_program(case: Case, **changes: Any) -> Case:
    return dataclasses.replace(case, program=without_unused(dataclasses.replace(case.program, **changes)))


def _fewer_calls(case: Case) -> Iterator[Case]:
    if case.prelude:
        yield dataclasses.replace(case, prelude=())
        yield dataclasses.replace(case, prelude=case.prelude[:1])
    for n in range(1, len(case.calls)):
        yield dataclasses.replace(case, calls=case.calls[:n])
    for k in range(len(case.calls) - 1):
        yield dataclasses.replace(case, calls=case.calls[:k] + case.calls[k + 1 :])


def _fewer_options(case: Case) -> Iterator[Case]:
    if case.compile:
        yield dataclasses.replace(case, compile={})
    for key in case.compile:
        yield dataclasses.replace(case, compile={k: v for k, v in case.compile.items() if k != key})


def _fewer_results(case: Case) -> Iterator[Case]:
    results = case.program.results
    if len(results) > 1:
        for one in results:
            yield _with_program(case, results=(one,))
        for k in range(len(results)):
            yield _with_program(case, results=results[:k] + results[k + 1 :])
    if case.program.shape != "tuple":
        yield _with_program(case, shape="tuple")


def _fewer_steps(case: Case) -> Iterator[Case]:
    yield _with_program(case)
    steps = case.program.steps
    for k in reversed(range(len(steps))):
        step = steps[k]
        rest = (*steps[:k], *steps[k + 1 :])
        if not step.target:
            yield _with_program(case, steps=rest)
            continue
        for stand_in in [n for a in step.args for n in NAME.findall(a)][:3]:
            yield _renamed(case, rest, step.target, stand_in)
    for k, step in enumerate(steps):
        if step.scope:
            yield _with_program(case, steps=(*steps[:k], dataclasses.replace(step, scope=""), *steps[k + 1 :]))


def _renamed(case: Case, steps: tuple[Step, ...], old: str, new: str) -> Case:
    def swap(text: str) -> str:
        return re.sub(rf"\b{old}\b", new, text)

    renamed = [dataclasses.replace(s, args=tuple(swap(a) for a in s.args)) for s in steps]
    return _with_program(case, steps=tuple(renamed), results=tuple(swap(r) for r in case.program.results))


def _inputs_for_values(case: Case) -> Iterator[Case]:
    """An operand that is computed becomes an input of any kind."""
    for k, step in enumerate(case.program.steps):
        for a, arg in enumerate(step.args):
            for name in case.program.inputs:
                if NAME.search(arg) and arg != name and not (arg.startswith("in") and arg < name):
                    args = (*step.args[:a], name, *step.args[a + 1 :])
                    yield _with_step(case, k, dataclasses.replace(step, args=args))


def _with_step(case: Case, k: int, step: Step) -> Case:
    steps = case.program.steps
    return _with_program(case, steps=(*steps[:k], step, *steps[k + 1 :]))


def _fewer_inputs(case: Case) -> Iterator[Case]:
    program = case.program
    text = " ".join([*(a for s in program.steps for a in s.args), *program.results])
    for k, name in enumerate(program.inputs):
        if name not in NAME.findall(text) and len(program.inputs) > 1:
            yield _without_input(case, k)
    if program.is_module and not program.members:
        yield _with_program(case, is_module=False)


def _without_input(case: Case, k: int) -> Case:
    def drop(call: Call) -> Call:
        target = call.args[k]
        args = []
        for j, arg in enumerate(call.args):
            if j == k:
                continue
            if arg.same_as == k:
                arg = target
            elif arg.same_as > k:
                arg = dataclasses.replace(arg, same_as=arg.same_as - 1)
            args.append(arg)
        return dataclasses.replace(call, args=tuple(args))

    inputs = case.program.inputs
    case = dataclasses.replace(
        case, calls=tuple(drop(c) for c in case.calls), prelude=tuple(drop(c) for c in case.prelude)
    )
    return _with_program(case, inputs=(*inputs[:k], *inputs[k + 1 :]))


def _each_call(case: Case, change: Callable[[Call], Iterator[Call]]) -> Iterator[Case]:
    for k, call in enumerate(case.calls):
        for other in change(call):
            yield dataclasses.replace(case, calls=(*case.calls[:k], other, *case.calls[k + 1 :]))


def _plainer_calls(case: Case) -> Iterator[Case]:
    def change(call: Call) -> Iterator[Call]:
        if call.before:
            yield dataclasses.replace(call, before=())
            for k in range(len(call.before)):
                yield dataclasses.replace(call, before=(*call.before[:k], *call.before[k + 1 :]))
        for plain in ({"threads": 1}, {"backward": ""}, {"accumulate": False}, {"mode": "grad"}, {"seed": 0}):
            yield dataclasses.replace(call, **plain)  # type: ignore[arg-type]
        if call.backward not in ("", "once"):
            yield dataclasses.replace(call, backward="once")

    yield from _each_call(case, change)


def _plainer_arguments(case: Case) -> Iterator[Case]:
    def change(call: Call) -> Iterator[Call]:
        for k, arg in enumerate(call.args):
            for other in _plainer(arg, call):
                yield _tidied(dataclasses.replace(call, args=(*call.args[:k], other, *call.args[k + 1 :])))
            if arg.is_tensor and sum(a.storage == arg.storage for a in call.args) > 1:
                held = call.storages[arg.storage]
                alone = dataclasses.replace(arg, storage=len(call.storages))
                args = (*call.args[:k], alone, *call.args[k + 1 :])
                yield _tidied(dataclasses.replace(call, args=args, storages=(*call.storages, held)))

    yield from _each_call(case, change)


def _plainer(arg: Arg, call: Call) -> Iterator[Arg]:
    if not arg.is_tensor:
        return
    stride = contiguous(arg.shape)
    if extent(arg.shape, stride) <= call.storages[arg.storage].size:
        yield dataclasses.replace(arg, stride=stride, offset=0)
    yield dataclasses.replace(arg, offset=0)
    for flag in arg.flags:
        yield dataclasses.replace(arg, flags=tuple(f for f in arg.flags if f != flag))


def _tidied(call: Call) -> Call:
    """Without storages that nothing uses, each as large as it must be."""
    used = sorted({a.storage for a in call.args if a.is_tensor})
    sizes = {
        s: max(a.offset + extent(a.shape, a.stride) for a in call.args if a.is_tensor and a.storage == s) for s in used
    }
    storages = tuple(dataclasses.replace(call.storages[s], size=sizes[s]) for s in used)
    args = [dataclasses.replace(a, storage=used.index(a.storage)) if a.is_tensor else a for a in call.args]
    return dataclasses.replace(call, storages=storages, args=tuple(args))


def _plainer_values(case: Case) -> Iterator[Case]:
    def change(call: Call) -> Iterator[Call]:
        for k, storage in enumerate(call.storages):
            for kind in ("small", "unit", "normal"):
                if storage.kind == kind:
                    break
                if ":" not in storage.kind:
                    plain = dataclasses.replace(storage, kind=kind)
                    yield dataclasses.replace(call, storages=(*call.storages[:k], plain, *call.storages[k + 1 :]))

    yield from _each_call(case, change)


def _smaller(case: Case) -> Iterator[Case]:
    """A size that stands in shapes becomes smaller wherever it stands, in all calls."""
    calls = (*case.prelude, *case.calls)
    sizes = sorted({d for c in calls for a in c.args if a.is_tensor for d in a.shape if d > 1}, reverse=True)
    for old in sizes:
        for new in sorted({1, 2, 3, old // 2}):
            if 0 < new < old:
                resized = [_resized(c, old, new) for c in calls]
                n = len(case.prelude)
                yield dataclasses.replace(case, prelude=tuple(resized[:n]), calls=tuple(resized[n:]))


def _resized(call: Call, old: int, new: int) -> Call:
    args = [dataclasses.replace(a, shape=tuple(new if d == old else d for d in a.shape)) for a in call.args]
    return _tidied(dataclasses.replace(call, args=tuple(args)))


_WAYS: tuple[Callable[[Case], Iterator[Case]], ...] = (
    _fewer_calls, _fewer_results, _fewer_steps, _fewer_options, _plainer_calls, _fewer_inputs, _inputs_for_values,
    _plainer_arguments, _plainer_values, _smaller,
)  # fmt: skip


def program_size(program: Program) -> int:
    return len(program.steps)
