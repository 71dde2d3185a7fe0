"""docs/operations.md names every metric, event and checklist line there is, and none that is not."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from burnish.observe import KINDS, exposition
from burnish.tools.doctor.checklist import QUESTIONS

TEXT = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def test_every_metric_is_described() -> None:
    described = set(re.findall(r"`(burnish_[a-z_]+)`", TEXT))
    made = set(re.findall(r'Family\("(burnish_[a-z_]+)"', inspect.getsource(exposition)))
    assert described == made


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_event_is_named(kind: str) -> None:
    assert f"`{kind}`" in TEXT


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_line_of_the_checklist_is_shown(name: str) -> None:
    assert re.search(rf"^ok +{name}  ", TEXT, re.M)
