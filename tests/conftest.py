"""What every test shares: one thread per worker, a cache of its own, clean compiler state, pinned seeds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported: pytest-xdist starts one worker per core, so a worker that also used every core would only
# make the others wait (libgomp spins). Tests marked `threads` raise the count again for themselves.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Who is faster on a tiny model, on a busy machine, is chance: tests of what is compiled must not be served by eager.
os.environ.setdefault("BURNISH_GATE", "off")

# A test of the compiler must see it work, whatever an earlier test has compiled.
os.environ.setdefault("BURNISH_WARM_START", "off")
# Nor are times of products measured: who multiplies must not depend on what else the machine does.
os.environ.setdefault("BURNISH_PRODUCTS", "ours")

import pytest
import torch

with contextlib.suppress(ImportError):  # where only a GPU's tests run
    import hypothesis

    # The same examples each time, however busy the machine is.
    hypothesis.settings.register_profile("burnish", derandomize=True, deadline=None)
    hypothesis.settings.load_profile("burnish")


@pytest.fixture(scope="session", autouse=True)
def _session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Never the user's cache: a test run must neither profit from it nor fill it. Workers of one run share theirs."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "burnish-cache"
    saved = os.environ.get("BURNISH_CACHE_DIR")
    os.environ["BURNISH_CACHE_DIR"] = str(root)
    yield root
    if saved is None:
        del os.environ["BURNISH_CACHE_DIR"]
    else:
        os.environ["BURNISH_CACHE_DIR"] = saved


@pytest.fixture(autouse=True)
def _fresh_compiler_state(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test sees another's compiled code, counters, random state or thread count."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    if request.node.get_closest_marker("threads"):
        torch.set_num_threads(max(2, os.cpu_count() or 1))
    yield
    torch.set_num_threads(threads)
    torch.compiler.reset()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
