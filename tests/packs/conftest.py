"""One pack of each model for all tests: tests that change a file change a copy of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import burnish
from tests.packs.models import an_input, tiny

OPTIONS = {"warm_start": True, "gate": False, "products": "ours"}


def packed_as(path: Path, model: Callable[..., Any], *calls: tuple[Any, ...], **settings: Any) -> Path:
    """The file of a model that was compiled with these calls."""
    compiled = burnish.compile(model, options=OPTIONS, **settings)
    with torch.no_grad():
        for args in calls:
            for _ in range(2):
                compiled(*args)
    burnish.pack(compiled, path)
    return path


@pytest.fixture(scope="session")
def of_tiny(tmp_path_factory: pytest.TempPathFactory, _session_cache: Path) -> Path:
    return packed_as(tmp_path_factory.mktemp("packs") / "tiny.burnish", tiny(), (an_input(),))
