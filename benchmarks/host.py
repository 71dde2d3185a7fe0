"""Host time of a call, open and sealed, part by part, beside what launching its CUDA graph, or its few kernels, costs
alone.

    PYTHONPATH=. python3 -m benchmarks.host [OUT.json]

Every number is the median in microseconds over calls that alternate with those of the other rows, each after the device
has come to rest: `host` until the call returns, `wall` until the device is done, too. `beyond` is host time beyond the
launch by the driver. `Dynamo alone` is torch.compile with a backend whose graphs compute nothing: guards, loading what
the graph wants and building what the model returns. The program runs after each of its calls, untimed, so that caches
are as cold as for the others. What an open call takes beyond that, launch included, is printed, too.

Below are the parts of a sealed call, from the outside in; each is called by itself, and what a part has inside it is
taken off. On a CPU there is no graph, and the program stands for it.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

import burnish
from burnish.runtime.cuda import graph_launch
from burnish.runtime.cuda.launch import DRIVER_LIBRARY

_ROUNDS = 10
_CALLS = 30

Call = Callable[[], Any]


def _models(device: str) -> dict[str, tuple[torch.nn.Module, dict[str, torch.Tensor], torch.dtype]]:
    mlp = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh())
    found: dict[str, tuple[torch.nn.Module, dict[str, torch.Tensor], torch.dtype]] = {
        "MLP 64-64 b1": (mlp, {"input": torch.randn(1, 64)}, torch.float32)
    }
    try:
        from transformers import BertConfig, BertModel
    except ImportError:
        return found
    small = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 500}
    ids = torch.randint(0, 500, (1, 128 if device == "cuda" else 8))
    config = BertConfig(**({} if device == "cuda" else small))
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    found["BERT-base b1"] = (BertModel(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, dtype)
    return found


# -- measuring ------------------------------------------------------------------------------------------------------


def _alternating(calls: dict[str, Call], wait: Call, after: dict[str, Call]) -> dict[str, dict[str, float]]:
    """`after` is done after calls of that name, untimed."""
    taken: dict[str, dict[str, list[int]]] = {name: {"host": [], "wall": []} for name in calls}
    clock = time.perf_counter_ns
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            for _ in range(_CALLS):
                begin = clock()
                call()
                returned = clock()
                wait()
                taken[name]["wall"].append(clock() - begin)
                taken[name]["host"].append(returned - begin)
                if name in after:
                    after[name](), wait()
    return {name: {k: _us(statistics.median(v)) for k, v in each.items()} for name, each in taken.items()}


def _us(nanoseconds: float) -> float:
    return round(nanoseconds / 1000, 2)


# -- the parts of a sealed call -------------------------------------------------------------------------------------


def _graphed(compiled: Any) -> tuple[Any, Any] | None:
    """The object's program that was captured, and its graph."""
    for program in list(compiled.burnish.log._programs):
        for case in getattr(program, "_cases", {}).values():
            if case.captured is not None:
                return program, case.captured
    return None


def _direct(compiled: Any) -> Any:
    """The object's program that is launched without a graph."""
    return next((p for p in list(compiled.burnish.log._programs) if hasattr(p, "plan") and hasattr(p, "_made")), None)


def _parts_of_launches(program: Any, args: list[Any]) -> dict[str, Call]:
    stream = torch.cuda.current_stream().cuda_stream
    workspace = program._pool.acquire(stream)
    launch = workspace.direct or program._made(workspace)
    results = launch.results(stream)
    return {
        "program": lambda: program(list(args)),
        "replay": lambda: launch.run(args, results),  # the launches with their addresses
        "new results": lambda: launch._fresh(),
    }


def _seen(owner: type, call: Call) -> list[Any]:
    """The arguments that `owner` is called with during a call."""
    seen: list[Any] = []
    own = owner.__call__  # type: ignore[operator]

    def watch(self: Any, args: list[Any]) -> Any:
        seen.append(list(args))
        return own(self, args)

    with mock.patch.object(owner, "__call__", watch):
        call()
    return seen[0] if seen else []


def _route(sealed: Any, call: Call) -> Call | None:
    """What a sealed call goes to once it is known."""
    gone_to: list[tuple[Any, ...]] = []
    from burnish.capture.entry import unguarded

    own = unguarded.Unguarded.first

    def first(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = own(self, args, kwargs)
        gone_to.append((self.call, args, kwargs))
        return result

    with mock.patch.object(unguarded.Unguarded, "first", first):
        burnish.seal(sealed)
        call()
    if not gone_to:
        return None
    run, args, kwargs = gone_to[0]
    return lambda: run(*args, **kwargs)


def _parts_of_graph(program: Any, captured: Any, args: list[Any]) -> dict[str, Call]:
    device = program.pool.device
    stream = torch.cuda.current_stream(device).cuda_stream
    parts: dict[str, Call] = {
        "program": lambda: program(list(args)),
        "addresses": lambda: captured.fits(args),
        "replay by torch": lambda: captured.graph.replay(),
    }
    if captured.quick is None:  # otherwise C takes its turn
        parts["turn"] = lambda: program.pool.take_turn(captured)
    launch = captured.launch
    if launch is not None:
        results = launch.results(stream)
        alone = program._host.Launch(DRIVER_LIBRARY, captured.graph.raw_cuda_graph_exec(), [], [], [])
        parts["replay"] = lambda: alone.run([], [], stream)
        parts["copies and replay"] = lambda: launch.run(args, results, stream)
        fresh = program._host.Fresh(list(captured.results)) if captured.quick is not None else launch._fresh
        parts["new results"] = lambda: fresh()
    return parts


def _shares(row: dict[str, dict[str, float]]) -> dict[str, float]:
    """Host time of a sealed call by what it goes to."""
    at = {name: each["host"] for name, each in row.items()}
    route = at.get("route", 0.0)
    outside = {"comparing the call": at["sealed"] - route}
    if "program" not in at:
        return _rounded({**outside, "compiled code": route})
    whole = at.get("copies and replay", at.get("replay by torch", at.get("replay", 0.0)))
    replay = at.get("replay", whole)
    inside = {name: at.get(name, 0.0) for name in ("addresses", "turn", "new results")}
    inside |= {"copies": whole - replay, "replay": replay}
    inside["rest of the program"] = at["program"] - sum(inside.values())
    checking = at.get("assumptions", 0.0)
    loading = {"checking assumptions": checking, "loading, building results": route - at["program"] - checking}
    return _rounded({**outside, **loading, **inside})


def _nothing(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """A backend: the graph's results are made once, and never computed."""
    outputs = [node.meta["example_value"] for node in graph.graph.output_node().args[0]]
    made = tuple(torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in outputs)
    return lambda *inputs: made


def _checks(compiled: Any, call: Call) -> dict[str, Call]:
    """The native look at what the program assumes of its inputs."""
    from burnish.runtime.host import checks
    from burnish.runtime.host.extension import host_if_built

    (variant, *_), host = compiled.burnish.log.variants(), host_if_built()
    native = checks.native_check(variant.facts.assumptions, host) if host is not None else None
    if native is None:
        return {}
    seen: list[Any] = []
    serving = variant._serving

    def watch(args: list[Any]) -> Any:
        seen.append(list(args))
        return serving(args)

    variant._put(watch)
    call()
    variant._put(serving)
    return {"assumptions": lambda: native.hold(seen[0])} if seen else {}


def _rounded(us: dict[str, float]) -> dict[str, float]:
    return {name: round(each, 2) for name, each in us.items()}


def measure(name: str, model: torch.nn.Module, inputs: dict[str, torch.Tensor], device: str) -> dict[str, Any]:
    wait: Call = torch.cuda.synchronize if device == "cuda" else lambda: None
    settings: dict[str, Any] = {"mode": "reduce-overhead", "gate": False, "verify": "off"}
    opened, sealed = (burnish.compile(model, name=f"{name} {k}", **settings) for k in ("open", "sealed"))
    dynamo = torch.compile(model, backend=_nothing)
    calls: dict[str, Call] = {
        "eager": lambda: model(**inputs),
        "Dynamo alone": lambda: dynamo(**inputs),
        "open": lambda: opened(**inputs),
        "sealed": lambda: sealed(**inputs),
    }
    with torch.no_grad():
        for compiled in (dynamo, opened, sealed):
            for _ in range(4):
                compiled(**inputs)
        route = _route(sealed, calls["sealed"])
        for _ in range(4):
            calls["sealed"]()
        if route is not None:
            calls["route"] = route
        graphed = _graphed(sealed)
        if graphed is not None:
            calls |= _parts_of_graph(*graphed, _seen(type(graphed[0]), calls["sealed"]))
        elif (direct := _direct(sealed)) is not None:
            calls |= _parts_of_launches(direct, _seen(type(direct), calls["sealed"]))
        calls |= _checks(sealed, calls["sealed"])
        row = _alternating(calls, wait, {"Dynamo alone": calls.get("program", calls["sealed"])})
    alone = min((row[k]["host"] for k in ("replay", "replay by torch") if k in row), default=None)
    beyond = {} if alone is None else {k: round(row[k]["host"] - alone, 2) for k in ("open", "sealed")}
    notices = dict(burnish.stats(sealed).notices)
    if graphed is not None:
        captured = graphed[1]
        notices["calls made in C"] = int(captured.quick is not None)
        notices["copies in"], notices["copies out"] = len(captured.twins), sum(len(g) for g, _ in captured.copies_out)
        notices["kernel that copies"] = int(any(graph_launch._kernels.values()))
    if device == "cuda":  # on a CPU the call computes, too
        beyond["open, Dynamo"] = round(row["open"]["host"] - row["Dynamo alone"]["host"], 2)
    return {"model": name, "calls": row, "beyond": beyond, "sealed by part": _shares(row), "notices": notices}


# -- printing -------------------------------------------------------------------------------------------------------


def _print(row: dict[str, Any]) -> None:
    print(f"\n{row['model']}: microseconds")
    print(f"  {'':28}{'host':>9}{'wall':>9}{'beyond':>9}")
    for name, each in row["calls"].items():
        beyond = row["beyond"].get(name, "")
        print(f"  {name:28}{each['host']:9.2f}{each['wall']:9.2f}{beyond:>9}")
    if "open, Dynamo" in row["beyond"]:
        print(f"  an open call beyond Dynamo's own: {row['beyond']['open, Dynamo']:.2f}")
    print("  a sealed call by part:")
    for name, us in row["sealed by part"].items():
        print(f"    {name:26}{us:9.2f}")
    for notice, count in row["notices"].items():
        print(f"  {count} x {notice}")


def main(arguments: list[str]) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for name, (model, inputs, dtype) in _models(device).items():
        model = model.eval().to(device, dtype=dtype)
        placed = {k: x.to(device, dtype=dtype if x.is_floating_point() else None) for k, x in inputs.items()}
        rows.append(measure(name, model, placed, device))
        _print(rows[-1])
    if arguments:
        with open(arguments[0], "w") as file:
            json.dump({"device": device, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
