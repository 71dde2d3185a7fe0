"""Environment variables that a compiled function reads: their value is the one they have at the call."""

import os

import pytest
import torch
from torch import nn

import burnish

pytestmark = pytest.mark.filterwarnings("ignore")
NAME = "BURNISH_TEST_FACTOR"


def _read():
    return os.getenv(NAME, "1")


class Factor(nn.Module):
    def forward(self, x):
        return x * float(_read())


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Factor()

    def forward(self, x):
        return self.inner(x + 1)


def _broken(x):
    y = x * float(os.environ.get(NAME, "1"))
    print("", end="")
    return y * float(os.environ.get(NAME, "2"))


def _caught(x):
    try:
        return x * float(os.environ[NAME])
    except KeyError:
        return x - 1


READERS = [
    lambda x: x * float(os.environ.get(NAME, "1")),
    lambda x: x * float(os.getenv(NAME, "1")),
    lambda x: x * (3 if NAME in os.environ else 1),
    lambda x: x * (os.environ.get(NAME) is None),
    lambda x: x * float(dict(os.environ).get(NAME, "1")),
    lambda x: x * len(os.path.expandvars("$" + NAME)),
    lambda x: x * len([name for name in os.environ if name == NAME]),
    lambda x: x * float(_read()),
    Outer(),
    _broken,
    _caught,
]


@pytest.mark.parametrize("switched_on", ["", "BURNISH_WARM_START", "BURNISH_GATE"])
@pytest.mark.parametrize("number", range(len(READERS)))
def test_what_is_set_later_is_noticed(number, switched_on, monkeypatch):
    if switched_on:
        monkeypatch.setenv(switched_on, "on")
    reader = READERS[number]
    compiled = burnish.compile(reader)
    x = torch.arange(3.0) + 1
    for value in (None, "3", "3", "5", None, "3"):
        monkeypatch.setenv(NAME, value) if value is not None else monkeypatch.delenv(NAME, raising=False)
        torch.testing.assert_close(compiled(x), reader(x))


@pytest.mark.parametrize("first", [None, "2"])
def test_other_variables_do_not_compile_anew(first, monkeypatch):
    monkeypatch.delenv(NAME, raising=False)
    if first is not None:
        monkeypatch.setenv(NAME, first)
    compiled = burnish.compile(READERS[1])
    for value in range(3):
        monkeypatch.setenv(NAME + "_OTHER", str(value))
        compiled(torch.ones(3))
    assert burnish.stats(compiled).compiles == 1
    monkeypatch.setenv(NAME, "7")
    compiled(torch.ones(3))
    assert burnish.stats(compiled).compiles == 2


def test_another_object_in_another_state(monkeypatch):
    """What is stored was made in the environment of the first."""
    monkeypatch.setenv("BURNISH_WARM_START", "on")
    for value in ("2", None, "4"):
        monkeypatch.setenv(NAME, value) if value is not None else monkeypatch.delenv(NAME, raising=False)
        x = torch.ones(3)
        compiled = burnish.compile(READERS[0])
        torch.testing.assert_close(compiled(x), READERS[0](x))
        torch.testing.assert_close(compiled(x), READERS[0](x))
