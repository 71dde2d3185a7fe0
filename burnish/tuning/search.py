"""Selects the form of each kernel: from the record, from the cache or by measurement; otherwise the rule decides.

The search is a pass over data. First the backend of each product (`backends`): a candidate is the product with the
loops that read it, fused as they would be in the program, each of its own kernels in its best form. Then the launch
form of each kernel of the finished schedule (`launches`). Each question is measured once for all identical kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from burnish.codegen.triton.module import launch_forms, unwritten_buffers
from burnish.observe.log import CompileLog, failure_reason
from burnish.schedule.form import Form
from burnish.schedule.gpu.backends import backend_forms, choose_backends
from burnish.schedule.gpu.products import group_siblings
from burnish.schedule.kernels import ContractGroup, ExternKernel, LoopKernel, Schedule
from burnish.tuning.excerpt import Trial, excerpt, is_static, with_readers
from burnish.tuning.keys import key_of
from burnish.tuning.record import Tuned, Tuning

_WORTH = 1.02  # how much faster than the rule's another form must be

Outcome = float | str  # seconds of a run, or why there are none


class Measure(Protocol):
    """Times the trials of each race alternately. A race that there is no time for has no outcomes."""

    def __call__(self, races: Sequence[Sequence[Trial]], out_of_time: Callable[[], bool]) -> list[list[Outcome]]: ...


class Store(Protocol):
    """The results of earlier compiles, by key."""

    def get(self, key: str) -> str | None: ...

    def put(self, key: str, form: str) -> None: ...


@dataclass(frozen=True)
class Question:
    key: str
    forms: tuple[Form, ...]  # the rule's first
    trial: Callable[[Form], Trial]


class Tuner:
    """`measure` is None where nothing may be measured: outside max-autotune."""

    def __init__(
        self,
        given: Tuning,
        store: Store,
        measure: Measure | None,
        log: CompileLog,
        out_of_time: Callable[[], bool] = lambda: False,
        device: str = "",
    ) -> None:
        self.given, self.store, self.measure, self.log = given, store, measure, log
        self.out_of_time, self.device = out_of_time, device
        self.answers: dict[str, Form] = {}
        self._entries: dict[str, Tuned] = {}  # of all answers, those about kernels of slower candidates included
        self._asked: set[str] = set()

    # --- the two passes -----------------------------------------------------------------------------------------

    def backends(self, schedule: Schedule, finish: Callable[[Schedule], Schedule]) -> dict[int, Form]:
        """The backend of each product, as a form by the kernel's number. `finish` runs the passes that follow the
        selection of backends."""
        return self._or_by_rule(lambda: self._backends(schedule, finish))

    def launches(self, schedule: Schedule) -> dict[int, Form]:
        """The launch form of each kernel, by its number."""
        return self._or_by_rule(lambda: self._launch_forms(schedule))

    def _or_by_rule(self, search: Callable[[], dict[int, Form]]) -> dict[int, Form]:
        """The search's result. If the search itself fails (the device, not one candidate), the rule decides."""
        try:
            return search()
        except Exception as error:
            self.log.noticed(f"tuning failed, the rule decides: {failure_reason(error)}")
            return {}

    def _backends(self, schedule: Schedule, finish: Callable[[Schedule], Schedule]) -> dict[int, Form]:
        unwritten = unwritten_buffers(schedule)
        asked: list[tuple[list[int], Question]] = []
        for numbers in _sets(schedule):
            region = with_readers(schedule, numbers)
            forms = _common_forms(schedule, numbers)
            if len(forms) < 2 or not is_static(excerpt(schedule, region)):
                continue
            kernels = [schedule.kernels[n] for n in (*numbers, *sorted({*region} - {*numbers}))]
            key = key_of("backend", schedule, kernels, unwritten)
            asked.append(
                (numbers, Question(key, tuple(forms), _Region(schedule, numbers, region, unwritten, finish).trial))
            )
        self._answer([question for _, question in asked], prepare=self._best_inside)
        return {n: form for numbers, q in asked if (form := self._used(q)) is not None for n in numbers}

    def _launch_forms(self, schedule: Schedule) -> dict[int, Form]:
        asked = dict(self._launches(schedule, unwritten_buffers(schedule)))
        self._answer(list(asked.values()))
        return {n: form for n, q in asked.items() if (form := self._used(q)) is not None}

    def _launches(
        self, schedule: Schedule, unwritten: frozenset[str], products_only: bool = False
    ) -> list[tuple[int, Question]]:
        asked = []
        for n, kernel in enumerate(schedule.kernels):
            if isinstance(kernel, ExternKernel) or (products_only and isinstance(kernel, LoopKernel)):
                continue
            forms = launch_forms(kernel, schedule.gpu)
            if len(forms) < 2 or not is_static(excerpt(schedule, [n])):
                continue
            key = key_of("launch", schedule, [kernel], unwritten)
            asked.append((n, Question(key, tuple(forms), _alone(schedule, n, unwritten))))
        return asked

    def _best_inside(self, trials: Sequence[Trial]) -> list[Trial]:
        """The trials with each of their products in its best form, so that the comparison is fair."""
        inside = [self._launches(t.schedule, t.unwritten, products_only=True) for t in trials]
        found = self._answer([question for asked in inside for _, question in asked])
        return [
            replace(t, schedule=replace(t.schedule, forms={n: found[q.key] for n, q in asked if q.key in found}))
            for t, asked in zip(trials, inside, strict=True)
        ]

    def _used(self, question: Question) -> Form | None:
        """The answer that the program uses. Only used answers are logged: a record that is given to another compile,
        which tries no candidates, is then logged unchanged."""
        if question.key in self._entries:
            self.log.tuned(replace(self._entries[question.key], device=self.device))
        return self.answers.get(question.key)

    # --- answers ------------------------------------------------------------------------------------------------

    def _answer(
        self,
        questions: Sequence[Question],
        prepare: Callable[[Sequence[Trial]], list[Trial]] = list,
    ) -> Mapping[str, Form]:
        """Answers by key; questions that have none are missing."""
        open_questions: dict[str, Question] = {}
        for question in questions:
            if question.key in self._asked:
                continue
            self._asked.add(question.key)
            known = self._known(question)
            if known is not None:
                self._settle(
                    question, known[0], Tuned(question.key, str(known[0]), str(question.forms[0]), source=known[1])
                )
            elif self.measure is not None:
                open_questions[question.key] = question
        if open_questions:
            self._race(list(open_questions.values()), prepare)
        return self.answers

    def _known(self, question: Question) -> tuple[Form, str] | None:
        for text, source in ((self.given.get(question.key), "given"), (self.store.get(question.key), "cached")):
            if text is None:
                continue
            form = next((form for form in question.forms if str(form) == text), None)
            if form is not None:
                return form, source
            self.log.noticed(f"tuning {source} but not used: {text!r} is no form of {question.key}")
        return None

    def _race(self, questions: list[Question], prepare: Callable[[Sequence[Trial]], list[Trial]]) -> None:
        assert self.measure is not None
        if self.out_of_time():
            self._noticed_time(len(questions))
            return
        made = [[_made(question, form) for form in question.forms] for question in questions]
        flat = iter(prepare([t for race in made for t in race if isinstance(t, Trial)]))
        races = [[next(flat) if isinstance(t, Trial) else t for t in race] for race in made]
        runnable = [[t for t in race if isinstance(t, Trial)] for race in races]
        timed = self.measure(runnable, self.out_of_time)
        skipped = 0
        for question, race, outcomes in zip(questions, races, timed, strict=True):
            if not outcomes and any(isinstance(t, Trial) for t in race):
                skipped += 1
                continue
            left = iter(outcomes)
            self._decide(question, [next(left) if isinstance(t, Trial) else t for t in race])
        if skipped:
            self._noticed_time(skipped)

    def _decide(self, question: Question, outcomes: Sequence[Outcome]) -> None:
        """The fastest form, or the rule's if that is about as fast. Forms that failed are left out and reported."""
        seconds = {form: o for form, o in zip(question.forms, outcomes, strict=True) if isinstance(o, float)}
        for reason in dict.fromkeys(o for o in outcomes if isinstance(o, str)):
            self.log.noticed(f"tuning: a form was skipped: {reason}")
        if not seconds:
            return
        rule, best = question.forms[0], min(seconds, key=lambda form: seconds[form])
        if rule in seconds and seconds[rule] <= _WORTH * seconds[best]:
            best = rule
        tuned = Tuned(question.key, str(best), str(rule), seconds[best], seconds.get(rule), len(seconds))
        self._settle(question, best, tuned)
        self.store.put(question.key, str(best))

    def _settle(self, question: Question, form: Form, tuned: Tuned) -> None:
        self.answers[question.key], self._entries[question.key] = form, tuned

    def _noticed_time(self, questions: int) -> None:
        self.log.noticed(f"tuning stopped, its time was up: {questions} questions are answered by the rule")


@dataclass(frozen=True)
class _Region:
    """A set of products with their readers, to be tried in some form."""

    schedule: Schedule
    numbers: Sequence[int]
    region: Sequence[int]
    unwritten: frozenset[str]
    finish: Callable[[Schedule], Schedule]

    def trial(self, form: Form) -> Trial:
        alone = excerpt(self.schedule, self.region)
        forms = {k: form for k, n in enumerate(self.region) if n in self.numbers}
        return Trial(self.finish(choose_backends(alone, forms)), self.unwritten)


def _alone(schedule: Schedule, n: int, unwritten: frozenset[str]) -> Callable[[Form], Trial]:
    return lambda form: Trial(excerpt(schedule, [n], form), unwritten)


def _made(question: Question, form: Form) -> Trial | str:
    try:
        return question.trial(form)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _sets(schedule: Schedule) -> list[list[int]]:
    """The numbers of the products, grouped by the kernel that they will share."""
    number = {id(k): n for n, k in enumerate(schedule.kernels)}
    grouped = group_siblings(schedule.copy()).kernels
    sets = [[number[id(p)] for p in k.parts] if isinstance(k, ContractGroup) else [number[id(k)]] for k in grouped]
    return [numbers for numbers in sets if backend_forms(schedule, schedule.kernels[numbers[0]])]


def _common_forms(schedule: Schedule, numbers: Sequence[int]) -> list[Form]:
    """The forms that all of a set can take, the rule's first; none if the rule gives them different forms."""
    lists = [backend_forms(schedule, schedule.kernels[n]) for n in numbers]
    if len({forms[0] for forms in lists}) > 1:
        return []
    return [form for form in lists[0] if all(form in forms for forms in lists)]
