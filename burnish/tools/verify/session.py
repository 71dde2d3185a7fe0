"""One verification: run, compare, and find the cause of wrong results."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from burnish.api import compile, handle_of
from burnish.errors import FallbackWarning, TargetFailed
from burnish.options import Options
from burnish.record import GraphRecord, Run
from burnish.tools.draws import RecordDraws
from burnish.tools.verify.calls import Argument, Calls, Expected, copied, is_wrong
from burnish.tools.verify.culprit import Culprit, find_culprit
from burnish.tools.verify.findings import Check
from burnish.tools.verify.inputs import SETS, InputSet, NoSuchSet, input_sets
from burnish.tools.verify.judge import TensorVerdict, judge
from burnish.tools.verify.reduce import NotReducible, reduced
from burnish.tools.verify.repro import write_repro
from burnish.tools.verify.result import VerifyResult
from burnish.tools.verify.statistics import compare_statistics
from burnish.tools.verify.subject import Outcome, Phase, Subject
from burnish.tools.workloads import Inputs

PHASES: tuple[Phase, ...] = ("inference", "gradients")
Told = Callable[[str], None]


@dataclass(frozen=True)
class VerifySettings:
    """What to verify."""

    phases: Sequence[Phase] = PHASES
    sets: Sequence[str] = tuple(SETS)
    dynamic: bool | None = None
    mode: str | None = None
    options: Options | None = None
    bisect: bool = True
    repro: Path | None = None  # where the repro file goes; None: burnish-repro.py in the working directory


def run_verification(
    model: Callable[..., Any], inputs: Inputs, plan: VerifySettings, name: str = "", told: Told = lambda _: None
) -> VerifyResult:
    begin = time.perf_counter()
    session = _Session(model, plan, name or _name_of(model), told)
    with _kept_gradients(session.subject.module), warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)  # said in the result instead
        session.compare(inputs)
        session.explain_failure()
    return session.result(time.perf_counter() - begin)


def _name_of(model: Callable[..., Any]) -> str:
    return type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", "the model")


@dataclass(frozen=True)
class _Case:
    inputs: InputSet
    phase: Phase


@dataclass
class _Session:
    model: Callable[..., Any]
    plan: VerifySettings
    name: str
    told: Told
    checks: list[Check] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    first_failure: _Case | None = None
    culprit: Culprit | None = None
    repro: Path | None = None

    def __post_init__(self) -> None:
        self.subject = Subject.of(self.model)
        self.options = without_trust(self.plan.options or Options.from_arguments(mode=self.plan.mode))
        self.compiled = compile(self.model, dynamic=self.plan.dynamic, options=self.options, name=self.name)
        self.handle = handle_of(self.compiled)
        self.probe = GraphProbe()
        self.handle.log.recorder = self.probe

    # --- comparing ----------------------------------------------------------------------------------------------

    def compare(self, inputs: Inputs) -> None:
        sets = [n for n in self.plan.sets if not (n == "batch" and self.plan.dynamic is False)]
        for made in input_sets(inputs, sets):
            if isinstance(made, NoSuchSet):
                self.skipped.append(f"{made.name}: {made.reason}")
                continue
            for phase in self.plan.phases:
                self._compare_case(_Case(made, phase))

    def _compare_case(self, case: _Case) -> None:
        where = f"{case.inputs.name}, {case.phase}"
        self.told(where)
        run = lambda **more: self.subject.run(case.inputs.inputs, case.phase, **more)  # noqa: E731
        try:
            eager, again = run(), run()
        except (Exception, SystemExit) as error:
            if case.inputs.name == "given" and case.phase == self.plan.phases[0]:
                raise TargetFailed(self.name, "running it in eager", error) from error
            self.skipped.append(f"{where}: eager raises {type(error).__name__}: {str(error).splitlines()[0][:120]}")
            return
        if case.phase == "gradients" and not any(name.startswith("grad.") for name in eager.tensors):
            self.skipped.append(f"{where}: nothing requires a gradient")
            return
        rolled_back = len(self._raised_at_run_time())
        try:
            found = run(call=self.compiled)
        except (Exception, SystemExit) as error:
            self._fail(case, f"raises {type(error).__name__}, eager does not: {str(error)[:200]}")
            return
        for reason in self._raised_at_run_time()[rolled_back:]:  # eager served the call in its place
            self._fail(case, f"compiled code raises {reason}")
        reference = self._reference(case, eager)
        self._add_checks(case, self._judged(case, found, eager, again, reference), eager)

    def _reference(self, case: _Case, eager: Outcome) -> Outcome | None:
        try:
            drawn = None
            if eager.drew:
                recorder = RecordDraws()
                self.subject.run(case.inputs.inputs, case.phase, record=recorder)
                drawn = recorder.drawn
                self._note("it draws random numbers: every run, float64's included, had the same ones")
            reference = self.subject.in_float64(case.inputs.inputs, case.phase, drawn)
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
            self._note(f"no float64 referee, compared with eager alone ({reason})")
            return None
        return reference

    def _judged(
        self, case: _Case, found: Outcome, eager: Outcome, again: Outcome, reference: Outcome | None
    ) -> dict[str, TensorVerdict]:
        if any(not judge(again.tensors[n], t).ok for n, t in eager.tensors.items() if n in again.tensors):
            self._note("eager differs from itself between two runs: judged by that spread")
        verdicts = _compared(found, eager, again, reference)
        other_draws = eager.drew and found.generators != eager.generators
        if other_draws and not all(v.ok for v in verdicts.values()):
            self._note("compiled code draws other random numbers than eager: means and spreads over seeds compared")
            return compare_statistics(self.subject, case.inputs.inputs, case.phase, self.compiled)
        return verdicts

    def _add_checks(self, case: _Case, verdicts: dict[str, TensorVerdict], eager: Outcome) -> None:
        for name, verdict in verdicts.items():
            held = eager.tensors.get(name)
            dtype = str(held.dtype).removeprefix("torch.") if held is not None else ""
            shape = tuple(held.shape) if held is not None else ()
            self.checks.append(Check(case.inputs.name, case.phase, name, dtype, shape, verdict))
        if self.first_failure is None and not all(v.ok for v in verdicts.values()):
            self.first_failure = case

    def _raised_at_run_time(self) -> list[str]:
        return [entry.reason for entry in self.handle.stats().fallbacks if entry.stage == "run"]

    def _fail(self, case: _Case, reason: str) -> None:
        self.checks.append(Check(case.inputs.name, case.phase, "call", "", (), TensorVerdict(False, reason=reason)))
        self.first_failure = self.first_failure or case

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # --- finding the cause --------------------------------------------------------------------------------------

    def explain_failure(self) -> None:
        case = self.first_failure
        if case is None or not self.plan.bisect:
            return
        self.told("looking for the graph that is wrong")
        with self.probe.looking():
            try:
                self.subject.run(case.inputs.inputs, case.phase, call=self.compiled)
            except Exception as error:
                self._note(f"while looking for the cause it raised {type(error).__name__}")
        calls = self.probe.wrong
        if calls is None:
            self.culprit = Culprit("capture", "no graph is wrong by itself")
            return
        self.culprit = find_culprit(calls, self.told)
        self._write_repro(calls)

    def _write_repro(self, calls: Calls) -> None:
        assert self.culprit is not None
        self.told("making the graph smaller")
        try:
            small = reduced(calls)
            if small is None:
                self._note("no repro file: with constant sizes the graph is right")
                return
            culprit = find_culprit(small, self.told)
            shown = culprit if culprit.stage != "unknown" else self.culprit
            self.repro = write_repro(small, shown, self.name, self.plan.repro or Path("burnish-repro.py"))
        except (NotReducible, OSError) as error:
            self._note(f"no repro file: {error}")

    # --- the answer ---------------------------------------------------------------------------------------------

    def result(self, seconds: float) -> VerifyResult:
        stats = self.handle.stats()
        for fallback in dict.fromkeys(map(str, stats.fallbacks)):
            self._note(f"eager serves a part of it: {fallback}")
        return VerifyResult(
            self.name, tuple(self.checks), tuple(self.skipped), tuple(self.notes),
            sum(stats.graphs.values()) > 0, self.culprit, self.repro, seconds,
        )  # fmt: skip


def _compared(found: Outcome, eager: Outcome, again: Outcome, reference: Outcome | None) -> dict[str, TensorVerdict]:
    verdicts: dict[str, TensorVerdict] = {}
    for name, want in eager.tensors.items():
        if name not in found.tensors:
            verdicts[name] = TensorVerdict(False, reason="eager leaves it behind, compiled code does not")
            continue
        truth = reference.tensors.get(name) if reference is not None else None
        verdicts[name] = judge(found.tensors[name], want, truth, again.tensors.get(name))
    for name in found.tensors.keys() - eager.tensors.keys():
        verdicts[name] = TensorVerdict(False, reason="compiled code leaves it behind, eager does not")
    for name, value in eager.values.items():
        if found.values.get(name) != value and again.values.get(name) == value:
            verdicts[name] = TensorVerdict(False, reason=f"{found.values.get(name)!r}, eager has {value!r}")
    return verdicts


class GraphProbe:
    """A recorder that, while it is looking, compares every graph that runs with eager; it keeps the first wrong one."""

    def __init__(self) -> None:
        self.wrong: Calls | None = None
        self._looking = False

    def looking(self) -> _Looking:
        return _Looking(self)

    def graph(self, record: GraphRecord) -> Run:
        def run(args: list[Any]) -> Any:
            if not self._looking or self.wrong is not None:
                return record.run(args)
            before = copied(args)
            result = record.run(args)
            self._compare(record, before)
            return result

        return run

    def _compare(self, record: GraphRecord, arguments: list[Argument]) -> None:
        calls = Calls(record.calls, arguments, record.kind, record.options)  # type: ignore[arg-type]
        try:
            verdicts = Expected.of(calls).judge(calls.run(record.run), calls.written())
        except Exception:  # a graph whose calls cannot be repeated one by one
            return
        if is_wrong(verdicts):
            self.wrong = calls

    def graph_break(self, entry: object) -> None:
        pass

    def recompile(self, entry: object) -> None:
        pass


class _Looking:
    def __init__(self, probe: GraphProbe) -> None:
        self._probe = probe

    def __enter__(self) -> None:
        self._probe._looking = True

    def __exit__(self, *error: object) -> None:
        self._probe._looking = False


class _kept_gradients:
    """The caller's gradients are put back: verifying leaves no trace."""

    def __init__(self, module: torch.nn.Module | None) -> None:
        self._kept = [(p, p.grad) for p in module.parameters()] if module is not None else []

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        for parameter, grad in self._kept:
            parameter.grad = grad


def without_trust(options: Options) -> Options:
    """Disables the mechanisms that serve eager instead of wrong or slow code, or compile later, during verification."""
    off = {"verify": "off", "gate": False, "background": False, "budget": None, "sample": 0.0}
    known = {entry.name for entry in dataclasses.fields(Options)}
    return dataclasses.replace(options, **{name: value for name, value in off.items() if name in known})  # type: ignore[arg-type]
