"""Triton without a device: its interpreter and its compiler, each in a process of its own for the whole session."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from tests.codegen.triton.compiler import Compiler
from tests.codegen.triton.interpreter import Interpreter


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("triton") is not None:
        return
    for item in items:
        if {"interpreter", "compiler"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.skip(reason="needs triton: pip install burnish[triton]"))


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    process = Interpreter()
    yield process
    process.close()


@pytest.fixture(scope="session")
def compiler() -> Iterator[Compiler]:
    process = Compiler()
    yield process
    process.close()
