"""A case is data: a program, the calls that are made of it, and how it is compiled. Everything here prints and travels
as JSON, and is enough to run the case again."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

# What an operation does to the numbers it is given.
Exactness = Literal["exact", "rounded", "approximate"]
NAME = re.compile(r"\b(?:in|v)\d+\b")  # of a value, in a program's text
_FLOAT_TYPES = re.compile(r"torch\.(bfloat16|float16|float32)\b")


@dataclass(frozen=True)
class Step:
    """One line of a program: `target = template.format(*args)`, or a statement where there is no target.

    `exact` has no rounding (or one that the language defines: casts, integers), `rounded` rounds its result once,
    `approximate` may sum in any order. `scope` is a `with` line that the step stands under."""

    target: str
    template: str
    args: tuple[str, ...]
    exactness: Exactness = "exact"
    scope: str = ""
    writes: bool = False  # changes args[0] in place

    def line(self, noisy: bool = False, wide: bool = False) -> str:
        perturbed = noisy and self.exactness != "exact"
        around = "_w" if self.exactness == "approximate" else "_g"
        args = [f"{around}({a})" if noisy and not self.writes else a for a in self.args]
        text = self.template.format(*args)
        if self.target:
            # What an operation is made of rounds, too: the whole step is run where each of them is perturbed.
            noise = f"_a(lambda: {text})" if self.exactness == "approximate" else f"_n({text})"
            text = f"{self.target} = " + (noise if perturbed else text)
        elif perturbed:
            text = f"{text}; _n({self.args[0]})"
        if wide:
            text = _FLOAT_TYPES.sub("torch.float64", text)
        scope = "" if wide and "autocast" in self.scope else self.scope
        return f"{scope}: {text}" if scope else text


@dataclass(frozen=True)
class Member:
    """A submodule, parameter or buffer of a program that is a module."""

    name: str
    text: str
    kind: Literal["module", "buffer"] = "module"

    def line(self, wide: bool) -> str:
        text = _FLOAT_TYPES.sub("torch.float64", self.text) if wide else self.text
        if self.kind == "buffer":
            return f'self.register_buffer("{self.name}", {text})'
        return f"self.{self.name} = {text}"


@dataclass(frozen=True)
class Program:
    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]
    shape: Literal["tuple", "single", "dict", "list"] = "tuple"
    members: tuple[Member, ...] = ()
    is_module: bool = False

    def text(self, noisy: bool = False, wide: bool = False) -> str:
        body = [*(s.line(noisy, wide) for s in self.steps), f"return {self._returned()}"]
        if not self.is_module:
            return "\n".join([f"def f({', '.join(self.inputs)}):", *("    " + line for line in body)])
        made = ["super().__init__()", *(m.line(wide) for m in self.members)]
        return "\n".join(
            [
                "class M(torch.nn.Module):",
                "    def __init__(self):",
                *("        " + line for line in made),
                f"    def forward({', '.join(('self', *self.inputs))}):",
                *("        " + line for line in body),
            ]
        )

    def _returned(self) -> str:
        if self.shape == "single" and len(self.results) == 1:
            return self.results[0]
        if self.shape == "dict":
            return "{" + ", ".join(f'"r{k}": {r}' for k, r in enumerate(self.results)) + "}"
        if self.shape == "list":
            return f"[{', '.join(self.results)}]"
        return f"({''.join(r + ', ' for r in self.results)})"

    def exact_values(self) -> set[str]:
        """The values that every right compiler must give bit for bit."""
        if any(s.writes and s.exactness != "exact" for s in self.steps):
            return set()
        exact = set(self.inputs)
        for step in self.steps:
            names = [n for a in step.args for n in NAME.findall(a)]
            fits = step.exactness == "exact" and all(n in exact for n in names) and "autocast" not in step.scope
            if step.writes and not fits:
                return set()
            if step.target and fits:
                exact |= set(step.target.split(", "))
        return exact

    @property
    def is_random(self) -> bool:
        steps = [s.template for s in self.steps if "training=False" not in s.template]
        text = "\n".join([*steps, *(m.text for m in self.members if "Drop" in m.text)])
        return any(word in text for word in ("dropout", "Dropout", "rand", "bernoulli"))


@dataclass(frozen=True)
class Storage:
    dtype: str
    size: int
    kind: str  # of values: see values.py
    seed: int


@dataclass(frozen=True)
class Arg:
    """A tensor over a storage, or a number, or the very object that an earlier argument is."""

    storage: int = -1
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    flags: tuple[str, ...] = ()  # grad, parameter, inference, neg, whole (no view)
    number: int | float | bool | None = None
    same_as: int = -1

    @property
    def is_tensor(self) -> bool:
        return self.number is None and self.same_as < 0


@dataclass(frozen=True)
class Action:
    """What happens before a call, as statements about `model` and `compiled`; with `ours`, only where we compile."""

    text: str
    ours: bool = False


# Of all results; of every other one; of one after the other, where eager can; twice; of the gradients, too.
Backward = Literal["", "once", "part", "turns", "retain", "double"]


@dataclass(frozen=True)
class Call:
    storages: tuple[Storage, ...]
    args: tuple[Arg, ...]
    seed: int
    mode: Literal["grad", "no_grad", "inference"] = "grad"
    backward: Backward = ""
    accumulate: bool = False  # gradients of the call before are kept
    threads: int = 1
    before: tuple[Action, ...] = ()


@dataclass(frozen=True)
class Case:
    program: Program
    calls: tuple[Call, ...]
    compile: dict[str, Any] = field(default_factory=dict)  # arguments of burnish.compile
    prelude: tuple[Call, ...] = ()  # calls of an earlier process with the same cache
    seed: int = 0  # of the parameters

    def dumps(self) -> str:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @property
    def texts(self) -> str:
        """What a reader should see of it."""
        lines = [self.program.text(), f"# compile({self.compile})"]
        for title, calls in (("prelude", self.prelude), ("call", self.calls)):
            for k, call in enumerate(calls):
                lines += [f"# {title} {k}: {call.mode} {call.backward} {[a.text for a in call.before]}"]
                lines += [f"#   {s}" for s in call.storages]
                lines += [f"#   {a}" for a in call.args]
        return "\n".join(lines)


def loads(text: str) -> Case:
    return from_data(json.loads(text))


def from_data(data: dict[str, Any]) -> Case:
    program = data["program"]
    return Case(
        Program(
            tuple(program["inputs"]),
            tuple(Step(**{**s, "args": tuple(s["args"])}) for s in program["steps"]),
            tuple(program["results"]),
            program["shape"],
            tuple(Member(**m) for m in program["members"]),
            program["is_module"],
        ),
        _calls(data["calls"]),
        data["compile"],
        _calls(data["prelude"]),
        data["seed"],
    )


def _calls(items: Iterable[dict[str, Any]]) -> tuple[Call, ...]:
    return tuple(_call(item) for item in items)


def _call(data: dict[str, Any]) -> Call:
    args = [{**a, **{k: tuple(a[k]) for k in ("shape", "stride", "flags")}} for a in data["args"]]
    return Call(
        **{
            **data,
            "storages": tuple(Storage(**s) for s in data["storages"]),
            "args": tuple(Arg(**a) for a in args),
            "before": tuple(Action(**a) for a in data["before"]),
        }
    )
