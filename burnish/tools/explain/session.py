"""One explanation, top to bottom: compile, call, measure, and put what was seen into words."""

from __future__ import annotations

import contextlib
import linecache
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from burnish.api import compile, handle_of
from burnish.options import Options
from burnish.stats import GraphBreak, Recompile
from burnish.tools.explain.advice import break_advice, recompile_advice
from burnish.tools.explain.ceiling import bandwidth_ceiling
from burnish.tools.explain.findings import AtenCall, BreakCost, GraphFacts, RecompileCost
from burnish.tools.explain.kernels import graph_facts
from burnish.tools.explain.result import Explanation
from burnish.tools.explain.watch import Call, Watcher
from burnish.tools.measure import quantile
from burnish.tools.parity import compare
from burnish.tools.targets import Target, running
from burnish.tools.verify.inputs import InputSet, input_sets
from burnish.tools.verify.session import without_trust
from burnish.version import PACKAGE

_OURS = str(PACKAGE)
_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True)
class ExplainSettings:
    dynamic: bool | None = None
    mode: str | None = None
    dump: Path | None = None
    other_sizes: bool = True  # also call it with one and two more in the first dimension: do sizes recompile?
    seconds: float = 0.3  # of steady-state calls, and of each graph's kernels
    referee: bool = True
    regions: str | tuple[str, ...] = "auto"
    clock: Callable[[], float] = time.perf_counter
    more_inputs: Sequence[Any] = ()  # further calls that the model gets in real use
    ceiling: float | None = None  # bytes per second, where known


def run_explanation(target: Target, plan: ExplainSettings, told: Callable[[str], None] = lambda _: None) -> Explanation:
    return _Session(target, plan, told).run()


class _Session:
    def __init__(self, target: Target, plan: ExplainSettings, told: Callable[[str], None]) -> None:
        self.target, self.plan, self.told = target, plan, told
        settings = {"regions": plan.regions}
        options = without_trust(Options.from_arguments(mode=plan.mode, dynamic=plan.dynamic, trust=settings))
        self.options = replace(options, dump_dir=plan.dump or options.dump_dir)
        self.compiled = compile(target.model, dynamic=plan.dynamic, options=self.options, name=target.name)
        self.handle = handle_of(self.compiled)
        self.watcher = Watcher(plan.clock)
        self.handle.log.recorder = self.watcher
        self.notes: list[str] = []

    def run(self) -> Explanation:
        with self.target.grad_mode():
            self.told("compiling")
            with running(self.target.name, "calling it"):
                for label in ("first call", "second call", "third call"):
                    self._call(label, self.target.inputs)
                self.told("timing calls")
                steady = self._steady_calls()
            stats = self.handle.stats()  # of the inputs given; what other sizes bring about is told apart
            self.told("other sizes")
            self._call_with_others()
        costs = self._break_costs(steady)
        call = quantile([c.seconds for c in steady], 0.5)
        graphs = self._graphs(steady)
        errors = self._errors()
        return Explanation(
            name=self.target.name,
            stats=stats,
            breaks=tuple(costs),
            recompiles=tuple(self._recompiles(call)),
            aten_calls=tuple(self._aten_calls(steady)),
            graphs=tuple(graphs),
            ceiling=self.plan.ceiling or bandwidth_ceiling(self._device(), self.options),
            first_call_seconds=self.watcher.calls[0].seconds,
            call_seconds=call,
            outside_seconds=quantile([_outside(c) for c in steady], 0.5),
            error=errors.get("burnish"),
            eager_error=errors.get("eager"),
            notes=tuple(self.notes),
        )

    # --- calling ------------------------------------------------------------------------------------------------

    def _call(self, label: str, inputs: Any) -> Call:
        step = replace(self.target, inputs=inputs).step(self.compiled)
        self.watcher.call(label, step)
        return self.watcher.calls[-1]

    def _steady_calls(self) -> list[Call]:
        calls: list[Call] = []
        begin = time.perf_counter()
        while len(calls) < 5 or (time.perf_counter() - begin < self.plan.seconds and len(calls) < 1000):
            calls.append(self._call("steady", self.target.inputs))
        quiet = [call for call in calls if not call.recompiles]
        if not quiet:
            self.notes.append("every call compiled again: there is no steady state")
        return quiet or calls

    def _call_with_others(self) -> None:
        wanted: list[tuple[str, Any]] = [(f"inputs {n}", i) for n, i in enumerate(self.plan.more_inputs, 1)]
        inputs = self.target.inputs
        for more in (1, 2) if self.plan.other_sizes and self.plan.dynamic is not False else ():
            (made,) = input_sets(inputs, ["batch"])
            if not isinstance(made, InputSet):
                break
            inputs = made.inputs
            wanted.append((f"{more} more in the first dimension", inputs))
        for label, given in wanted:
            try:
                self._call(label, given)
            except Exception as error:
                self.notes.append(f"{label}: the model raises {type(error).__name__}")
                break

    def _device(self) -> torch.device:
        return self.watcher.records[0].captured.device if self.watcher.records else torch.device("cpu")

    # --- breaks and recompiles ----------------------------------------------------------------------------------

    def _break_costs(self, steady: Sequence[Call]) -> list[BreakCost]:
        found: dict[tuple[str, int, str], tuple[GraphBreak, set[int | None]]] = {}
        run: set[int | None] = {None, *(span.graph for call in steady for span in call.spans)}
        for after, entry in self.watcher.breaks:
            kind = break_advice(entry.reason, line_of(entry.file, entry.line)).kind
            found.setdefault((entry.file, entry.line, kind), (entry, set()))[1].update({after} & run)
        return [self._break_cost(entry, places, found.values(), steady) for entry, places in found.values()]

    def _break_cost(
        self,
        entry: GraphBreak,
        places: set[int | None],
        found: Iterable[tuple[GraphBreak, set[int | None]]],
        steady: Sequence[Call],
    ) -> BreakCost:
        gaps = [gap for call in steady if (gap := self._gap(call, places)) is not None]
        others = sum(1 for other, elsewhere in found if other != entry and elsewhere & places)
        code = line_of(entry.file, entry.line)
        advice = break_advice(entry.reason, code)
        cost = quantile(gaps, 0.5) if gaps else None
        return BreakCost(entry.file, entry.line, code, entry.reason, advice.kind, advice.text, cost, others)

    def _gap(self, call: Call, places: set[int | None]) -> float | None:
        """In one call: from the end of the graph before a break to the start of the next, or to the call's end."""
        spans = [s for s in call.spans if self.watcher.records[s.graph].kind != "backward"]
        if None in places:
            return (spans[0].begin if spans else call.end) - call.begin
        for k, span in enumerate(spans):
            if span.graph in places:
                return (spans[k + 1].begin if k + 1 < len(spans) else call.end) - span.end
        return None

    def _recompiles(self, call: float) -> list[RecompileCost]:
        costs: dict[tuple[object, ...], RecompileCost] = {}
        for made in self.watcher.calls:
            usual = min(call, _inside(made))  # where every call compiles, what its graphs took
            share = max(made.seconds - usual, 0.0) / max(len(made.recompiles), 1)
            for entry in made.recompiles:
                cost = _recompile_cost(entry, made.label, share)
                key = cost.file, cost.line, cost.check, cost.when
                known = costs.get(key)
                if known is not None:
                    cost = replace(known, seconds=known.seconds + share, count=known.count + 1)
                costs[key] = cost
        return list(costs.values())

    # --- graphs -------------------------------------------------------------------------------------------------

    def _aten_calls(self, steady: Sequence[Call]) -> list[AtenCall]:
        used = {span.graph for call in steady for span in call.spans}
        counted = Counter(extern for number in used for extern in self.watcher.records[number].captured.externs)
        return [AtenCall(op, count, reason) for (op, reason), count in counted.most_common()]

    def _graphs(self, steady: Sequence[Call]) -> list[GraphFacts]:
        facts = []
        used = {span.graph for call in steady for span in call.spans}
        if len(used) < len(self.watcher.records):
            self.notes.append(f"{len(self.watcher.records) - len(used)} more graphs were compiled for other inputs")
        for number in sorted(used):
            record, arguments = self.watcher.records[number], self.watcher.arguments[number]
            self.told(f"timing the kernels of graph {number}")
            runs = [span.end - span.begin for call in steady for span in call.spans if span.graph == number]
            facts.append(graph_facts(number, record, arguments, quantile(runs, 0.5), self.plan.seconds))
        return facts

    def _errors(self) -> dict[str, float | None]:
        if not self.plan.referee:
            return {}
        with contextlib.suppress(Exception):  # a step that cannot be repeated: said by `burnish verify`
            found = compare(self.target, {"burnish": self.compiled, "eager": self.target.model})
            if found["burnish"].reason:
                self.notes.append(f"results: {found['burnish'].reason}")
            return {name: each.error for name, each in found.items()}
        return {}


def _inside(call: Call) -> float:
    return sum(span.end - span.begin for span in call.spans)


def _outside(call: Call) -> float:
    return call.seconds - _inside(call)


def _recompile_cost(entry: Recompile, when: str, seconds: float) -> RecompileCost:
    check = re.split(r"\s{2,}#|\nUser stack trace", entry.reason)[0].strip()
    file, line = _place_in(entry.reason) or (entry.file, entry.line)
    advice = recompile_advice(check)
    return RecompileCost(
        file, line, line_of(file, line), entry.function, check, advice.kind, advice.text, when, seconds
    )


def _place_in(reason: str) -> tuple[str, int] | None:
    """The innermost line of the user's in Dynamo's stack trace."""
    places = re.findall(r'File "([^"]+)", line (\d+)', reason)
    mine = [(file, int(line)) for file, line in places if not file.startswith((_OURS, _TORCH, "<"))]
    return mine[-1] if mine else None


def line_of(file: str, line: int) -> str:
    return linecache.getline(file, line).strip()
