"""Tuning results in the cache on disk: one entry for each kernel's key, device and set of versions."""

from __future__ import annotations

import functools

import torch

from burnish.runtime.build.shared_library import source_hash
from burnish.runtime.cache.store import Cache, CacheKey

_KIND = "tuning"


class CacheStore:
    def __init__(self, cache: Cache, device: str) -> None:
        self.cache, self.device = cache, device

    def get(self, key: str) -> str | None:
        data = self.cache.get(_KIND, self._key(key))
        return None if data is None else data.decode(errors="replace")

    def put(self, key: str, form: str) -> None:
        self.cache.discard(_KIND, self._key(key))
        self.cache.put(_KIND, self._key(key), form.encode())

    def _key(self, key: str) -> CacheKey:
        return CacheKey((
            ("name", f"tuning {key}"), ("kernel", key), ("device", self.device), ("burnish", source_hash()),
            ("torch", str(torch.__version__)), ("triton", _triton_version()),
        ))  # fmt: skip


@functools.cache
def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return "none"
    return str(triton.__version__)
