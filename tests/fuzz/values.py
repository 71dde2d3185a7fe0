"""The numbers that inputs hold: by kind, from a seed, the same with every version of torch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from random import Random

import torch

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
KINDS = ("small", "normal", "unit", "zeros", "special", "mixed", "nan", "huge", "tiny", "wide")


def dtype_of(name: str) -> torch.dtype:
    made: torch.dtype = getattr(torch, name)
    return made


def filled(size: int, dtype: torch.dtype, kind: str, seed: int) -> torch.Tensor:
    """`kind` is one of KINDS, `index:n` for whole numbers below n, `order:n` for 0..n-1 in some order (and again), or
    `beyond:n` where one of the numbers is no index of n elements; or `=` and the numbers themselves."""
    if kind.startswith("="):
        return torch.tensor(json.loads(kind[1:])[:size], dtype=dtype)
    rng = Random(seed)
    if ":" in kind:
        return torch.tensor(_indices(rng, size, kind), dtype=dtype)
    if dtype is torch.bool:
        return torch.tensor([kind != "zeros" and rng.random() < 0.5 for _ in range(size)], dtype=dtype)
    draw = _float_source(rng, dtype, kind) if dtype.is_floating_point else _integer_source(rng, dtype, kind)
    return torch.tensor([draw() for _ in range(size)], dtype=dtype)


def literal(size: int, dtype: torch.dtype, kind: str, seed: int) -> str:
    """The kind that holds the very numbers, for a case that is kept while the ways to draw them change."""
    return kind if kind.startswith("=") or size > 200 else f"={json.dumps(filled(size, dtype, kind, seed).tolist())}"


def _indices(rng: Random, size: int, kind: str) -> list[int]:
    name, n = kind.split(":")[0], int(kind.split(":")[1])
    if name == "order":
        order = rng.sample(range(n), n)
        return [order[k % n] for k in range(size)] if n else []
    found = [rng.randrange(max(n, 1)) for _ in range(size)]
    if name == "beyond" and size:
        found[rng.randrange(size)] = rng.choice([n, n + 1, -n - 1, n + 1000])
    return found


def special_floats(dtype: torch.dtype) -> list[float]:
    info = torch.finfo(dtype)
    denormal = info.smallest_normal * info.eps
    return [
        0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, info.max, info.min, info.smallest_normal,
        -info.smallest_normal, denormal, -denormal, info.eps, 1 + info.eps, 0.5, -0.5, 1.5, 2.5, 127.5, 255.0, 256.0,
        -129.0, 32768.0, 65504.0, 65536.0, 2147483520.0, 2147483648.0, -2147483904.0, 4294967296.0,
        9.223371487098962e18, 9.223372036854775807e18, -9.3e18, 1.8446744073709552e19, 88.7, -87.4, 104.0, -1e-30,
    ]  # fmt: skip


def _float_source(rng: Random, dtype: torch.dtype, kind: str) -> Callable[[], float]:
    info = torch.finfo(dtype)
    specials = special_floats(dtype)
    scale = rng.choice([info.max, info.max**0.5 * 100, info.max**0.5, info.max**0.3])
    plain: dict[str, Callable[[], float]] = {
        "small": lambda: rng.randint(-8, 8) / 2,
        "normal": lambda: rng.gauss(0, 1),
        "unit": rng.random,
        "zeros": lambda: rng.choice([0.0, 0.0, -0.0]),
        "special": lambda: rng.choice(specials),
        "mixed": lambda: rng.choice(specials) if rng.random() < 0.15 else rng.gauss(0, 3),
        "nan": lambda: math.nan if rng.random() < 0.2 else rng.gauss(0, 1),
        "huge": lambda: rng.uniform(-1, 1) * scale,
        "tiny": lambda: rng.uniform(-4, 4) * info.smallest_normal,
        "wide": lambda: rng.choice([1, -1]) * math.ldexp(1 + rng.random(), rng.randint(-30, 14)),
    }
    return plain[kind]


def _integer_source(rng: Random, dtype: torch.dtype, kind: str) -> Callable[[], int]:
    info = torch.iinfo(dtype)
    edges = [info.min, info.min + 1, info.max, info.max - 1, info.max // 2 + 1, 0, 1, 2, 3]
    edges += [e for e in (-1, -2, -3, 7, 255, 256, 46341, 65536, 2**31, 3037000500) if info.min <= e <= info.max]
    low = max(info.min, -8)
    plain: dict[str, Callable[[], int]] = {
        "zeros": lambda: 0,
        "special": lambda: rng.choice(edges),
        "huge": lambda: rng.choice([info.max - rng.randrange(4), info.min + rng.randrange(4)]),
        "mixed": lambda: rng.choice(edges) if rng.random() < 0.2 else rng.randint(low, 8),
        "wide": lambda: rng.randint(info.min, info.max),
        "unit": lambda: rng.randint(1, 9),
    }
    return plain.get(kind, lambda: rng.randint(low, 8))
