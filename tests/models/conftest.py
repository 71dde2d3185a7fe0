"""Models are compiled as users compile them: with the gate, warm starts and measured products.

Other tests switch these off (tests/conftest.py). A test of what the compiler computes passes `gate=False`: with the
gate, the race decides whether eager serves, and a comparison with eager would then compare eager with itself."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _shipped_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the test's own: it counts compiles, and a warm start from another test's data has none."""
    for switch in ("BURNISH_GATE", "BURNISH_WARM_START", "BURNISH_PRODUCTS"):
        monkeypatch.delenv(switch, raising=False)
    root = tmp_path_factory.mktemp("models") / "cache"
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(root))
    return root
