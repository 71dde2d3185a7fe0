"""The fuzzer itself: it sees what is wrong, does not cry wolf, makes cases small and prints what can be run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fuzz.case import Action, Arg, Call, Case, Program, Step, Storage, loads
from tests.fuzz.check import Report, check
from tests.fuzz.execute import Noise, Outcome, Side, run_side
from tests.fuzz.generate import Wishes, random_case
from tests.fuzz.inputs import built, with_values
from tests.fuzz.oracle import Find, is_minor, judged
from tests.fuzz.paste import pasted
from tests.fuzz.shrink import shrunk
from tests.fuzz.worker import Bench, lost

FORCED = {"gate": False, "verify": "off"}


def case_of(
    *steps: Step, dtype: str = "float32", kind: str = "normal", flags: tuple[str, ...] = (), **call: Any
) -> Case:
    made = Call((Storage(dtype, 12, kind, 5),), (Arg(0, (3, 4), (4, 1), 0, flags),), 1, **call)
    return Case(Program(("in0",), steps, (steps[-1].target,)), (made,), FORCED)


EXACT = case_of(Step("v0", "{0}.flip(0)", ("in0",)))
SUMMED = case_of(Step("v0", "{0}.sum()", ("in0",), "approximate"))


def outcomes(case: Case, folder: Path) -> list[Outcome]:
    return run_side(case, case.calls, Side(), folder)[0]


def with_result(found: list[Outcome], change: Any) -> list[Outcome]:
    record = found[0].records["result 0"]
    found[0].records["result 0"] = dataclasses.replace(record, tensor=change(record.tensor))
    return found


def test_a_case_is_what_its_numbers_say() -> None:
    assert [random_case(3, n) for n in range(20)] == [random_case(3, n) for n in range(20)]


def test_a_case_travels_as_text() -> None:
    assert all(loads(case.dumps()) == case for case in (random_case(4, n) for n in range(40)))


def test_a_kept_case_holds_its_numbers() -> None:
    for case in (random_case(4, n) for n in range(20)):
        for ours, theirs in zip(with_values(case).calls, case.calls, strict=True):
            pairs = zip(built(ours), built(theirs), strict=True)
            assert all(torch.equal(a, b) or torch.equal(a.isnan(), b.isnan()) for a, b in pairs if torch.is_tensor(a))


def test_eager_agrees_with_itself(tmp_path: Path) -> None:
    for number in range(25):
        case = random_case(5, number, Wishes(frozenset({"threads"})))
        assert judged(case, outcomes(case, tmp_path), tmp_path) == [], case.texts


def test_a_last_place_is_seen_where_everything_is_exact(tmp_path: Path) -> None:
    altered = with_result(outcomes(EXACT, tmp_path), lambda t: t.nextafter(torch.tensor(9.0)))
    assert [f.kind for f in judged(EXACT, altered, tmp_path)] == ["value"]


def test_a_last_place_is_allowed_in_a_sum(tmp_path: Path) -> None:
    altered = with_result(outcomes(SUMMED, tmp_path), lambda t: t.nextafter(torch.tensor(9.0)))
    assert judged(SUMMED, altered, tmp_path) == []


def test_an_error_is_seen_in_a_sum(tmp_path: Path) -> None:
    altered = with_result(outcomes(SUMMED, tmp_path), lambda t: t * 1.0001)
    assert [f.kind for f in judged(SUMMED, altered, tmp_path)] == ["value"]


def test_a_nan_is_seen(tmp_path: Path) -> None:
    altered = with_result(outcomes(SUMMED, tmp_path), lambda t: t * torch.nan)
    assert [f.kind for f in judged(SUMMED, altered, tmp_path)] == ["not finite"]


def test_what_rounding_decides_is_no_find(tmp_path: Path) -> None:
    """Whether a sum in another order is larger than the same sum."""
    case = case_of(
        Step("v0", "{0}.sum()", ("in0",), "approximate"),
        Step("v1", "{0}.mT.sum(0).sum()", ("in0",), "approximate"),
        Step("v2", "{0} > {1}", ("v0", "v1")),
    )
    altered = with_result(outcomes(case, tmp_path), lambda t: ~t)
    assert judged(case, altered, tmp_path) == []


def test_roundings_inside_a_step_are_seen(tmp_path: Path) -> None:
    """A product that autocast rounds to a half type, in front of an exponential: nothing but it is off by so much."""
    step = Step("v0", "({0} @ {0}.mT * 9).softmax(-1)", ("in0",), "approximate", "with torch.autocast('cpu')")
    case = case_of(step)
    found = outcomes(case, tmp_path)
    record = found[0].records["result 0"]
    found[0].records["result 0"] = dataclasses.replace(record, tensor=record.tensor * (1 + 2**-9))
    assert judged(case, found, tmp_path) == []


# A step, its input, and what eager itself may make of the result: erf near -1, as its rounding leaves it; a product
# whose factors come to zero before they meet the infinity; an element less itself.
INSIDE: dict[str, tuple[str, list[float], Any]] = {
    "gelu": ("F.gelu({0})", [-3.5], lambda t: t * 1.001),
    "its derivative": ("torch.func.grad(lambda t: F.gelu(t).sum())({0})", [-4.2], lambda t: t * 1.0002),
    "product": ("{0}.prod()", [torch.inf, 1e-30, 1e-30, 1e-30], lambda t: t * torch.nan),
    "product of rows": ("{0}.reshape(3, 4).prod(1)", [torch.inf, 1e-30, 1e-30, 1e-30], lambda t: t * torch.nan),
    "norm": ("F.group_norm({0}.reshape(1, 3, 4), 3).any()", [0.3] * 4 + [0.7] * 4 + [-1.1] * 4, lambda t: ~t),
    "norm of a batch": ("(F.instance_norm({0}[None]) != 0).any()", [0.3] * 4 + [0.7] * 4 + [-1.1] * 4, lambda t: ~t),
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_is_lost_inside_an_operation_is_no_find(name: str, tmp_path: Path) -> None:
    text, numbers, change = INSIDE[name]
    kind = f"={(numbers * 12)[:12]}".replace("inf", "Infinity")
    case = case_of(Step("v0", text, ("in0",), "approximate"), kind=kind)
    altered = with_result(outcomes(case, tmp_path), change)
    assert judged(case, altered, tmp_path) == []


def test_an_error_is_seen_in_a_gelu_and_in_a_norm(tmp_path: Path) -> None:
    for text in ("F.gelu({0})", "torch.func.grad(lambda t: F.gelu(t).sum())({0})", "F.group_norm({0}, 2)"):
        case = case_of(Step("v0", text, ("in0",), "approximate"))
        altered = with_result(outcomes(case, tmp_path), lambda t: t * 1.0001)
        assert [f.kind for f in judged(case, altered, tmp_path)] == ["value"]


def test_a_perturbed_run_adds_zeros_that_are_in_no_memory() -> None:
    """As gradients may be: torch asks a meta tensor what the sum looks like. A run that failed would show no spread."""
    with Noise(torch.Generator()).perturbing():
        assert (torch._efficientzerotensor((3,)) + torch.ones(3)).shape == (3,)


def test_working_where_eager_has_no_kernel_is_minor() -> None:
    said = "eager raises NotImplementedError: \"dot\" not implemented for 'Int'"
    assert is_minor(Find("no exception", 0, "forward", said))
    assert not is_minor(Find("no exception", 0, "forward", "eager raises IndexError: index out of range in self"))


def test_a_process_that_lost_its_device_is_not_asked_again() -> None:
    assert lost(Report([Find("exception", 0, "forward", "AcceleratorError: CUDA error: device-side assert triggered")]))
    assert not lost(Report([Find("exception", 0, "forward", "IndexError: index out of range in self")]))


def test_a_missing_exception_is_seen(tmp_path: Path) -> None:
    case = case_of(Step("v0", "{0}.reshape(5, 5)", ("in0",)))
    fine = outcomes(EXACT, tmp_path)
    assert [f.kind for f in judged(case, fine, tmp_path)] == ["no exception"]


def test_strides_and_gradients_are_compared(tmp_path: Path) -> None:
    case = case_of(Step("v0", "{0} * 2", ("in0",), "rounded"), flags=("grad",), backward="once")
    found = outcomes(case, tmp_path)
    record = found[0].records["gradient of argument 0"]
    found[0].records["gradient of argument 0"] = dataclasses.replace(record, tensor=record.tensor * 2)
    assert [f.where for f in judged(case, found, tmp_path)] == ["gradient of argument 0"]


def test_shrinking_keeps_what_fails_and_little_else() -> None:
    steps = [Step(f"v{k}", "{0} + 1", (f"v{k - 1}" if k else "in0",), "rounded") for k in range(6)]
    steps.insert(3, Step("v9", "{0}.tanh()", ("v2",), "approximate"))
    steps[4] = dataclasses.replace(steps[4], args=("v9",))
    case = dataclasses.replace(case_of(*steps), calls=case_of(*steps).calls * 4)
    small = shrunk(case, lambda c: "tanh" in c.program.text() and len(c.calls) > 1, seconds=60)
    assert [s.template for s in small.program.steps] == ["{0}.tanh()"]
    assert len(small.calls) == 2
    assert small.calls[0].args[0].shape == (1, 1)


def test_what_is_pasted_runs(tmp_path: Path) -> None:
    case = case_of(Step("v0", "{0}.sigmoid()", ("in0",), "approximate"), flags=("grad",), backward="double")
    for each in (case, dataclasses.replace(random_case(6, 1), compile={"disable": True})):
        scope: dict[str, Any] = {}
        exec(pasted(dataclasses.replace(each, compile={"disable": True}), "Not found."), scope)
        scope["test_found"]()


def test_a_right_program_is_not_reported() -> None:
    assert check(SUMMED).finds == []


@pytest.mark.slow
def test_a_crash_is_a_find() -> None:
    aborts = Action("__import__('os').abort()", ours=True)
    bench = Bench()
    report = bench.run(case_of(Step("v0", "{0}.flip(0)", ("in0",)), before=(aborts,)))
    bench.stop()
    assert [(f.kind, f.detail) for f in report.finds] == [("crash", "SIGABRT")]


@pytest.mark.slow
def test_a_crash_of_eager_is_none() -> None:
    bench = Bench()
    report = bench.run(case_of(Step("v0", "__import__('os').abort() or {0}", ("in0",))))
    bench.stop()
    assert report.finds == []
