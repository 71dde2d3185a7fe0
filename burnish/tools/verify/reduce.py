"""A wrong graph made smaller: one result, fewer calls, inputs in place of intermediate values, as long as it stays
wrong.

Every attempt is a compile, so they are few: three halvings, not an exhaustive search.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from burnish.tools.random_state import same_draws
from burnish.tools.verify.calls import Argument, Calls, Expected, Results, copied, is_wrong

_MOST_ATTEMPTS = 40


class NotReducible(Exception):
    """The graph calls something that cannot be written down as ATen calls over tensors."""


def reduced(calls: Calls) -> Calls | None:
    """An equally wrong graph with constant sizes, or None where the fault does not show in one."""
    return _Reduction(calls).run()


class _Reduction:
    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.attempts = 0

    def run(self) -> Calls | None:
        expected = Expected.of(self.calls)
        verdicts = expected.judge(self.calls.run(self.calls.compiled(None).run), self.calls.written())
        whole = static(self.calls, expected.eager)
        for name in (name for name, verdict in verdicts.items() if not verdict.ok):
            kind, number = name.split()[:2]
            node = _results(self.calls.module)[int(number)] if kind == "result" else self._write_to(int(number))
            best = self._smallest(node, expected.eager) if isinstance(node, fx.Node) else None
            if best is not None:
                return best
        return whole if self.is_wrong(whole) else None

    def _write_to(self, argument: int) -> fx.Node | None:
        """The call that writes an argument."""
        places = [n for n in self.calls.module.graph.nodes if n.op == "placeholder"]
        written = [n for n in _writes(self.calls.module) if n.args[0] is places[argument]]
        return written[-1] if written else None

    def _smallest(self, wrong: fx.Node, eager: Results) -> Calls | None:
        order = _ancestors(self.calls.module, [wrong], eager.values)
        if not order or not self.is_wrong(cut(self.calls, eager, [wrong])):
            return None
        end = _first(len(order), lambda i: self.is_wrong(cut(self.calls, eager, [order[i]])), len(order) - 1)
        target = self._wrong_input(order[end], eager)
        before = _ancestors(self.calls.module, [target], eager.values)
        best = cut(self.calls, eager, [target])

        def starts_later(i: int) -> bool:
            nonlocal best
            kept = before[len(before) - 1 - i :]
            whole = [n.args[0] for n in kept if n.target is operator.getitem]  # with the call that made the tuple
            attempt = cut(self.calls, eager, [target], keep={*kept, *whole})  # type: ignore[arg-type]
            if self.is_wrong(attempt):
                best = attempt
                return True
            return False

        _first(len(before), starts_later, len(before) - 1)
        return best

    def _wrong_input(self, node: fx.Node, eager: Results) -> fx.Node:
        """Up the graph from a wrong value, as long as something it is computed from is wrong, too."""
        for source in node.all_input_nodes:
            made_here = source.op == "call_function" and _is_tensor(eager.values.get(source))
            if made_here and self.is_wrong(cut(self.calls, eager, [source])):
                return self._wrong_input(source, eager)
        return node

    def is_wrong(self, calls: Calls | None) -> bool:
        if calls is None or self.attempts >= _MOST_ATTEMPTS:
            return False
        self.attempts += 1
        return wrong(calls)


def wrong(calls: Calls, fuel: int | None = None) -> bool:
    try:
        return is_wrong(Expected.of(calls).judge(calls.run(calls.compiled(fuel).run), calls.written()))
    except Exception:  # a graph that cannot be run or compiled shows nothing
        return False


def with_seeded_inputs(calls: Calls, make: Callable[[Argument, int], Argument]) -> Calls | None:
    """The same graph on inputs that a seed makes, if it is wrong on those, too."""
    other = dataclasses.replace(calls, arguments=[make(a, seed) for seed, a in enumerate(calls.arguments)])
    other.module = annotated(calls.module, other.arguments)
    return other if wrong(other) else None


# --- cutting ----------------------------------------------------------------------------------------------------


def static(calls: Calls, eager: Results) -> Calls | None:
    """The whole graph with every size as the number it was."""
    nodes = [n for n in _results(calls.module) if isinstance(n, fx.Node) and _is_tensor(eager.values.get(n))]
    return cut(calls, eager, nodes, effects=_writes(calls.module))


def cut(
    calls: Calls,
    eager: Results,
    results: Sequence[fx.Node],
    keep: set[fx.Node] | None = None,
    effects: Sequence[fx.Node] = (),
) -> Calls | None:
    """The part of the graph that computes `results`. Calls outside `keep` become inputs, with the values eager gave
    them; sizes become numbers. None where an input would have to be a tuple."""
    values = eager.values
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    arguments: list[Argument] = []
    given = dict(zip((n for n in calls.module.graph.nodes if n.op == "placeholder"), calls.arguments, strict=True))

    def literal(n: fx.Node) -> Any:
        return new[n] if n in new else values[n]  # a size is a plain number here

    for node in _needed(calls.module, [*results, *effects], values, keep):
        value = given.get(node, values[node])
        if node.op == "call_function" and (keep is None or node in keep):
            new[node] = graph.node_copy(node, literal)
        elif _is_tensor(value):
            new[node] = graph.placeholder(node.name.lower())
            arguments.append(value)
        else:
            return None
    outputs = tuple(new[n] for n in results if n in new and n.target is not torch.ops.aten.copy_.default)
    graph.output(outputs)
    arguments = copied(arguments)
    module = annotated(fx.GraphModule({}, graph), arguments)
    return Calls(module, arguments, calls.kind, calls.options)


def annotated(module: fx.GraphModule, arguments: Sequence[Argument]) -> fx.GraphModule:
    """With the values that it computes where the importer looks for types, shapes and shared memory."""
    interpreter = fx.Interpreter(module, garbage_collect_values=False)
    with torch.no_grad(), same_draws():
        interpreter.run(*copied(arguments))
    for node, value in interpreter.env.items():
        node.meta["val"] = value
    return module


def _writes(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if n.target is torch.ops.aten.copy_.default]


def _results(module: fx.GraphModule) -> list[Any]:
    output = next(n for n in module.graph.nodes if n.op == "output")
    results = output.args[0]
    return list(results) if isinstance(results, tuple | list) else [results]


def _needed(
    module: fx.GraphModule, results: Iterable[fx.Node], values: Mapping[fx.Node, Any], keep: set[fx.Node] | None
) -> list[fx.Node]:
    wanted: set[fx.Node] = set()
    stack = list(results)
    while stack:
        node = stack.pop()
        if node in wanted or isinstance(values.get(node), int | float | bool | None):
            continue
        wanted.add(node)
        if keep is None or node in keep:
            stack.extend(node.all_input_nodes)
    return [n for n in module.graph.nodes if n in wanted]


def _ancestors(module: fx.GraphModule, results: list[fx.Node], values: Mapping[fx.Node, Any]) -> list[fx.Node]:
    """Calls that `results` depend on, themselves included, whose value is one tensor, in order."""
    needed = _needed(module, results, values, None)
    return [n for n in needed if n.op == "call_function" and _is_tensor(values.get(n))]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _first(count: int, holds: Callable[[int], bool], known: int) -> int:
    """The smallest i with holds(i), by halving; `known` is one that holds."""
    low, high = 0, min(known, count - 1)
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return high
