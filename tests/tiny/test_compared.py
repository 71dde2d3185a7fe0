"""Comparisons with eager: from one state and with one set of random numbers, so that 1 % is found and nothing else."""

import random

import numpy
import pytest
import torch
from torch import nn

import burnish
from burnish.tools.doctor.checklist import QUESTIONS, _asked, _Subject
from burnish.tools.parity import NOT_REPEATABLE, OTHER_DRAWS, compare
from burnish.tools.targets import Target
from burnish.trust.faults import WrongBy


class Draws(nn.Module):
    """Random numbers from one source."""

    def __init__(self, source):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.source = source
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        y = self.linear(x)
        if self.source == "dropout":
            return nn.functional.dropout(y, 0.5)
        if self.source == "rand":
            return y * torch.rand(16)
        if self.source == "python":
            return y * random.random()
        if self.source == "numpy":
            return y * float(numpy.random.rand())
        return y * torch.rand(16, generator=self.generator)


class Keeps(nn.Module):
    """State that a call changes, and the next one depends on."""

    def __init__(self, kind):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16, momentum=0.5) if kind == "batch norm" else None
        self.register_buffer("steps", torch.zeros(()))
        self.kind, self.calls, self.cache = kind, 0, []

    def forward(self, x):
        y = self.linear(x)
        if self.kind == "batch norm":
            return self.norm(y) + self.norm.running_mean
        if self.kind == "buffer":
            self.steps += 1
            return y * self.steps
        if self.kind == "count":
            self.calls += 1
            return y * self.calls
        self.cache.append(y.detach())
        return sum(self.cache)


SOURCES = ("dropout", "rand", "python", "numpy", "own generator")
KINDS = ("batch norm", "buffer", "count", "cache")
MODELS = {**{s: lambda s=s: Draws(s) for s in SOURCES}, **{k: lambda k=k: Keeps(k) for k in KINDS}}


def target_of(model, kind="inference"):
    torch.manual_seed(1)
    return Target("model", model.train(), (torch.randn(8, 16),), kind)


def wrong(model):
    return lambda *args: model(*args) * 1.01


@pytest.mark.parametrize("name", MODELS)
def test_an_honest_model_is_exact(name):
    target = target_of(MODELS[name]())
    found = compare(target, {"eager": target.model, "other": lambda x: target.model(x)})
    assert found["other"].error == found["eager"].error < 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_one_percent_is_found(name):
    target = target_of(MODELS[name]())
    found = compare(target, {"eager": target.model, "wrong": wrong(target.model)})
    assert 0.005 < found["wrong"].error < 0.02


@pytest.mark.parametrize("name", MODELS)
def test_comparing_leaves_no_trace(name):
    model = MODELS[name]()
    target = target_of(model)
    before = {key: value.clone() for key, value in model.state_dict().items()}, getattr(model, "calls", 0)
    compare(target, {"eager": model})
    assert all(torch.equal(value, before[0][key]) for key, value in model.state_dict().items())
    assert getattr(model, "calls", 0) == before[1] and not getattr(model, "cache", [])


def test_inputs_that_a_model_writes_are_its_own():
    def grows(x):
        return x.add_(1) * 2

    target = Target("grows", grows, (torch.ones(4),))
    assert compare(target, {"eager": grows, "wrong": wrong(grows)})["wrong"].error > 0.005
    assert torch.equal(target.inputs[0], torch.ones(4))


def other_draws(model):
    def call(*args):
        torch.rand(100)
        return model(*args)

    return call


def test_a_model_that_draws_otherwise_is_not_compared():
    target = target_of(Draws("dropout"))
    (found,) = compare(target, {"other": other_draws(target.model)}).values()
    assert (found.error, found.reason) == (None, OTHER_DRAWS)


def test_a_compiler_known_to_draw_otherwise_is_not_called_wrong():
    """Even if its generator ends where eager's does."""
    target = target_of(Draws("dropout"))
    found = compare(target, {"inductor": wrong(target.model), "burnish": wrong(target.model)}, own_draws={"inductor"})
    assert found["inductor"].error is None and found["burnish"].error > 0.005


def test_such_a_compiler_is_compared_where_nothing_is_drawn():
    target = target_of(Draws("dropout").eval())
    target.model.source = "nothing"
    target = target_of(nn.Linear(16, 16))
    found = compare(target, {"inductor": wrong(target.model)}, own_draws={"inductor"})
    assert found["inductor"].error > 0.005


def test_what_differs_from_run_to_run_is_not_compared():
    left = iter(range(1, 1000))
    target = Target("drifts", lambda x: x * next(left), (torch.ones(4),))
    assert compare(target, {"eager": target.model})["eager"].reason == NOT_REPEATABLE


# -- by the commands -------------------------------------------------------------------------------------------------


def dropout_target(kind="inference"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 16))
    if kind == "train":
        model = Loss(model)
    return Target("dropout", model.train(), (torch.randn(8, 16),), kind)


class Loss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).square().mean()


KINDS_OF_TARGETS = pytest.mark.parametrize("kind", ["inference", "train"])
OFF = {"verify": "off", "gate": "off"}


@pytest.fixture
def one_percent_off(monkeypatch):
    """Everything that burnish compiles is 1 % off, and no gate notices."""
    from burnish.options import Options

    made = Options.from_arguments.__func__

    def faulty(cls, *args, **kwargs):
        options = made(cls, *args, **kwargs)
        import dataclasses

        return dataclasses.replace(options, fault=WrongBy(0.01), verify="off", gate=False)

    monkeypatch.setattr(Options, "from_arguments", classmethod(faulty))


def doctors_line(target):
    return _asked(
        "as exact as eager", QUESTIONS[next(name for name in QUESTIONS if "exact" in name)], _Subject(target, 2)
    )


@KINDS_OF_TARGETS
def test_doctor_finds_one_percent(one_percent_off, kind):
    assert doctors_line(dropout_target(kind)).verdict == "fail"


@KINDS_OF_TARGETS
def test_doctor_does_not_alarm(kind):
    line = doctors_line(dropout_target(kind))
    assert line.verdict == "ok" and "error 0.4" not in line.figure


@KINDS_OF_TARGETS
def test_explain_tells_of_one_percent(one_percent_off, kind):
    target = dropout_target(kind)
    found = explanation(target)
    assert found.error > 0.005 and found.eager_error < 1e-4


@KINDS_OF_TARGETS
def test_explain_does_not_alarm(kind):
    found = explanation(dropout_target(kind))
    assert found.error < 1e-4


def explanation(target):
    from burnish.tools.explain.session import ExplainSettings, run_explanation

    return run_explanation(target, ExplainSettings(seconds=0.0, other_sizes=False, ceiling=1e10))


def test_verify_finds_one_percent(one_percent_off):
    target = dropout_target()
    assert not burnish.verify(target.model, target.inputs, bisect=False, sets=("given",)).ok


def test_verify_does_not_alarm():
    target = dropout_target()
    assert burnish.verify(target.model, target.inputs, sets=("given",)).ok


def bench_rows(target, *candidates):
    from burnish.tools.bench.candidates import Candidate
    from burnish.tools.bench.worker import Racing

    racing = Racing(target, [Candidate("eager"), *map(Candidate, candidates)], {}, 0.05, lambda *said: None)
    with target.grad_mode():
        racing._compile()
    racing._check()
    return racing.answer().lanes


@KINDS_OF_TARGETS
def test_bench_finds_one_percent(one_percent_off, kind):
    rows = bench_rows(dropout_target(kind), "burnish")
    assert rows["burnish"].error > 8 * max(rows["eager"].error, 1e-6)


@KINDS_OF_TARGETS
def test_bench_does_not_alarm(kind):
    rows = bench_rows(dropout_target(kind), "burnish")
    assert rows["burnish"].error <= 8 * max(rows["eager"].error, 1e-6)
    assert rows["eager"].error < 1e-4, "not the 0.43 of other masks"


def test_bench_says_that_inductor_draws_otherwise():
    rows = bench_rows(dropout_target(), "inductor")
    assert rows["inductor"].error is None and rows["inductor"].uncompared == OTHER_DRAWS
