"""Shared by the tests of the public API: they hold with any pipeline, also one that fails and leaves work to eager."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import burnish


@pytest.fixture(autouse=True)
def fresh() -> None:
    burnish.reset()
    torch.manual_seed(0)


@pytest.fixture
def use_pipeline(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Put a function in the place of burnish.pipeline.compile_graph."""

    import burnish.capture.restore.serve  # noqa: F401  which takes more from the pipeline, when it is first imported

    def replace(compile_graph: Callable[..., Any]) -> None:
        module = types.ModuleType("burnish.pipeline")
        module.compile_graph = compile_graph  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "burnish.pipeline", module)

    return replace


@pytest.fixture
def plain_pipeline(use_pipeline: Callable[[Callable[..., Any]], None]) -> list[dict[str, Any]]:
    """A pipeline that runs each graph as it is, and the list of what it was given."""
    seen: list[dict[str, Any]] = []

    def compile_graph(graph: Any, inputs: Any, **given: Any) -> Callable[[list[Any]], Any]:
        seen.append({"graph": graph, "inputs": inputs, **given})

        def run(args: list[Any]) -> Any:
            values = tuple(args)
            args.clear()
            return graph(*values)

        return run

    use_pipeline(compile_graph)
    return seen
