"""A stage that fails: eager's result, one warning with stage, reason and way out, and a count. Never an exception."""

import warnings

import pytest
import torch
from torch import nn

import burnish
from burnish.errors import CompileError, CompilerMissing, FallbackWarning
from tests.against_eager import fallback_warnings


def failing(error):
    def compile_graph(*args, **kwargs):
        raise error

    return compile_graph


def calls_with_warnings(function, *args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(*args)
    return result, [str(entry.message) for entry in caught if entry.category is FallbackWarning]


def test_a_failing_stage_is_named_once(use_pipeline):
    use_pipeline(failing(CompileError("schedule", "too many axes", "make it smaller")))
    model = nn.Linear(4, 4)
    compiled = burnish.compile(model, name="head")
    x = torch.randn(2, 4)
    result, messages = calls_with_warnings(compiled, x)
    assert torch.equal(result, model(x))
    (message,) = messages
    for part in ("head", "'schedule'", "too many axes", "make it smaller"):
        assert part in message
    for rows in (3, 4, 5):
        result, messages = calls_with_warnings(compiled, torch.randn(rows, 4))
        assert messages == [], "one warning for one reason"
    (first, *_), stats = burnish.stats(compiled).fallbacks, burnish.stats(compiled)
    assert (first.stage, first.reason) == ("schedule", "too many axes")
    assert len(stats.fallbacks) == stats.compiles == 2 and stats.graphs == {}


def test_an_exception_of_any_kind(use_pipeline):
    use_pipeline(failing(ZeroDivisionError("a pass divided")))
    result, messages = calls_with_warnings(burnish.compile(lambda x: x + 1), torch.ones(2))
    assert torch.equal(result, torch.full((2,), 2.0))
    assert "'pipeline'" in messages[0] and "ZeroDivisionError: a pass divided" in messages[0]


def test_no_compiler_says_what_to_install(use_pipeline):
    use_pipeline(failing(CompilerMissing()))
    _, messages = calls_with_warnings(burnish.compile(lambda x: x + 1), torch.ones(2))
    assert "BURNISH_CC" in messages[0] and "'build'" in messages[0]


def test_gradients_when_the_forward_fails(use_pipeline):
    use_pipeline(failing(CompileError("schedule", "no")))
    model = nn.Linear(4, 4)
    compiled = burnish.compile(model)
    _, messages = calls_with_warnings(lambda: compiled(torch.ones(2, 4)).sum().backward())
    assert len(messages) == 1 and torch.equal(model.bias.grad, torch.full((4,), 2.0))


def test_gradients_when_only_the_backward_fails(use_pipeline):
    def compile_graph(graph, inputs, *, kind, **given):
        if kind == "backward":
            raise CompileError("schedule", "backward is hard")

        def run(args):
            return graph(*args)

        return run

    use_pipeline(compile_graph)
    model = nn.Linear(4, 4)
    compiled = burnish.compile(model)
    _, messages = calls_with_warnings(lambda: compiled(torch.ones(2, 4)).sum().backward())
    assert "backward is hard" in messages[0] and torch.equal(model.bias.grad, torch.full((4,), 2.0))
    assert burnish.stats(compiled).graphs == {"forward": 1}


def test_aot_that_fails(monkeypatch):
    def aot(*args, **kwargs):
        raise NotImplementedError("cannot functionalise")

    monkeypatch.setattr("burnish.capture.graph_capture.aot_module_simplified", aot)
    result, messages = calls_with_warnings(burnish.compile(lambda x: x + 1), torch.ones(2))
    assert torch.equal(result, torch.full((2,), 2.0)) and "'aot'" in messages[0]


def test_dynamo_that_fails(monkeypatch):
    from torch._dynamo import convert_frame

    def broken(*args, **kwargs):
        raise AssertionError("deep inside")

    monkeypatch.setattr(convert_frame, "_compile", broken)
    compiled = burnish.compile(nn.Linear(4, 4))
    x = torch.randn(2, 4)
    result, messages = calls_with_warnings(compiled, x)
    assert torch.equal(result, compiled.eager(x)) and "'dynamo'" in messages[0] and "deep inside" in messages[0]
    assert burnish.stats(compiled).fallbacks[0].stage == "dynamo"
    _, messages = calls_with_warnings(compiled, x)
    assert messages == [] and len(burnish.stats(compiled).fallbacks) == 1, "it is not tried again"


@pytest.mark.filterwarnings("ignore::burnish.errors.FallbackWarning")
def test_bad_inputs_do_not_spoil_good_ones():
    model = nn.Linear(4, 4)
    compiled = burnish.compile(model)
    good, bad = torch.randn(2, 4), torch.randn(2, 5)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            compiled(bad)
        torch.testing.assert_close(compiled(good), model(good))
    assert burnish.stats(compiled).compiles == 1


def test_warnings_that_are_named_as_errors_reach_the_user(use_pipeline):
    use_pipeline(failing(CompileError("schedule", "no")))
    compiled = burnish.compile(lambda x: x + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        with pytest.raises(FallbackWarning):
            compiled(torch.ones(2))


def test_one_objects_failure_is_its_own(use_pipeline):
    use_pipeline(failing(CompileError("schedule", "no")))
    one, other = burnish.compile(lambda x: x + 1), burnish.compile(lambda x: x + 2)
    calls_with_warnings(one, torch.ones(2))
    assert burnish.stats(one).fallbacks and not burnish.stats(other).fallbacks


def test_a_pipeline_gets_what_the_contract_says(plain_pipeline):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))
            self.register_buffer("shift", torch.randn(4))

        def forward(self, x):
            return x @ self.weight + self.shift

    model = Scaled()
    compiled = burnish.compile(model, options={"threads": 1})
    with torch.no_grad():
        compiled(torch.randn(2, 4))
    (given,) = plain_pipeline
    assert given["kind"] == "inference" and given["options"].threads == 1 and given["log"] is compiled.burnish.log
    shapes = [tuple(given["inputs"][i].shape) for i in sorted(given["static_inputs"])]
    assert sorted(shapes) == [(4,), (4, 4)], "parameters and buffers are static, the argument is not"


def test_a_pipeline_may_make_real_tensors(use_pipeline):
    made = []

    def compile_graph(graph, inputs, **given):
        made.append(torch.arange(3))
        return lambda args: graph(*args)

    use_pipeline(compile_graph)
    burnish.compile(lambda x: x + 1)(torch.ones(2))
    assert type(made[0]) is torch.Tensor and made[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("settings", [{}, {"budget": 60.0}, {"background": True}], ids=lambda each: "".join(each))
def test_where_all_warnings_are_errors_it_is_shown_and_not_raised(use_pipeline, settings, recwarn):
    use_pipeline(failing(CompileError("schedule", "too many axes", "make it smaller")))
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.randn(2, 4)
    warnings.simplefilter("error")
    compiled = burnish.compile(model, **settings)
    for _ in range(3):
        assert torch.equal(compiled(x), model(x))
        assert compiled.burnish.wait(60)
    assert {failed.stage for failed in burnish.stats(compiled).fallbacks} == {"schedule"}
    assert ["too many axes" in str(each.message) for each in recwarn] == [True]


def test_a_way_of_showing_warnings_that_fails(use_pipeline, monkeypatch):
    def show(*args, **kwargs):
        raise ConnectionError("nobody listens")

    use_pipeline(failing(CompileError("schedule", "too many axes")))
    for action in ("always", "error"):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            monkeypatch.setattr(warnings, "showwarning", show)
            assert torch.equal(burnish.compile(lambda x: x + 1)(torch.ones(2)), torch.full((2,), 2.0))


def test_a_result_that_depends_on_data_is_named_as_such():
    weight = torch.nn.Parameter(torch.ones(5))

    def fn(x, mask):
        y = x * 2
        y[mask] = weight * 1
        return y.sum()

    compiled = burnish.compile(fn)
    _, messages = fallback_warnings(lambda: compiled(torch.randn(4, 5), torch.tensor([True, False, True, False])))
    assert len(messages) == 1 and "depends on data: write it with torch.where" in messages[0]
