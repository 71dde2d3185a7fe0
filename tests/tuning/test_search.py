"""The search: which form wins, what is skipped, what is remembered. Measuring is a fake; forms are the real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from burnish.codegen.triton.module import launch_forms
from burnish.observe.log import CompileLog
from burnish.runtime.cache.store import Cache
from burnish.runtime.cache.stored_program import packed, unpacked
from burnish.runtime.cuda.program import CudaUnit, generate_cuda
from burnish.runtime.deadline import Cancelled, Deadline
from burnish.runtime.program import build_program
from burnish.schedule.evaluate import ScheduleEvaluation
from burnish.schedule.form import LIBRARY, Form, ours
from burnish.schedule.fuse import fuse
from burnish.schedule.gpu.backends import backend_forms, choose_backends
from burnish.schedule.kernels import ContractKernel, ExternKernel, Schedule
from burnish.schedule.lower import lower_graph
from burnish.schedule.passes import finished
from burnish.tuning.excerpt import Trial
from burnish.tuning.record import Tuning
from burnish.tuning.search import Outcome, Tuner
from burnish.tuning.store import CacheStore
from burnish.tuning.tuner import out_of_time
from tests.programs import capture


def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A product, what follows it, and a product of a long sum in front of a normalisation."""
    h = F.gelu(F.linear(x, w, b))
    return F.layer_norm(F.linear(h, v) + x, (x.shape[-1],))


def inputs(rows: int = 32, width: int = 64, inner: int = 1024) -> list[torch.Tensor]:
    shapes = [(rows, width), (inner, width), (inner,), (width, inner)]
    return [(torch.randn(*shape) * 0.1).to(torch.bfloat16) for shape in shapes]


def unchosen(fn: Callable[..., Any] = block, dynamic: bool = False) -> Schedule:
    (entry,) = capture(fn, *inputs(), dynamic=dynamic, device="cuda")
    return fuse(lower_graph(entry.captured), only_products=True)


@dataclass
class FakeMeasure:
    """Takes as long as `seconds` says; an exception's text stands for one that was raised on the device."""

    seconds: Callable[[Trial], Outcome]
    races: int = 0
    trials: list[Trial] = field(default_factory=list)

    def __call__(self, races: Sequence[Sequence[Trial]], late: Callable[[], bool]) -> list[list[Outcome]]:
        self.races += len(races)
        self.trials += [trial for race in races for trial in race]
        return [[] if late() else [self.seconds(trial) for trial in race] for race in races]


class Memory(dict[str, str]):
    def put(self, key: str, form: str) -> None:
        self[key] = form


def tuned(tuner: Tuner, schedule: Schedule | None = None) -> Schedule:
    schedule = schedule or unchosen()
    made = finished(choose_backends(schedule, tuner.backends(schedule, finished)))
    made.forms = tuner.launches(made)
    return made


def externs(schedule: Schedule) -> int:
    return sum(isinstance(k, ExternKernel) for k in schedule.kernels)


def few_externs_then_warps(trial: Trial) -> float:
    """The library is slow; of our kernels the one with the fewest threads is fastest."""
    warps = sum(dict(form.numbers).get("warps", 4) for form in trial.schedule.forms.values())
    return 1.0 + 100 * externs(trial.schedule) + warps + len(trial.schedule.kernels)


def test_the_fastest_wins() -> None:
    log = CompileLog()
    measure = FakeMeasure(few_externs_then_warps)
    schedule = tuned(Tuner(Tuning(), Memory(), measure, log))
    assert externs(schedule) == 0
    assert len(schedule.forms) == len(schedule.kernels)
    for n, form in schedule.forms.items():
        fewest = min(f["warps"] for f in launch_forms(schedule.kernels[n]))
        assert form["warps"] == fewest
    library = tuned(Tuner(Tuning(), Memory(), FakeMeasure(lambda t: 9.0 - externs(t.schedule)), CompileLog()))
    assert externs(library) == 2


def test_the_rules_form_stays_where_others_are_no_faster() -> None:
    log = CompileLog()
    tuned(Tuner(Tuning(), Memory(), FakeMeasure(lambda trial: 1.0), log))
    assert log.tuning and all(entry.form == entry.rule for entry in log.tuning.values())


def test_a_candidate_that_fails_is_skipped_and_said() -> None:
    out_of_memory = "OutOfMemoryError: CUDA out of memory"

    def seconds(trial: Trial) -> Outcome:
        return 1.0 if externs(trial.schedule) else out_of_memory

    log = CompileLog()
    schedule = tuned(Tuner(Tuning(), Memory(), FakeMeasure(seconds), log))
    assert externs(schedule) == 2  # whatever could be measured
    assert not schedule.forms  # nothing of ours could: by the rule
    assert log.notices[f"tuning: a form was skipped: {out_of_memory}"] > 0


def test_a_search_that_fails_does_not_cost_the_program() -> None:
    def broken(races: Any, late: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("not even a stream")

    log = CompileLog()
    schedule = tuned(Tuner(Tuning(), Memory(), broken, log))
    assert str(schedule) == str(finished(choose_backends(unchosen())))
    assert log.notices["tuning failed, the rule decides: OutOfMemoryError: not even a stream"] == 2


def test_a_second_compile_measures_nothing(tmp_path: Any) -> None:
    store = CacheStore(Cache(tmp_path / "cache", 1 << 20), "a GPU")
    first = FakeMeasure(few_externs_then_warps)
    found = tuned(Tuner(Tuning(), store, first, CompileLog()))
    again, log = FakeMeasure(few_externs_then_warps), CompileLog()
    schedule = tuned(Tuner(Tuning(), store, again, log))
    assert first.races > 3 and again.races == 0
    assert schedule.forms == found.forms and str(schedule) == str(found)
    assert {entry.source for entry in log.tuning.values()} == {"cached"}
    other = FakeMeasure(few_externs_then_warps)
    tuned(Tuner(Tuning(), CacheStore(store.cache, "another GPU"), other, CompileLog()))
    assert other.races == first.races


def test_what_the_cache_holds_is_not_trusted(tmp_path: Any) -> None:
    store = CacheStore(Cache(tmp_path / "cache", 1 << 20), "a GPU")
    log = CompileLog()
    tuned(Tuner(Tuning(), store, FakeMeasure(few_externs_then_warps), log))
    for key in log.tuning:
        store.put(key, "tile YBLOCK=100000000 XBLOCK=3")
    log = CompileLog()
    again = FakeMeasure(few_externs_then_warps)
    tuned(Tuner(Tuning(), store, again, log))
    assert again.races and any("is no form of" in notice for notice in log.notices)


def test_a_pasted_record_is_obeyed_without_measuring() -> None:
    log = CompileLog()
    asked = Memory()
    found = tuned(Tuner(Tuning(), asked, FakeMeasure(few_externs_then_warps), log, device="a GPU"))
    record = Tuning.read(eval(str(Tuning.of(log.tuning.values()))))  # the text, pasted into a program
    assert record.device == "a GPU"
    assert len(asked) > len(record.forms)  # the losers' kernels were asked about, and are nobody's business
    for measure in (None, FakeMeasure(lambda trial: 1.0)):
        log = CompileLog()
        schedule = tuned(Tuner(record, Memory(), measure, log, device="a GPU"))
        assert schedule.forms == found.forms and str(schedule) == str(found)
        assert {entry.source for entry in log.tuning.values()} == {"given"} and not log.notices
        assert Tuning.of(log.tuning.values()) == record
        assert measure is None or not measure.races


def test_an_outdated_form_is_ignored_with_a_reason() -> None:
    log = CompileLog()
    tuned(Tuner(Tuning(), Memory(), FakeMeasure(few_externs_then_warps), log))
    stale = Tuning((*((key, "spiral YBLOCK=64") for key in log.tuning), ("launch loop 7 #0", "map XBLOCK=32 warps=1")))
    log = CompileLog()
    schedule = tuned(Tuner(stale, Memory(), None, log))
    assert not schedule.forms and str(schedule) == str(tuned(Tuner(Tuning(), Memory(), None, CompileLog())))
    assert any("'spiral YBLOCK=64' is no form of launch loop" in notice for notice in log.notices)


def test_without_a_search_and_a_record_the_rule_decides() -> None:
    log = CompileLog()
    schedule = tuned(Tuner(Tuning(), Memory(), None, log))
    assert str(schedule) == str(finished(choose_backends(unchosen())))
    assert not schedule.forms and not log.tuning


def test_sizes_known_only_at_launch_are_left_to_the_rule() -> None:
    measure = FakeMeasure(few_externs_then_warps)
    schedule = unchosen(lambda x, w, b, v: torch.softmax(x * 2, -1), dynamic=True)
    assert not tuned(Tuner(Tuning(), Memory(), measure, CompileLog()), schedule).forms and not measure.races


def test_it_ends_with_its_time() -> None:
    now = [0.0]
    deadline = Deadline(100.0, clock=lambda: now[0])
    late = out_of_time(deadline, lambda: now[0])
    assert not late()
    now[0] = 51.0
    assert late()  # half of what was left is for the search
    log, measure = CompileLog(), FakeMeasure(few_externs_then_warps)
    schedule = tuned(Tuner(Tuning(), Memory(), measure, log, late))
    assert not measure.races and not schedule.forms
    assert any("its time was up" in notice for notice in log.notices)
    deadline.cancel("no longer wanted")
    with pytest.raises(Cancelled):
        tuned(Tuner(Tuning(), Memory(), measure, log, late))


def test_layers_alike_are_asked_about_once() -> None:
    def layers(count: int) -> Callable[..., torch.Tensor]:
        def run(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
            for _ in range(count):
                x = block(x, *weights)
            return x

        return run

    # The first one's input is an argument, the second's is not, and the third's is as the second's.
    races = []
    for count in (2, 3):
        measure = FakeMeasure(few_externs_then_warps)
        schedule = tuned(Tuner(Tuning(), Memory(), measure, CompileLog()), unchosen(layers(count)))
        assert len(schedule.forms) == len(schedule.kernels)
        races.append(measure.races)
    assert races[0] == races[1]


def test_trials_compute_what_the_schedule_does() -> None:
    """Each way to compute a product, with what follows it, gives the same."""
    measure = FakeMeasure(lambda trial: 1.0)
    tuned(Tuner(Tuning(), Memory(), measure, CompileLog()))
    wholes = [t for t in measure.trials if any("parts" in b or "product" in b for b in t.schedule.buffers)]
    assert len(wholes) >= 4
    for trial in wholes:
        trial.schedule.verify()
        torch.manual_seed(0)
        given = [_argument(b.shape, b.dtype.torch) for b in trial.arguments]  # type: ignore[arg-type,union-attr]
        assert all(r.isfinite().all() for r in ScheduleEvaluation(trial.schedule, given, {}).run())


def _argument(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def test_forms_of_a_product() -> None:
    schedule = unchosen()
    first, second = (k for k in schedule.kernels if isinstance(k, ContractKernel))
    assert backend_forms(schedule, first) == [ours(1), LIBRARY]
    assert backend_forms(schedule, second) == [ours(1), LIBRARY, ours(2), ours(4)]
    assert Form.parse(str(ours(4))) == ours(4) and Form.parse("library") == LIBRARY
    for text in ("", "Library", "ours splits", "ours splits=x", "tile A=1 B=-1"):
        with pytest.raises(ValueError):
            Form.parse(text)


def test_a_tuned_program_is_stored_as_any_other() -> None:
    schedule = tuned(Tuner(Tuning(), Memory(), FakeMeasure(few_externs_then_warps), CompileLog()))
    unit = generate_cuda(schedule)
    program = build_program(schedule, unit, {}, 4, torch.device("cuda"))
    again = unpacked(packed(program, ""), "cuda")
    assert isinstance(again.unit, CudaUnit) and again.unit.triton.calls == unit.triton.calls
    for n, form in schedule.forms.items():
        assert again.unit.triton.calls[n].launch.warps == form["warps"]
