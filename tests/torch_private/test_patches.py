"""What is replaced while Dynamo traces: that each correction finds what it replaces in the running torch."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import burnish.torch_private.patches
from burnish.torch_private.patches import corrections
from burnish.torch_private.patches.sets import keeping_order_of_sets
from burnish.torch_private.versions import running

ROOM = Path(burnish.torch_private.patches.__file__).parent
ALL = (*corrections._CORRECTIONS, keeping_order_of_sets)
# Corrections that torch has made itself, and since when.
MADE_BY_TORCH = {"noticing_other_shapes": (2, 14), "guarding_attributes_of_classes": (2, 12)}


@pytest.mark.parametrize("correction", ALL, ids=lambda each: str(each.__name__))
def test_each_correction_replaces_something(
    correction: Callable[[], contextlib.AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    @contextlib.contextmanager
    def noted(owner: Any, name: str, replacement: Any) -> Iterator[None]:
        names.append(name)
        yield

    for source in ROOM.glob("*.py"):
        module = importlib.import_module(f"{burnish.torch_private.patches.__name__}.{source.stem}")
        if hasattr(module, "replaced"):
            monkeypatch.setattr(module, "replaced", noted)
    with correction():
        pass
    is_needed = running() < MADE_BY_TORCH.get(correction.__name__, (99, 0))
    assert bool(names) is is_needed


def test_what_is_replaced_is_there_again() -> None:
    from burnish.torch_private.variables import SetVariable, UserDefinedObjectVariable

    held = [dict(vars(owner)) for owner in (SetVariable, UserDefinedObjectVariable)]
    with corrections.tracing_as_eager_runs():
        assert held != [dict(vars(owner)) for owner in (SetVariable, UserDefinedObjectVariable)]
    assert held == [dict(vars(owner)) for owner in (SetVariable, UserDefinedObjectVariable)]
