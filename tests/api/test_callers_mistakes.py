"""A call that raises in eager, too: eager's own exception, and nothing counted, warned about or left behind."""

import logging
import threading
import warnings

import pytest
import torch
from torch import nn

import burnish
from burnish.capture.entry import frame_compiler
from burnish.capture.entry.failure_cause import RETURNED, Doubt, Doubts, Ending, Settlement
from burnish.errors import FallbackWarning
from tests.trust.held import LONG


class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, scale=1.0):
        if x.shape[0] > 3:
            raise ValueError("at most 3 rows")
        return self.linear(x) * scale


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        doubled = x * 2
        torch._dynamo.graph_break()
        return self.linear(doubled)


def good():
    return torch.randn(2, 4)


MISTAKES = {
    "shape": (lambda: nn.Linear(4, 4), lambda: (torch.randn(2, 5),)),
    "dtype": (lambda: nn.Linear(4, 4), lambda: (torch.randn(2, 4, dtype=torch.float64),)),
    "no argument": (lambda: nn.Linear(4, 4), lambda: ()),
    "an argument too many": (lambda: nn.Linear(4, 4), lambda: (good(), good())),
    "None": (lambda: nn.Linear(4, 4), lambda: (None,)),
    "a string": (lambda: nn.Linear(4, 4), lambda: ("text",)),
    "raises by design": (Picky, lambda: (torch.randn(4, 4),)),
    "after a graph break": (Broken, lambda: (torch.randn(2, 5),)),
}
MODES = {"plain": {}, "fullgraph": {"fullgraph": True}, "budget": {"budget": 600.0}, "background": {"background": True}}


def raised(function, *args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            function(*args)
        except Exception as error:
            return error, [str(entry.message) for entry in caught]
    return None, [str(entry.message) for entry in caught]


def settled(compiled):
    """All that was given to the compiling thread is over."""
    assert compiled.burnish.wait(LONG)


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_eagers_exception_and_nothing_else(mistake, mode, first):
    if mode == "fullgraph" and mistake == "after a graph break":
        pytest.skip("a graph break is an error there whatever the inputs")
    make, bad = MISTAKES[mistake]
    model, wrong = make(), bad()
    compiled = burnish.compile(model, **MODES[mode])
    if not first:
        compiled(good())
        settled(compiled)
    for _ in range(2):
        (expected, _), (error, warned) = raised(model, *wrong), raised(compiled, *wrong)
        assert (type(error), str(error)) == (type(expected), str(expected))
        settled(compiled)
        assert warned == []
    stats = burnish.stats(compiled)
    assert stats.fallbacks == () and stats.events.get("background_failed", 0) == 0
    assert not any("Observed" in broken.reason or "fake tensor" in broken.reason for broken in stats.graph_breaks)


@pytest.mark.parametrize("mistake", [name for name in MISTAKES if name != "after a graph break"])
def test_good_calls_are_compiled_afterwards(mistake):
    make, bad = MISTAKES[mistake]
    model, x = make(), good()
    compiled = burnish.compile(model)
    raised(compiled, *bad())
    torch.testing.assert_close(compiled(x), model(x))
    stats = burnish.stats(compiled)
    assert stats.graphs.get("forward", 0) >= 1 and stats.graph_breaks == ()


def test_another_object_of_the_class_is_compiled_too():
    raised(burnish.compile(Picky()), torch.randn(4, 4))
    other = burnish.compile(Picky())
    other(good())
    assert burnish.stats(other).graphs == {"forward": 1}


def test_no_number_of_mistakes_stops_the_compiling():
    compiled = burnish.compile(nn.Linear(4, 4))
    wrong = torch.randn(2, 5)
    for _ in range(20):
        raised(compiled, wrong)
    compiled(good())
    assert burnish.stats(compiled).graphs == {"forward": 1}


def test_a_mistake_is_traced_once(monkeypatch):
    compiled, compiles = burnish.compile(nn.Linear(4, 4)), []
    compile_frame = frame_compiler.FrameCompiler.compile

    def counted(self, frame, *rest):
        compiles.append(frame.f_code)
        return compile_frame(self, frame, *rest)

    monkeypatch.setattr(frame_compiler.FrameCompiler, "compile", counted)
    for _ in range(5):
        raised(compiled, torch.randn(2, 5))
    assert len([code for code in compiles if code.co_name.startswith("Linear")]) == 1


def test_inputs_that_fit_later_are_compiled():
    model = nn.Linear(4, 4)
    compiled = burnish.compile(model)
    x = torch.randn(2, 5)
    raised(compiled, x)
    model.weight = nn.Parameter(torch.randn(4, 5))
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x))
    assert burnish.stats(compiled).graphs == {"forward": 1} and burnish.stats(compiled).fallbacks == ()


def test_torchs_log_says_nothing(caplog):
    with caplog.at_level(logging.ERROR, logger="torch._subclasses.fake_tensor"):
        raised(burnish.compile(nn.Linear(4, 4)), torch.randn(2, 5))
    assert caplog.records == []


def fails_in_dynamo(monkeypatch, error):
    from torch._dynamo import convert_frame

    def broken(*args, **kwargs):
        raise error

    monkeypatch.setattr(convert_frame, "_compile", broken)


@pytest.mark.parametrize("mode", ["plain", "budget", "background"])
def test_a_failure_of_ours_counts(monkeypatch, mode):
    fails_in_dynamo(monkeypatch, AssertionError("deep inside"))
    compiled = burnish.compile(nn.Linear(4, 4), **MODES[mode])

    def call():
        compiled(good())
        settled(compiled)

    with pytest.warns(FallbackWarning, match="deep inside"):
        call()
    assert burnish.stats(compiled).fallbacks[0].stage == "dynamo"


# -- the rules by which it is decided -------------------------------------------------------------------------------


def no_line(lines):
    return None


def raising():
    raise KeyError("x")


def error_of(function):
    try:
        function()
    except KeyError as error:
        return error


def test_an_exception_through_the_frame_is_the_callers():
    heard = []
    doubts = Doubts(no_line)
    doubts.note(Doubt(raising.__code__, heard.append))
    doubts.settle(error_of(raising))
    assert raising.__code__ in heard[0].codes and doubts.open == {}


def test_an_exception_past_the_frame_is_not():
    heard = []
    doubts = Doubts(no_line)
    doubts.note(Doubt(good.__code__, heard.append))
    doubts.settle(error_of(raising))
    assert good.__code__ not in heard[0].codes


def test_a_frame_that_runs_is_settled_by_the_outer_call():
    heard = []
    doubts = Doubts(no_line)

    def outer():
        doubts.note(Doubt(outer.__code__, heard.append))
        doubts.settle()  # a call inside it has ended
        assert heard == []

    outer()
    doubts.settle()
    assert heard == [RETURNED]


def test_threads_settle_their_own():
    heard = []
    doubts = Doubts(no_line)
    thread = threading.Thread(target=lambda: doubts.note(Doubt(good.__code__, heard.append)))
    thread.start()
    thread.join()
    doubts.settle()
    assert heard == []


@pytest.mark.parametrize("compiled_first", [True, False])
def test_two_threads_settle_when_both_have_spoken(compiled_first):
    heard = []
    settlement, doubt = Settlement(), Doubt(good.__code__, heard.append)
    ending = Ending(frozenset([good.__code__]))
    steps = [lambda: settlement.compiled([doubt]), lambda: settlement.called(ending)]
    for step in steps if compiled_first else reversed(steps):
        assert heard == []
        step()
    assert heard == [ending] and settlement.raised_in(good.__code__)
