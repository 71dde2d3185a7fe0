"""Arguments of burnish.compile: the mistakes raise at once, and name the word that was meant."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

import burnish
from burnish.errors import (
    BadOptionValue,
    BurnishError,
    ModeWithOptions,
    NotCompilable,
    NotCompiled,
    UnknownBackend,
    UnknownMode,
    UnknownOption,
)
from burnish.options import MODES, OPTION_NAMES, Options


@pytest.mark.parametrize("mode", [None, *MODES])
def test_every_mode_compiles(mode):
    model = nn.Linear(4, 4)
    compiled = burnish.compile(model, mode=mode)
    x = torch.randn(2, 4)
    torch.testing.assert_close(compiled(x), model(x))
    assert compiled.burnish.options.mode == mode


def test_unknown_mode_names_the_nearest():
    with pytest.raises(UnknownMode, match="'max-autotune'") as raised:
        burnish.compile(nn.Linear(2, 2), mode="max-autotun")
    assert raised.value.guess == "max-autotune"
    assert isinstance(raised.value, RuntimeError) and isinstance(raised.value, ValueError)
    assert isinstance(raised.value, BurnishError)


def test_unknown_option_names_the_nearest():
    with pytest.raises(UnknownOption, match="'cache_dir'"):
        burnish.compile(nn.Linear(2, 2), options={"cachedir": "x"})
    with pytest.raises(UnknownOption, match="fuel"):
        burnish.compile(nn.Linear(2, 2), options={"zzzzzzzz": 1})  # nothing is near: the valid ones are listed


def test_mode_and_options_exclude_each_other():
    with pytest.raises(ModeWithOptions):
        burnish.compile(nn.Linear(2, 2), mode="default", options={"verify_ir": True})
    burnish.compile(nn.Linear(2, 2), mode="default", options={})  # as torch: an empty dict is no options


def test_mistakes_raise_in_the_decorator_form_too():
    with pytest.raises(UnknownMode):
        burnish.compile(mode="fast")


def test_unknown_backend_names_the_nearest():
    with pytest.raises(UnknownBackend, match="Did you mean 'burnish'"):
        burnish.compile(nn.Linear(2, 2), backend="burnsh")
    with pytest.raises(UnknownBackend, match="aot_eager"):
        burnish.compile(nn.Linear(2, 2), backend="aot_eagr")


@pytest.mark.parametrize("backend", ["eager", "aot_eager", lambda graph, inputs: graph.forward])
def test_other_backends_do_the_work(backend):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = burnish.compile(model, backend=backend)
    x = torch.randn(2, 4)
    torch.testing.assert_close(compiled(x), model(x))
    assert list(compiled.state_dict()) == list(model.state_dict())


def test_a_backend_function_is_called_with_the_graph():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    burnish.compile(lambda x: x.sin() + 1, backend=backend)(torch.randn(3))
    assert len(graphs) == 1


@pytest.mark.parametrize("target", [3, "model", None.__class__, nn.Linear])
def test_what_cannot_be_compiled_is_refused(target):
    with pytest.raises(NotCompilable):
        burnish.compile(target)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_module_is_refused():
    with pytest.raises(NotCompilable, match="ScriptModule"):
        burnish.compile(torch.jit.script(nn.Linear(2, 2)))


def test_stats_of_something_not_compiled():
    with pytest.raises(NotCompiled):
        burnish.stats(nn.Linear(2, 2))


def test_disable_runs_eager():
    model = nn.Linear(4, 4)
    compiled = burnish.compile(model, disable=True)
    x = torch.randn(2, 4)
    assert torch.equal(compiled(x), model(x))
    assert burnish.stats(compiled).compiles == 0


def test_name_is_used():
    assert burnish.stats(burnish.compile(nn.Linear(2, 2), name="encoder")).name == "encoder"
    assert burnish.stats(burnish.compile(nn.Linear(2, 2))).name == "Linear"


# -- Options -----------------------------------------------------------------------------------------------------


def test_options_are_frozen_and_every_word_is_a_field():
    fields = {field.name for field in dataclasses.fields(Options)}
    assert set(OPTION_NAMES) == fields - {"mode", "fullgraph", "dynamic"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().fuel = 3


def test_options_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("BURNISH_CACHE_LIMIT", "512M")
    monkeypatch.setenv("BURNISH_CC", "my-cc")
    monkeypatch.setenv("BURNISH_FUEL", "7")
    monkeypatch.setenv("BURNISH_NO_CACHE", "1")
    monkeypatch.setenv("BURNISH_VERIFY", "0")
    monkeypatch.setenv("BURNISH_DUMP", str(tmp_path / "dump"))
    options = Options()
    assert options.cache_dir == tmp_path / "cache" and options.cache_limit_bytes == 512 << 20
    assert options.cc == "my-cc" and options.fuel == 7 and options.disable_cache and not options.verify_ir
    assert options.dump_dir == tmp_path / "dump"


def test_a_bad_environment_variable_is_named(monkeypatch):
    monkeypatch.setenv("BURNISH_FUEL", "lots")
    with pytest.raises(BadOptionValue, match="BURNISH_FUEL"):
        Options()


def test_cc_without_the_variable(monkeypatch):
    monkeypatch.delenv("BURNISH_CC", raising=False)
    monkeypatch.setenv("CC", "clang-99")
    assert Options().cc == "clang-99"
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    assert Options().cc is None


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [
        ("cache_dir", "/tmp/somewhere", Path("/tmp/somewhere")),
        ("cache_limit_bytes", "2G", 2 << 30),
        ("compiler_seconds", 3, 3.0),
        ("cc", None, None),
        ("threads", 3, 3),
        ("verify_ir", True, True),
    ],
)
def test_option_values_are_read(name, given, read):
    assert getattr(Options.from_arguments(options={name: given}), name) == read


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("cache_dir", None),
        ("cache_limit_bytes", -1),
        ("threads", 0),
        ("compiler_seconds", 0),
        ("fuel", True),
        ("verify_ir", 1),
        ("cc", 5),
    ],
)
def test_option_values_are_checked(name, given):
    with pytest.raises(BadOptionValue, match=name):
        burnish.compile(nn.Linear(2, 2), options={name: given})


@pytest.mark.parametrize("argument", [{"fullgraph": 1}, {"dynamic": "yes"}])
def test_flags_are_checked(argument):
    with pytest.raises(BadOptionValue):
        burnish.compile(nn.Linear(2, 2), **argument)


def test_an_options_object_is_accepted():
    compiled = burnish.compile(nn.Linear(2, 2), options=Options(threads=1), dynamic=True)
    assert compiled.burnish.options.threads == 1 and compiled.burnish.options.dynamic is True
