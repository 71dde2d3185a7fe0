"""Every setting of burnish, in one frozen dataclass, and the only place where environment variables are read.

An `Options` value is made once per compiled object and passed down explicitly; no stage reads settings elsewhere.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from burnish.errors import BadOptionValue, ModeWithOptions, UnknownMode, UnknownOption
from burnish.trust.faults import Fault
from burnish.tuning.record import Tuning

MODES: tuple[str, ...] = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

Regions = Literal["auto"] | tuple[type | str, ...] | None

_DEFAULT_CACHE_LIMIT = 2 << 30
LOG_LEVELS: tuple[str, ...] = ("debug", "info", "warning", "error")
_SUFFIXES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """The valid word closest to the user's, or None if none is close."""
    close = difflib.get_close_matches(word.lower(), list(valid), n=1, cutoff=0.4)
    return close[0] if close else None


def _env_path(variable: str) -> Path | None:
    text = os.environ.get(variable, "").strip()
    return Path(text).expanduser() if text else None


def _env_text(variable: str) -> str | None:
    return os.environ.get(variable, "").strip() or None


def _env_bool(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() not in ("", "0", "false", "no", "off")


def _env_switch(variable: str) -> bool:
    """A switch that is on by default."""
    return not os.environ.get(variable, "").strip() or _env_bool(variable)


def _env_count(variable: str) -> int | None:
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    try:
        return _bytes(text)
    except ValueError:
        raise BadOptionValue(variable, text, "a whole number such as 4096, 512M or 2G") from None


def _env_seconds(variable: str, otherwise: float) -> float:
    text = os.environ.get(variable, "").strip()
    try:
        return _as_seconds(float(text)) if text else otherwise
    except ValueError:
        raise BadOptionValue(variable, text, "a number of seconds above 0") from None


def _bytes(text: str) -> int:
    scale = _SUFFIXES.get(text[-1].lower(), 1)
    value = int(text[:-1] if scale > 1 else text) * scale
    if value < 0:
        raise ValueError(text)
    return value


def _env_products() -> Literal["measured", "ours", "library"]:
    text = os.environ.get("BURNISH_PRODUCTS", "").strip()
    try:
        return _as_products(text) if text else "measured"
    except ValueError:
        raise BadOptionValue("BURNISH_PRODUCTS", text, _PRODUCTS) from None


def _env_log() -> str | None:
    text = os.environ.get("BURNISH_LOG", "").strip()
    try:
        return _as_level(text) if text else None
    except ValueError:
        raise BadOptionValue("BURNISH_LOG", text, f"one of {', '.join(LOG_LEVELS)}") from None


def _cache_dir() -> Path:
    return _env_path("BURNISH_CACHE_DIR") or Path("~/.cache/burnish").expanduser()


def _cache_limit() -> int:
    limit = _env_count("BURNISH_CACHE_LIMIT")
    return _DEFAULT_CACHE_LIMIT if limit is None else limit


def find_compiler() -> str | None:
    """The C compiler to run: the user's choice, else the first one on PATH, else None (a lower tier is used)."""
    named = os.environ.get("BURNISH_CC", "").strip() or os.environ.get("CC", "").strip()
    return named or next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


@dataclass(frozen=True)
class Options:
    """The settings of one compiled object. `mode`, `fullgraph` and `dynamic` are arguments of `burnish.compile`;
    the others are the words its `options=` accepts, each with the environment variable that sets its default."""

    mode: str | None = None
    fullgraph: bool = False
    dynamic: bool | None = None
    background: bool = False  # compile in another thread; until that is done, calls run in eager
    budget: float | None = None  # seconds that a call may wait for compiling, or that compiling may take beside it
    cache_dir: Path = field(default_factory=_cache_dir)  # BURNISH_CACHE_DIR
    cache_limit_bytes: int = field(default_factory=_cache_limit)  # BURNISH_CACHE_LIMIT
    cc: str | None = field(default_factory=find_compiler)  # BURNISH_CC, then CC
    # BURNISH_COMPILER_SECONDS: how long the C compiler may take for a small file, before it is ended and eager serves
    compiler_seconds: float = field(default_factory=lambda: _env_seconds("BURNISH_COMPILER_SECONDS", 20.0))
    dump_dir: Path | None = field(default_factory=lambda: _env_path("BURNISH_DUMP"))  # BURNISH_DUMP
    fuel: int | None = field(default_factory=lambda: _env_count("BURNISH_FUEL"))  # BURNISH_FUEL
    threads: int | None = None  # None: as many as torch uses
    cache: str | None = field(default_factory=lambda: _env_text("BURNISH_CACHE"))  # BURNISH_CACHE: a shared store's URL
    # BURNISH_CACHE_SIGN, BURNISH_CACHE_VERIFY_KEY: ed25519 keys; a private one signs, entries of a public one are used
    cache_sign: Path | None = field(default_factory=lambda: _env_path("BURNISH_CACHE_SIGN"))
    cache_verify_key: Path | None = field(default_factory=lambda: _env_path("BURNISH_CACHE_VERIFY_KEY"))
    disable_cache: bool = field(default_factory=lambda: _env_bool("BURNISH_NO_CACHE"))  # BURNISH_NO_CACHE
    warm_start: bool = field(default_factory=lambda: _env_switch("BURNISH_WARM_START"))  # BURNISH_WARM_START
    cuda_graphs: bool | None = None  # None: in the modes reduce-overhead and max-autotune
    graph_limit: int = 16  # CUDA graphs that an object keeps on a device; the least recently used goes first
    reuse_outputs: bool = False  # results are a CUDA graph's own memory, which the next call overwrites
    products: Literal["measured", "ours", "library"] = field(default_factory=_env_products)  # BURNISH_PRODUCTS
    verify_ir: bool = field(default_factory=lambda: _env_bool("BURNISH_VERIFY"))  # BURNISH_VERIFY
    log: str | None = field(default_factory=_env_log)  # BURNISH_LOG: print log lines of this level and above
    events: Path | None = field(default_factory=lambda: _env_path("BURNISH_EVENTS"))  # BURNISH_EVENTS: JSON lines
    latency: bool = field(default_factory=lambda: _env_bool("BURNISH_LATENCY"))  # BURNISH_LATENCY: time every call
    # Compare each graph with eager at its first call. first: unless an earlier process has compared the same program.
    verify: Literal["first", "always", "off"] = "first"
    gate: bool = field(default_factory=lambda: _env_switch("BURNISH_GATE"))  # BURNISH_GATE: use what is faster only
    sample: float = 0.0  # share of later calls that are compared with eager
    inductor: bool = False  # backend="auto": Inductor takes part in the race
    regions: Regions = "auto"  # blocks that are traced once and copied: found, none, or these classes and modules
    fault: Fault | None = None  # fault injection: burnish/trust/faults.py
    tuning: Tuning | None = None  # a record of forms, as max-autotune found them, for kernels on a GPU

    @property
    def searches(self) -> bool:
        """Whether the forms of kernels on a GPU are measured."""
        return self.mode in ("max-autotune", "max-autotune-no-cudagraphs")

    @property
    def preloads_libraries(self) -> bool:
        """Whether a thread preloads the GPU libraries for the trial during the compile: not during a search, whose
        times it would disturb."""
        return (self.gate or self.verify != "off") and not self.searches

    @property
    def captures_graphs(self) -> bool:
        """Whether programs on a GPU become CUDA graphs."""
        if self.cuda_graphs is None:
            return self.mode in ("reduce-overhead", "max-autotune")
        return self.cuda_graphs

    @classmethod
    def from_arguments(
        cls,
        *,
        mode: str | None = None,
        options: Mapping[str, object] | Options | None = None,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        trust: Mapping[str, object] | None = None,
    ) -> Options:
        """Check the user's arguments of `burnish.compile` and make the settings; a mistake raises at once.

        `trust` has options that are also separate arguments and may be combined with a mode: None keeps the default."""
        if mode is not None and options:
            raise ModeWithOptions()
        if mode is not None and mode not in MODES:
            raise UnknownMode(str(mode), nearest(str(mode), MODES), MODES)
        for argument, value, allowed in (("fullgraph", fullgraph, (bool,)), ("dynamic", dynamic, (bool, type(None)))):
            if not isinstance(value, allowed):
                raise BadOptionValue(argument, value, "True or False" + (", or None" if len(allowed) > 1 else ""))
        given = {name: _checked(name, value) for name, value in (trust or {}).items() if value is not None}
        if isinstance(options, Options):
            return dataclasses.replace(options, fullgraph=fullgraph, dynamic=dynamic, **given)  # type: ignore[arg-type]
        checked = {name: _checked(name, value) for name, value in (options or {}).items()} | given
        return dataclasses.replace(cls(mode=mode, fullgraph=fullgraph, dynamic=dynamic), **checked)  # type: ignore[arg-type]


def _as_path(value: object) -> Path:
    if isinstance(value, (str, os.PathLike)) and str(value):
        return Path(value).expanduser()
    raise TypeError(value)


def _as_text(value: object) -> str:
    if isinstance(value, (str, os.PathLike)) and str(value):
        return str(value)
    raise TypeError(value)


def _as_count(value: object) -> int:
    if isinstance(value, str) and value:
        return _bytes(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise TypeError(value)


def _as_threads(value: object) -> int:
    if (threads := _as_count(value)) > 0:
        return threads
    raise ValueError(value)


def _as_seconds(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf"):
        return float(value)
    raise ValueError(value)


def _as_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise TypeError(value)


def _as_verify(value: object) -> str:
    if value in ("first", True):
        return "first"
    if value in ("off", False):
        return "off"
    if value == "always":
        return "always"
    raise ValueError(value)


_PRODUCTS = "'measured', 'ours' or 'library'"


def _as_products(value: object) -> Literal["measured", "ours", "library"]:
    if value in ("measured", "ours", "library"):
        return value
    raise ValueError(value)


def _as_share(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 <= value <= 1.0:
        return float(value)
    raise ValueError(value)


def _as_fault(value: object) -> Fault:
    if isinstance(value, Fault):
        return value
    raise TypeError(value)


def _as_tuning(value: object) -> Tuning:
    try:
        return Tuning.read(value)
    except OSError as error:
        raise ValueError(value) from error


def _as_regions(value: object) -> Regions:
    if value == "auto":
        return "auto"
    if value == "none":
        return None
    if isinstance(value, (list, tuple)) and all(isinstance(item, (type, str)) for item in value):
        return tuple(value)
    raise TypeError(value)


def _as_level(value: object) -> str:
    if isinstance(value, str) and value.lower() in LOG_LEVELS:
        return value.lower()
    raise ValueError(value)


# name -> (reader, may be None, what to tell a user who got it wrong)
_READERS: Mapping[str, tuple[Callable[[object], object], bool, str]] = {
    "cache_dir": (_as_path, False, "a directory"),
    "cache_limit_bytes": (_as_count, False, "a number of bytes such as 4096, '512M' or '2G'"),
    "cache": (_as_text, True, "a URL that fsspec knows, such as s3://bucket/folder, or None"),
    "cache_sign": (_as_path, True, "the file of a private key, or None"),
    "cache_verify_key": (_as_path, True, "the file of a public key, or None"),
    "cc": (_as_text, True, "a C compiler's command, or None"),
    "compiler_seconds": (_as_seconds, False, "a number of seconds above 0"),
    "dump_dir": (_as_path, True, "a directory, or None"),
    "fuel": (_as_count, True, "a whole number of rewrites, or None"),
    "threads": (_as_threads, True, "a whole number of at least 1, or None"),
    "disable_cache": (_as_bool, False, "True or False"),
    "warm_start": (_as_bool, False, "True or False"),
    "cuda_graphs": (_as_bool, True, "True, False, or None"),
    "graph_limit": (_as_threads, False, "a whole number of at least 1"),
    "reuse_outputs": (_as_bool, False, "True or False"),
    "products": (_as_products, False, _PRODUCTS),
    "verify_ir": (_as_bool, False, "True or False"),
    "log": (_as_level, True, f"one of {', '.join(LOG_LEVELS)}, or None"),
    "events": (_as_path, True, "a file, or None"),
    "latency": (_as_bool, False, "True or False"),
    "background": (_as_bool, False, "True or False"),
    "budget": (_as_seconds, True, "a number of seconds above 0, or None"),
    "verify": (_as_verify, False, "'first', 'always' or 'off'"),
    "gate": (_as_bool, False, "True or False"),
    "sample": (_as_share, False, "a share of calls from 0 to 1"),
    "inductor": (_as_bool, False, "True or False"),
    "regions": (_as_regions, True, "'auto', None, or a list of classes and names of modules"),
    "fault": (_as_fault, True, "a burnish.trust.faults.Fault, or None"),
    "tuning": (_as_tuning, True, "what `burnish explain --tuning` printed: its file, or the dict, or None"),
}

OPTION_NAMES: tuple[str, ...] = tuple(_READERS)


def _checked(name: object, value: object) -> object:
    if not isinstance(name, str) or name not in _READERS:
        raise UnknownOption(str(name), nearest(str(name), OPTION_NAMES), OPTION_NAMES)
    read, optional, expected = _READERS[name]
    if value is None and optional:
        return None
    try:
        return read(value)
    except (TypeError, ValueError):
        raise BadOptionValue(name, value, expected) from None


# -- told by `burnish doctor` -------------------------------------------------------------------------------------

# Other libraries' variables that affect compiled code.
_OTHERS = (
    "CC", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OMP_WAIT_POLICY",
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "TRITON_CACHE_DIR",
    "TRITON_INTERPRET",
)  # fmt: skip

# What each of ours does, in a few words.
VARIABLES: Mapping[str, str] = {
    "BURNISH_CACHE": "which store is shared with other machines",
    "BURNISH_CACHE_SIGN": "the key that signs what goes to that store",
    "BURNISH_CACHE_VERIFY_KEY": "the key whose entries are used from that store",
    "BURNISH_CACHE_DIR": "where the cache is",
    "BURNISH_CACHE_LIMIT": "how large the cache may grow",
    "BURNISH_CC": "which C compiler to run",
    "BURNISH_COMPILER_SECONDS": "how long the C compiler may take",
    "BURNISH_DUMP": "every stage's output is written to this folder",
    "BURNISH_EVENTS": "events are written to this file as JSON lines",
    "BURNISH_FUEL": "how many rewrites and fusions are made",
    "BURNISH_GATE": "whether eager serves where it is faster",
    "BURNISH_LATENCY": "calls are timed",
    "BURNISH_LOG": "log lines are printed",
    "BURNISH_NO_CACHE": "no cache on disk",
    "BURNISH_PRODUCTS": "who multiplies matrices on a CPU",
    "BURNISH_VERIFY": "every stage's output is checked",
    "BURNISH_WARM_START": "whether what earlier processes compiled is used",
}


def variables_set() -> dict[str, str]:
    """The variables of this process's environment that change what burnish does, ours (known or not) first."""
    ours = sorted(name for name in os.environ if name.startswith("BURNISH_"))
    return {name: os.environ[name] for name in (*ours, *_OTHERS) if os.environ.get(name, "").strip()}


def triton_variables() -> dict[str, str]:
    """The variables that affect Triton's output for a kernel; those for its directories do not count."""
    places = ("TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_DUMP_DIR")
    names = sorted(name for name in os.environ if name.startswith(("TRITON_", "LLVM_", "MLIR_")) and name not in places)
    return {name: os.environ[name] for name in names}
