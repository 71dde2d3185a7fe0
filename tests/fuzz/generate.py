"""Random cases: a program that eager accepts, then a sequence of calls of it. A seed and a number make one case."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import torch
import torch.nn.functional as F
import torch.utils.checkpoint

from tests.fuzz.case import NAME, Action, Arg, Backward, Call, Case, Exactness, Member, Program, Step, Storage
from tests.fuzz.inputs import LAYOUTS, built, contiguous, extent, laid_out
from tests.fuzz.operations import STEPS, Refused, Test
from tests.fuzz.values import FLOATS, INTEGERS

LARGEST = 3000  # elements of any one value

# What eager may say to a step that does not fit.
_REFUSALS = (RuntimeError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError)

# What a case may contain; `--without` takes some away.
FEATURES: tuple[str, ...] = (
    "integers",
    "casts",
    "half",
    "double precision",
    "extreme",
    "offsets",
    "overlap",
    "alias",
    "same",
    "neg",
    "inference",
    "parameter",
    "whole",
    "gradients",
    "double",
    "retain",
    "part",
    "turns",
    "inplace",
    "module",
    "state",
    "replaced",
    "seal",
    "background",
    "threads",
    "rollback",
    "copy",
    "warm",
    "dynamic",
    "sizes",
    "random",
    "autocast",
    "breaks",
    "modes",
    "numbers",
    "bad index",
    "empty",
    "gate",
    "layouts",
    "higher",
)


@dataclass(frozen=True)
class Wishes:
    """What cases are to be like."""

    without: frozenset[str] = frozenset()
    focus: frozenset[str] = frozenset()  # in every case, and often
    mode: str | None = None  # of burnish.compile, for a GPU
    forced: float = 0.6  # share of cases whose compiled code has no referee
    device: str = "cpu"


def random_case(seed: int, number: int, wishes: Wishes | None = None) -> Case:
    """The case that a seed and a number stand for."""
    for attempt in range(50):
        rng = Random(f"{seed}/{number}/{attempt}")
        with contextlib.suppress(Refused), _quiet():
            return _CaseWriter(rng, wishes or Wishes()).case()
    raise RuntimeError(f"no case could be made of seed {seed}, number {number}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Writer:
    """A program under way, with the values that eager gives its names in the first call."""

    def __init__(self, rng: Random, wishes: Wishes) -> None:
        self.rng, self.wishes = rng, wishes
        share = 0.4 if wishes.focus else 0.75
        drawn = frozenset(f for f in FEATURES if f not in wishes.without and rng.random() < share)
        self.features = drawn | (wishes.focus - wishes.without)
        self.is_module = self.chance("module", 0.4)
        self.generic = self.has("sizes") and self.chance("dynamic", 0.3)  # no sizes in the text
        self.steps: list[Step] = []
        self.members: list[Member] = []
        self.inputs: list[str] = []
        self.args: list[Arg] = []
        self.storages: list[Storage] = []
        self.values: dict[str, torch.Tensor] = {}
        self.numbers: dict[str, Any] = {}
        self.object = torch.nn.Module()
        self.scope = {"torch": torch, "F": F, "math": math, "inf": math.inf, "nan": math.nan, "self": self.object}
        self.grows = rng.random() < 0.6 and self.has("gradients")
        self.breaks = False
        self.autocast = self.chance("autocast", 0.12)
        self.common = self._common_type()
        self.dims = [rng.choice([1, 2, 3, 4, 5, 7, 8, 16]) for _ in range(3)]
        if self.chance("empty", 0.1):
            self.dims[0] = 0
        elif rng.random() < 0.2:
            self.dims[0] = rng.choice([17, 33, 70, 130])

    def has(self, feature: str) -> bool:
        return feature in self.features

    def chance(self, feature: str, share: float) -> bool:
        """Whether something of a feature happens here: in half of the places where it is asked for."""
        if not self.has(feature):
            return False
        return self.rng.random() < (max(share, 0.5) if feature in self.wishes.focus else share)

    def need(self, feature: str) -> None:
        if not self.has(feature):
            raise Refused

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.values[name]

    # --- inputs -------------------------------------------------------------------------------------------------

    def _common_type(self) -> str:
        kinds = ["float32"] * 6
        if self.has("half"):
            kinds += ["bfloat16", "float16"]
        if self.has("double precision"):
            kinds += ["float64"]
        return self.rng.choice(kinds)

    def _type(self) -> str:
        others = ["bool"]
        if self.has("integers"):
            others += ["int64", "int64", "int32", "int16", "int8", "uint8"]
        if self.has("half") and self.has("casts"):
            others += ["bfloat16", "float64"]
        floats = 0.2 if "integers" in self.wishes.focus else 0.75 if self.grows else 0.6
        return self.common if self.rng.random() < floats else self.rng.choice(others)

    def value_kind(self) -> str:
        if not self.has("extreme"):
            return self.rng.choice(["small", "normal", "unit"])
        return self.rng.choice(
            ["small", "normal", "normal", "normal", "unit", "zeros", "special", "mixed", "nan", "huge", "tiny", "wide"]
        )

    def add_inputs(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self._add_input()
        if self.chance("numbers", 0.25):
            self._bind(Arg(number=self.rng.choice([2, 3, 1, 0, -1, -2, -3, 1.5, 0.25, -2.0, True, False])))
        if not any(t.is_floating_point() for t in self.values.values()) and self.grows:
            raise Refused

    def _add_input(self) -> None:
        tensors = [a for a in self.args if a.is_tensor]
        if tensors and self.chance("same", 0.06):
            self._bind(Arg(same_as=self.args.index(self.rng.choice(tensors))))
            return
        if tensors and self.chance("alias", 0.15):
            self._bind(self._overlapping(self.rng.choice(tensors)))
            return
        rank = self.rng.choice([0, 1, 1, 2, 2, 2, 3, 3, 4])
        shape = [self.rng.choice([*self.dims, self.dims[0], 1]) for _ in range(rank)]
        if tensors and self.rng.random() < 0.35:
            shape = list(self.rng.choice(tensors).shape)
        if math.prod(shape) > 1500:
            shape = shape[:1]
        dtype = self._type()
        stride, offset, size = laid_out(self.rng, shape, self._layout())
        self.storages.append(Storage(dtype, size, self.value_kind(), self.rng.randrange(1 << 20)))
        self._bind(Arg(len(self.storages) - 1, tuple(shape), stride, offset, self._flags(dtype)))

    def _layout(self) -> str:
        if not self.has("layouts"):
            return "plain"
        allowed = [
            n for n in LAYOUTS if (n != "windows" or self.has("overlap")) and (n != "offset" or self.has("offsets"))
        ]
        return self.rng.choice(["plain"] * 6 + allowed)

    def _flags(self, dtype: str) -> tuple[str, ...]:
        flags = []
        if dtype in FLOATS and self.grows and self.rng.random() < 0.6:
            flags.append("grad")
            if self.chance("parameter", 0.1):
                flags.append("parameter")
        elif dtype not in ("bool", "uint8") and self.chance("neg", 0.04):
            flags.append("neg")
        elif self.chance("inference", 0.03):
            flags.append("inference")
        if self.chance("whole", 0.4):
            flags.append("whole")
        return tuple(flags)

    def _overlapping(self, other: Arg) -> Arg:
        """Another tensor over the same storage: beside it, or partly or wholly the same elements."""
        storage = self.storages[other.storage]
        n = math.prod(other.shape)
        flags = tuple(f for f in other.flags if f == "whole")
        if n and self.rng.random() < 0.5:
            shift = self.rng.choice([0, 1, n // 2, n, extent(other.shape, other.stride)])
            need = other.offset + shift + extent(other.shape, other.stride)
            self.storages[other.storage] = dataclasses.replace(storage, size=max(storage.size, need))
            self._rebuild()
            return dataclasses.replace(other, offset=other.offset + shift, flags=flags)
        size = self.rng.randint(0, storage.size)
        return Arg(other.storage, (size,), (1,), self.rng.randint(0, storage.size - size), flags)

    def _rebuild(self) -> None:
        """A storage has grown: what was made of it is made again."""
        args = built(self._call())
        self.values = {n: a for n, a in zip(self.inputs, args, strict=True) if isinstance(a, torch.Tensor)}

    def _call(self) -> Call:
        return Call(tuple(self.storages), tuple(self.args), 0)

    def _bind(self, arg: Arg) -> str:
        name = f"in{len(self.inputs)}"
        self.inputs.append(name)
        self.args.append(arg)
        value = built(self._call())[-1]
        if arg.same_as >= 0:
            value = self.values[self.inputs[arg.same_as]]
        if isinstance(value, torch.Tensor):
            self.values[name] = value
        else:
            self.numbers[name] = value
        if arg.is_tensor and sum(a.storage == arg.storage for a in self.args) > 1:
            self._rebuild()
        return name

    def index_input(self, size: int, shape: Sequence[int], distinct: bool) -> str:
        if self.steps and any(s.writes for s in self.steps) and len(self.inputs) > 5:
            raise Refused
        beyond = self.chance("bad index", 0.02)
        kind = f"{'beyond' if beyond else 'order' if distinct else 'index'}:{size}"
        self.storages.append(Storage("int64", math.prod(shape), kind, self.rng.randrange(1 << 20)))
        held = dict(self.values)
        name = self._bind(Arg(len(self.storages) - 1, tuple(shape), contiguous(shape)))
        self.values = {**held, name: self.values[name]}
        return name

    def tensor_inputs(self) -> list[str]:
        return [n for n in self.inputs if n in self.values]

    # --- steps --------------------------------------------------------------------------------------------------

    def member(
        self, text: str, dtype: torch.dtype = torch.float32, kind: Literal["module", "buffer"] = "module"
    ) -> str:
        if not self.is_module or (kind == "buffer" and not self.has("state")):
            raise Refused
        name = f"m{len(self.members)}"
        if dtype is not torch.float32:
            text = text[:-1] + f".to({dtype}))" if text.startswith("torch.nn.Parameter") else f"{text}.to({dtype})"
        made = eval(text, dict(self.scope))
        if kind == "buffer":
            self.object.register_buffer(name, made)
        else:
            setattr(self.object, name, made)
        self.members.append(Member(name, text, kind))
        return f"self.{name}"

    def pick(self, wanted: Test) -> str:
        found = [n for n, t in self.values.items() if wanted(t)]
        if not found:
            raise Refused
        return self.rng.choice(found[-4:] if self.rng.random() < 0.6 else found)

    def number(self, name: str) -> str:
        whole = not self.values[name].is_floating_point()
        return str(self.rng.choice([0, 1, 2, -1, 3] if whole else [0.5, 1.0, -2.0, 0.25, 0.1]))

    def emit(self, template: str, *args: str, exactness: Exactness = "exact") -> str:
        step = Step(f"v{len(self.steps)}", template, args, exactness, self._scope())
        made = self._tried(lambda: exec(step.line(), self.scope, self._names))
        if not isinstance(made := self._names.get(step.target), torch.Tensor) or made.numel() > LARGEST:
            raise Refused
        self.values[step.target] = made
        self.steps.append(step)
        return step.target

    def emit_statement(self, template: str, *args: str, exactness: Exactness = "exact", writes: bool = True) -> None:
        step = Step("", template, args, exactness, "", writes)
        held = {n: t.shape for n, t in self.values.items()}
        self._tried(lambda: exec(step.line(), self.scope, self._names))
        if any(self.values[n].numel() > LARGEST for n in held):
            raise Refused
        self.steps.append(step)

    def _tried(self, run: Callable[[], None]) -> None:
        self._names: dict[str, Any] = {**self.values, **self.numbers}
        try:
            with torch.set_grad_enabled(self.grows):
                run()
        except _REFUSALS:
            raise Refused from None

    def _scope(self) -> str:
        if self.autocast and self.rng.random() < 0.5:
            return 'with torch.autocast("cpu", torch.bfloat16)'
        if self.grows and self.rng.random() < 0.03:
            return "with torch.no_grad()"
        return ""

    def add_steps(self) -> None:
        steps, weights = zip(*STEPS, strict=True)
        for _ in range(self.rng.choice([1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25])):
            for _ in range(30):
                count = len(self.steps)
                try:
                    self.rng.choices(steps, weights)[0](self)
                    break
                except Refused:
                    del self.steps[count:]

    def program(self) -> Program:
        self.add_inputs()
        self.add_steps()
        if not self.steps:
            raise Refused
        made = [n for n in self.values if n not in self.inputs] or self.tensor_inputs()
        if not made:
            raise Refused
        shape = self.rng.choice(["tuple"] * 5 + ["single", "dict", "list"])
        if self.rng.random() < 0.4:
            results = made  # everything: each step is seen
        else:
            results = [made[-1], *self.rng.sample(list(self.values), min(self.rng.randint(0, 3), len(self.values)))]
        if shape == "single":
            results = results[:1]
        program = Program(
            tuple(self.inputs), tuple(self.steps), tuple(results), shape, tuple(self.members), self.is_module
        )
        program = without_unused(program)
        if not program.steps:
            raise Refused
        return program


def without_unused(program: Program) -> Program:
    """Without steps that nothing reads and that write nothing, and members that no step mentions: what a compiler need
    not do, it need not fail at either."""
    needed, kept = set(program.results), []
    for step in reversed(program.steps):
        if step.target in needed or not step.target:
            needed |= {name for arg in step.args for name in NAME.findall(arg)}
            kept.append(step)
    text = "\n".join(s.line() for s in kept)
    members = tuple(m for m in program.members if re.search(rf"self\.{m.name}\b", text))
    return dataclasses.replace(program, steps=tuple(reversed(kept)), members=members)


class _CaseWriter:
    """A program, then its calls."""

    def __init__(self, rng: Random, wishes: Wishes) -> None:
        self.rng, self.wishes = rng, wishes
        self.writer = Writer(rng, wishes)
        self.has, self.chance = self.writer.has, self.writer.chance

    def case(self) -> Case:
        program = self.writer.program()
        first = self._first(program)
        calls = [first]
        for _ in range(self.rng.choice([0, 1, 1, 2, 2, 3, 4])):
            calls.append(self._next(program, calls))
        prelude: tuple[Call, ...] = ()
        if self.chance("warm", 0.15):
            prelude = (self._plain(first),) * self.rng.choice([1, 2])
        return Case(program, tuple(calls), self._compile(), prelude, self.rng.randrange(1 << 20))

    def _compile(self) -> dict[str, Any]:
        chosen: dict[str, Any] = {}
        if not self.has("gate") or self.rng.random() < self.wishes.forced:
            chosen = {"gate": False, "verify": "off"}
        if self.has("dynamic"):
            dynamic = self.rng.choice([None, None, None, True, False])
            chosen |= {} if dynamic is None else {"dynamic": dynamic}
        if self.chance("background", 0.08):
            chosen["background"] = True
        if self.wishes.mode not in (None, "default"):
            chosen["mode"] = self.wishes.mode
        return chosen

    def _first(self, program: Program) -> Call:
        w = self.writer
        mode: Literal["grad", "no_grad", "inference"] = "grad"
        if not w.grows and self.has("modes"):
            mode = self.rng.choice(["grad", "no_grad", "inference"])
        return Call(tuple(w.storages), tuple(w.args), self.rng.randrange(1 << 20), mode, self._backward())

    def _backward(self) -> Backward:
        if not self.writer.grows:
            return ""
        kinds: list[Backward] = ["once"] * 8 + [""]
        others: tuple[tuple[Backward, int], ...] = (("retain", 1), ("double", 1), ("part", 2), ("turns", 1))
        for kind, times in others:
            if self.has(kind):
                kinds += [kind] * (8 if kind in self.wishes.focus else times)
        return self.rng.choice(kinds)

    # --- later calls --------------------------------------------------------------------------------------------

    def _next(self, program: Program, calls: list[Call]) -> Call:
        call = dataclasses.replace(self.rng.choice(calls), before=(), threads=1, seed=self.rng.randrange(1 << 20))
        call = self._fresh(call)
        changes = self._changes()
        for change in self.rng.sample(changes, min(self.rng.randint(0, 3), len(changes))):
            call = change(call)
        call = dataclasses.replace(
            call, before=tuple(self._actions(program)), backward=self._backward() or call.backward
        )
        if self.writer.grows and self.chance("modes", 0.2):
            call = dataclasses.replace(call, mode=self.rng.choice(["grad", "no_grad", "inference"]))
        threaded = self.has("threads") and not program.is_module and not program.is_random and self.rng.random() < 0.05
        threaded &= not any("jvp" in step.template for step in program.steps)  # torch counts its levels for all threads
        return dataclasses.replace(call, threads=2 if threaded else 1, accumulate=self.rng.random() < 0.2)

    def _changes(self) -> list[Callable[[Call], Call]]:
        changes: list[Callable[[Call], Call]] = [self._other_kinds]
        for feature, change in (
            ("offsets", self._moved),
            ("layouts", self._relaid),
            ("neg", self._negated),
            ("gradients", self._thawed),
            ("alias", self._aliased),
            ("same", self._same),
            ("numbers", self._numbers),
        ):
            if self.has(feature):
                changes.append(change)
        if self.writer.generic:
            changes += [self._resized] * 3
        return changes

    def _fresh(self, call: Call) -> Call:
        storages = [dataclasses.replace(s, seed=self.rng.randrange(1 << 20)) for s in call.storages]
        return dataclasses.replace(call, storages=tuple(storages))

    def _other_kinds(self, call: Call) -> Call:
        storages = [
            s if ":" in s.kind else dataclasses.replace(s, kind=self.writer.value_kind()) for s in call.storages
        ]
        if self.chance("bad index", 0.1):
            storages = [dataclasses.replace(s, kind=s.kind.replace("index:", "beyond:")) for s in storages]
        return dataclasses.replace(call, storages=tuple(storages))

    def _moved(self, call: Call) -> Call:
        shift = self.rng.choice([1, 2, 3, 4, 16, 32])
        storages = [dataclasses.replace(s, size=s.size + shift) for s in call.storages]
        args = [dataclasses.replace(a, offset=a.offset + shift) if a.is_tensor else a for a in call.args]
        return dataclasses.replace(call, storages=tuple(storages), args=tuple(args))

    def _relaid(self, call: Call) -> Call:
        k = self._tensor(call)
        return self._alone(call, k, self.rng.choice(LAYOUTS[:-3]))

    def _tensor(self, call: Call) -> int:
        found = [k for k, a in enumerate(call.args) if a.is_tensor]
        if not found:
            raise Refused
        return self.rng.choice(found)

    def _alone(self, call: Call, k: int, layout: str, shape: tuple[int, ...] | None = None) -> Call:
        """Argument k over a storage of its own."""
        arg = call.args[k]
        shape = arg.shape if shape is None else shape
        stride, offset, size = laid_out(self.rng, shape, layout)
        storage = dataclasses.replace(call.storages[arg.storage], size=size)
        args = list(call.args)
        args[k] = dataclasses.replace(arg, storage=len(call.storages), shape=shape, stride=stride, offset=offset)
        return dataclasses.replace(call, storages=(*call.storages, storage), args=tuple(args))

    def _flagged(self, call: Call, flag: str, fits: Callable[[str], bool]) -> Call:
        k = self._tensor(call)
        arg = call.args[k]
        if not fits(call.storages[arg.storage].dtype):
            return call
        flags = tuple(f for f in arg.flags if f != flag) if flag in arg.flags else (*arg.flags, flag)
        args = (*call.args[:k], dataclasses.replace(arg, flags=flags), *call.args[k + 1 :])
        return dataclasses.replace(call, args=args)

    def _negated(self, call: Call) -> Call:
        if self.rng.random() < 0.5:
            return call
        return self._flagged(call, "neg", lambda dtype: dtype in FLOATS or (dtype in INTEGERS and dtype != "uint8"))

    def _thawed(self, call: Call) -> Call:
        return self._flagged(call, "grad", lambda dtype: dtype in FLOATS) if self.writer.grows else call

    def _aliased(self, call: Call) -> Call:
        """One argument over another's storage, as far as that is large enough."""
        k, j = self._tensor(call), self._tensor(call)
        arg, other = call.args[k], call.args[j]
        if k == j or call.storages[arg.storage].dtype != call.storages[other.storage].dtype or "grad" in arg.flags:
            return call
        shift = self.rng.choice([0, 1, math.prod(arg.shape) // 2, math.prod(arg.shape)])
        storages = list(call.storages)
        held = storages[other.storage]
        moved = dataclasses.replace(arg, storage=other.storage, offset=other.offset + shift)
        need = moved.offset + extent(moved.shape, moved.stride)
        storages[other.storage] = dataclasses.replace(held, size=max(held.size, need))
        return dataclasses.replace(call, storages=tuple(storages), args=(*call.args[:k], moved, *call.args[k + 1 :]))

    def _same(self, call: Call) -> Call:
        k, j = self._tensor(call), self._tensor(call)
        a, b = call.args[k], call.args[j]
        alike = a.shape == b.shape and call.storages[a.storage].dtype == call.storages[b.storage].dtype
        if j >= k or not alike or ":" in call.storages[a.storage].kind:
            return call
        if any(other.same_as == k for other in call.args):
            return call
        return dataclasses.replace(call, args=(*call.args[:k], Arg(same_as=j), *call.args[k + 1 :]))

    def _numbers(self, call: Call) -> Call:
        values = (0, 1, 2, 3.5, -1.25, -2.5)
        args = [
            a if a.number is None else Arg(number=self.rng.choice([type(a.number)(v) for v in values]))
            for a in call.args
        ]
        return dataclasses.replace(call, args=tuple(args))

    def _resized(self, call: Call) -> Call:
        """One of the sizes that inputs share becomes another, wherever it stands."""
        sizes = sorted({d for a in call.args if a.is_tensor for d in a.shape if d > 1})
        if not sizes:
            return call
        old, new = self.rng.choice(sizes), self.rng.choice([1, 2, 3, 4, 5, 6, 9, 11, 20, 64])
        for k, arg in enumerate(call.args):
            if arg.is_tensor and old in arg.shape and ":" not in call.storages[arg.storage].kind:
                shape = tuple(new if d == old else d for d in arg.shape)
                if math.prod(shape) <= LARGEST:
                    call = self._alone(call, k, "plain", shape)
        return call

    # --- between calls ------------------------------------------------------------------------------------------

    def _actions(self, program: Program) -> list[Action]:
        found: list[Action] = []
        if program.is_module and self.rng.random() < 0.4:
            found.append(self._model_action(program))
        for feature, share, texts in _OURS:
            if self.chance(feature, share):
                found.append(Action(self.rng.choice(texts), True))
        if program.is_module and self.chance("copy", 0.04):
            found.append(Action("compiled = copy.deepcopy(compiled); model = compiled"))
        return found

    def _model_action(self, program: Program) -> Action:
        texts = list(_TRAINING)
        if self.has("state"):
            texts += _IN_PLACE
        if self.has("replaced"):
            texts += _REPLACED
        return Action(self.rng.choice(texts))

    def _plain(self, call: Call) -> Call:
        """The same shapes and types, as an ordinary caller would pass them."""
        for k, arg in enumerate(call.args):
            if arg.is_tensor:
                call = self._alone(call, k, "plain")
        args = [dataclasses.replace(a, flags=tuple(f for f in a.flags if f != "neg")) for a in call.args]
        kinds = [s if ":" in s.kind else dataclasses.replace(s, kind="unit") for s in call.storages]
        backward: Backward = "once" if call.backward else ""
        return dataclasses.replace(call, args=tuple(args), storages=tuple(kinds), backward=backward)


_OURS = (
    ("seal", 0.12, ("burnish.seal(compiled)",)),
    ("seal", 0.04, ("compiled.burnish.unseal()",)),
    ("rollback", 0.04, ("compiled.burnish.rollback()", "compiled.burnish.retry()", "compiled.burnish.reset()")),
    ("background", 0.2, ("compiled.burnish.wait()",)),
)
_FLOATING = "[p for p in [*model.parameters(), *model.buffers()] if p.is_floating_point()]"
_DOUBLED = "{k: v * 2 if v.is_floating_point() else v.clone() for k, v in model.state_dict().items()}"
_TRAINING = (
    "model.train()",
    "model.eval()",
    "[m.eval() for m in model.children()]",
    "[m.train() for m in model.children()]",
    "[p.requires_grad_(False) for p in model.parameters()]",
    "[p.requires_grad_(True) for p in model.parameters()]",
)
_IN_PLACE = (
    f"with torch.no_grad(): [p.mul_(1.5) for p in {_FLOATING}]",
    f"with torch.no_grad(): [p.add_(1) for p in {_FLOATING}]",
    f"for p in {_FLOATING}: p.data = p.data * 0.5",
)
_REPLACED = (
    f"for p in {_FLOATING}: p.data = (p.data * 0.5).mT.contiguous().mT if p.dim() > 1 else p.data * 0.5",
    f"for p in {_FLOATING}: p.data = torch.cat([p.data, p.data * 2])[: p.shape[0]] if p.dim() else p.data * 2",
    f"for p in {_FLOATING}: p.data = torch.stack([p.data * 2, p.data], -1)[..., 0]",
    f"model.load_state_dict({_DOUBLED}, assign=True)",
    f"model.load_state_dict({_DOUBLED})",
    "for m in model.modules():\n"
    "    for n, p in list(m._parameters.items()):\n"
    "        setattr(m, n, p if p is None else torch.nn.Parameter(p.detach() * 3))",
    "model.double()",
    "for p in [p for p in model.parameters() if p.dim() > 1]: p.data = p.data[:1]",
)
