"""The C extension for the host-side work of a call: `burnish/runtime/native/host`.

It reads tensors without calling Python. For that it needs the offset of the C++ tensor in a Python tensor, and the
offsets of the dispatch keys and of the memory pointer in the C++ tensor. These offsets are searched here in sample
tensors with known values, and used only if all samples agree. If that or the build fails, Python does the same work.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.build.library_loading import load_library
from burnish.runtime.build.shared_library import NATIVE_DIR, CSource, build_shared, shared_bytes
from burnish.runtime.cache.store import open_cache
from burnish.runtime.process import has_started
from burnish.torch_private.tensors import TensorBase, dispatch_keys

_WORD = 8
_IN_PYTHON_OBJECT = range(16, 64, _WORD)  # behind the count of references and the type
_IN_TENSOR = range(_WORD, 200, _WORD)
_IN_STORAGE = range(_WORD, 64, _WORD)
_LAYOUTS = [((), ()), ((7,), (3,)), ((5, 6), (11, 13)), ((2, 3, 4), (4, 9, 1)), ((2, 3, 1, 2, 3), (31, 17, 19, 3, 5))]

Host = Any  # the module: Addresses, Route, Sealed, Launch, Segment, Fresh, Replay, Methods and more
_found: list[tuple[Host | None, str]] = []  # of this process, once it was looked for; or why there is none
_guard = threading.Lock()


def host_library(options: Options, log: CompileLog) -> Host | None:
    """The extension, built at its first use; None if it is not available, which `stats().notices` says."""
    return _sought(lambda: _built(options, CompileLog()), log)  # of no object's: the first would seem to have built it


def host_from(data: Callable[[], bytes], log: CompileLog) -> Host | None:
    """The extension, from a library that was built before, unless this process has one. If that library does not work
    here, it may still be built."""
    with _guard:
        if not _found:
            host, reason = _opened(lambda: _started(load_library(data(), "host", exported=False)))
            if host is None:
                log.noticed(f"host path in Python: {reason}")
                return None
            _found.append((host, reason))
    return _known(log)


def host_bytes(options: Options, level: str = "") -> bytes | None:
    """The library, as a file's content; None if it cannot be built. `level` names other processors than this one."""
    cache = open_cache(options)
    return shared_bytes(_source(), options=options, cache=cache, include=(_python_headers(),), level=level)


def _sought(make: Callable[[], Host], log: CompileLog) -> Host | None:
    with _guard:
        if not _found:
            _found.append(_opened(make))
    return _known(log)


def _known(log: CompileLog) -> Host | None:
    host, reason = _found[0]
    if host is None:
        log.noticed(f"host path in Python: {reason}")
    return host


def host_if_built() -> Host | None:
    """The extension, if it was requested before; does not wait for a compiler."""
    return _found[0][0] if _found else None


def host_was_sought() -> bool:
    """Whether what `host_if_built` says is the last word."""
    return bool(_found)


def prepare_host(options: Options) -> None:
    """Build it in the background, while the program that will use it is compiled. Without a thread, its first use
    builds it."""
    if not _found:
        work = (options, CompileLog())
        has_started(threading.Thread(target=host_library, args=work, name="burnish-host", daemon=True))


def _opened(make: Callable[[], Host]) -> tuple[Host | None, str]:
    try:
        if sysconfig.get_config_var("Py_GIL_DISABLED"):
            raise LookupError("a Python without its lock: the extension relies on it")
        host = make()
        host.open(_torch_library("cpu"), TensorBase, *_places(), *_places_of_memory(), _place_of_sizes())
        _check(host)
        _let_make_tensors(host)
    except Exception as error:  # whatever it is, Python does the same
        return None, str(error)
    return host, ""


def _built(options: Options, log: CompileLog) -> Host:
    include, cache = _python_headers(), open_cache(options)
    needs = (include / "Python.h",)
    return _started(build_shared(_source(), options=options, cache=cache, log=log, include=(include,), needs=needs))


def _source() -> CSource:
    text = (NATIVE_DIR / "host" / "host.c").read_text(encoding="utf-8")
    headers = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag  # of which Python
    return CSource(f"{text}\n/* for {headers} */\n", "host")


def _python_headers() -> Path:
    return Path(sysconfig.get_paths()["include"])


def _started(library: ctypes.CDLL) -> Host:
    # Loaded already, and under no name that could be opened again: this is the same for another kind of caller.
    start = ctypes.PyDLL(library._name, handle=library._handle).PyInit_burnish_host
    start.restype = ctypes.py_object
    return start()


def _torch_library(part: str) -> str:
    return str(Path(torch.__file__).parent / "lib" / f"libtorch_{part}.so")


def _places() -> tuple[int, int]:
    """The offset of the C++ tensor in a Python tensor, and of the dispatch keys in the C++ tensor."""
    known = _examples()
    tensor_at = [k for k in _IN_PYTHON_OBJECT if all(_word(id(x) + k) == x._cdata for x in known)]
    keys = [dispatch_keys(x).raw_repr() for x in known]
    keys_at = [k for k in _IN_TENSOR if all(_word(x._cdata + k) == each for x, each in zip(known, keys, strict=True))]
    if len(tensor_at) != 1 or len(keys_at) != 1:
        raise LookupError("tensors of this torch are laid out in an unknown way")
    return tensor_at[0], keys_at[0]


def _places_of_memory() -> tuple[int, int, int]:
    """The offsets of the storage and the storage offset in the C++ tensor, and of the data pointer in the C++ storage;
    -1 for all if one is unknown: then torch is called."""
    foreign = torch.frombuffer(bytearray(64), dtype=torch.uint8)  # whose owner is not its memory
    known = [foreign, *(torch.empty(70_000)[first:] for first in (0, 1234, 56_789)), *_examples()]
    memory = [x.untyped_storage() for x in known]
    storages = [each._cdata for each in memory]
    storage_at = _found_at(_IN_TENSOR, [x._cdata for x in known], storages)
    offset_at = _found_at(_IN_TENSOR, [x._cdata for x in known], [int(x.storage_offset()) for x in known])
    data_at = _found_at(_IN_STORAGE, storages, [each.data_ptr() for each in memory])
    places = (storage_at, offset_at, data_at)
    return (-1, -1, -1) if -1 in places else places


def _place_of_sizes() -> int:
    """The offset in the C++ tensor of its number of dimensions, followed by five inline sizes and five strides; -1 if
    unknown."""
    known = [torch.empty_strided(sizes, strides) for sizes, strides in _LAYOUTS]
    expected = [(x.dim(), *x.shape, *[None] * (5 - x.dim()), *x.stride()) for x in known]

    def fits(place: int) -> bool:
        return all(
            word is None or _word(x._cdata + place + _WORD * k) == word
            for x, words in zip(known, expected, strict=True)
            for k, word in enumerate(words)
        )

    found = [place for place in range(_WORD, 128, _WORD) if fits(place)]
    return found[0] if len(found) == 1 else -1


def _found_at(places: range, objects: list[int], expected: list[int]) -> int:
    """The only offset at which each object (given by its address) has the expected value; -1 if there is none."""
    fits = [k for k in places if all(_word(at + k) == each for at, each in zip(objects, expected, strict=True))]
    return fits[0] if len(fits) == 1 else -1


def _examples() -> list[torch.Tensor]:
    """Tensors of many kinds: only the right word agrees with all of them."""
    with torch.inference_mode():
        inference = torch.empty(2)
    plain, imaginary = torch.empty(2, 3), torch.empty(2, dtype=torch.complex64)
    parameter = torch.nn.Parameter(torch.empty(2))
    return [plain, plain.t(), inference, imaginary, imaginary.conj(), torch.empty(3, device="meta"), parameter]


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _check(host: Host) -> None:
    """Check that it reads the same values as Python."""
    known = [x for x in _examples() if x.device.type == "cpu"]
    addresses = [x.data_ptr() for x in known]
    positions = list(range(len(known)))
    same = host.Addresses(positions, addresses)
    for _ in range(2):  # the second time it remembers what it saw
        if not same(known) or same([*known[:-1], known[0]]):
            raise LookupError("tensors' addresses are read in a wrong way")


def _let_make_tensors(host: Host) -> None:
    """Without it, `Fresh` raises ImportError, and Python makes a call's results."""
    with contextlib.suppress(ImportError):
        host.make_with(_torch_library("cpu"), _torch_library("python"))
        _check_made(host)


def _check_made(host: Host) -> None:
    """Tensors made in C are what Python would have made."""
    known = [torch.empty(2, 3), torch.empty(3, 2, dtype=torch.bfloat16).t(), torch.empty((), dtype=torch.int64)]
    for mode in (False, True):
        with torch.inference_mode(mode):
            for made, like in zip(host.Fresh(known)(), known, strict=True):
                same = made.dtype == like.dtype and made.shape == like.shape and made.stride() == like.stride()
                if not same or type(made) is not torch.Tensor or made.is_inference() != mode or made.requires_grad:
                    raise LookupError("tensors are made in a wrong way")
