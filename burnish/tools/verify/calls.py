"""One captured graph of ATen calls, run in eager, in float64, and through our pipeline with any amount of fuel.

A graph has no modules, hooks or Python: it depends only on its arguments. So a wrong graph can be reduced, compiled
repeatedly, and written to a file.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import fx

from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.pipeline import compile_graph
from burnish.record import GraphRecord, Run
from burnish.tools.draws import draws_random_numbers, replayed
from burnish.tools.random_state import same_draws
from burnish.tools.verify.judge import TensorVerdict, judge

Argument = Any  # a tensor, a size, or None
Kind = Literal["forward", "backward", "inference"]
_WIDE = {torch.float32, torch.float16, torch.bfloat16}


@dataclass(frozen=True)
class Results:
    """What running a graph leaves behind: its results, and its arguments as they are afterwards."""

    outputs: list[Any]
    arguments: list[Argument]
    values: Mapping[fx.Node, Any] = dataclasses.field(default_factory=dict)

    def tensors(self, written: Sequence[int]) -> dict[str, torch.Tensor]:
        found = {f"result {k}": t for k, t in enumerate(self.outputs) if isinstance(t, torch.Tensor)}
        return found | {f"argument {k} (written)": self.arguments[k] for k in written}


class _Eager(fx.Interpreter):
    """The calls one by one. Every value is kept: meanings are compared call by call."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)


class _Float64(_Eager):
    """The same calls in float64; numbers drawn are those that eager drew."""

    def __init__(self, module: fx.GraphModule, drawn: Mapping[fx.Node, Any]) -> None:
        super().__init__(module)
        self._drawn = drawn

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op == "get_attr":
            return widened(value)
        if n.op == "call_function" and draws_random_numbers(n.target):
            args, _ = self.fetch_args_kwargs_from_env(n)
            return replayed(cast(Any, n.target), args, value, _as_list(self._drawn[n]))
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args = fx.map_arg(args, lambda x: x)
        return super().call_function(target, _wide_types(args), {k: _wide_types(v) for k, v in kwargs.items()})


def _as_list(value: Any) -> list[torch.Tensor]:
    return [v for v in (value if isinstance(value, tuple | list) else [value]) if isinstance(v, torch.Tensor)]


def _wide_types(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float64 if value in _WIDE else value
    if isinstance(value, tuple | list):
        return type(value)(_wide_types(v) for v in value)
    return value


def widened(value: Argument) -> Argument:
    return value.detach().double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def copied(arguments: Sequence[Argument]) -> list[Argument]:
    """Copies in which tensors that share memory still do, in their strides."""
    with torch.no_grad():
        return list(copy.deepcopy([a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]))


@dataclass
class Calls:
    """A graph of ATen calls with arguments to call it on."""

    module: fx.GraphModule
    arguments: list[Argument]
    kind: Kind
    options: Options

    def in_eager(self) -> Results:
        return self._interpret(_Eager(self.module), copied(self.arguments))

    def in_float64(self, drawn: Mapping[fx.Node, Any]) -> Results:
        return self._interpret(_Float64(self.module, drawn), [widened(a) for a in copied(self.arguments)])

    def _interpret(self, interpreter: _Eager, arguments: list[Argument]) -> Results:
        with torch.no_grad(), same_draws():
            outputs = interpreter.run(*arguments)
        outputs = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
        return Results(outputs, arguments, dict(interpreter.env))

    def compiled(self, fuel: int | None) -> GraphRecord:
        """Through the pipeline, with this much fuel and without serving eager when it fails."""
        keeper = RecordKeeper()
        log = CompileLog(name="burnish verify")
        log.recorder = keeper
        options = dataclasses.replace(self.options, fuel=fuel, dump_dir=None)
        compile_graph(self.module, self.arguments, kind=self.kind, options=options, log=log)
        return keeper.records[-1]

    def run(self, run: Run) -> Results:
        arguments = copied(self.arguments)
        with torch.no_grad(), same_draws():
            return Results(list(run(list(arguments))), arguments)

    def written(self) -> list[int]:
        """Positions of arguments the graph writes to."""
        places = [n for n in self.module.graph.nodes if n.op == "placeholder"]
        targets = {n.args[0] for n in self.module.graph.nodes if n.target is torch.ops.aten.copy_.default}
        return [k for k, place in enumerate(places) if place in targets]


class RecordKeeper:
    """A recorder that only remembers."""

    def __init__(self) -> None:
        self.records: list[GraphRecord] = []

    def graph(self, record: GraphRecord) -> Run:
        self.records.append(record)
        return record.run

    def graph_break(self, entry: object) -> None:
        pass

    def recompile(self, entry: object) -> None:
        pass


@dataclass(frozen=True)
class Expected:
    """What a graph must compute: eager's results, a second run's, and float64's where it can be had."""

    eager: Results
    again: Results
    reference: Results | None

    @staticmethod
    def of(calls: Calls) -> Expected:
        eager = calls.in_eager()
        try:
            reference = calls.in_float64(eager.values)
        except Exception:  # an op without a float64 kernel, a reinterpretation of bits
            reference = None
        return Expected(eager, calls.in_eager(), reference)

    def judge(self, found: Results, written: Sequence[int]) -> dict[str, TensorVerdict]:
        eager, again = self.eager.tensors(written), self.again.tensors(written)
        reference = self.reference.tensors(written) if self.reference is not None else {}
        candidate = found.tensors(written)
        return {
            name: judge(candidate[name], eager[name], reference.get(name), again.get(name))
            if name in candidate
            else TensorVerdict(False, reason="no result")
            for name in eager
        }


def is_wrong(verdicts: Mapping[str, TensorVerdict]) -> bool:
    return not all(v.ok for v in verdicts.values())
