"""The file of a pack: a manifest and its members.

    magic, 16 bytes | length of the manifest, 8 bytes | manifest, JSON | members, deflated, in the manifest's order |
    length of the signature, 2 bytes | signature | SHA-256 of all that

Nothing in it is trusted. The checksum of the whole file is checked first, then the signature, if one is required, and
only then is the manifest parsed. The sizes that it states are checked before anything is decompressed, and bound what
is. Names of members come from a closed set, and are never used as paths.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import PackDamaged

MAGIC = b"burnish pack\0\0\0\x01"
HOST, RUNTIME, RUNTIME_F64 = (f"libraries/{name}.so" for name in ("host", "native", "native-f64"))
_LENGTH, _SHORT, _DIGEST = 8, 2, 32
_FILE_BYTES, _MANIFEST_BYTES, _MEMBER_BYTES, _TOTAL_BYTES = 1 << 30, 1 << 22, 1 << 28, 1 << 30
_MOST_MEMBERS, _SIGNATURE_BYTES = 4096, 64
# Programs and guards deflate to a twentieth, and zlib's limit is a thousandth: a member beyond this is there to fill
# memory.
_MOST_DEFLATED, _SMALL = 200, 1 << 16
_NAME = re.compile(
    r"variants/\d{1,4}\.json|programs/\d{1,4}\.json"
    r"|libraries/([a-z0-9-]{1,32}/)?(native|native-f64|host|\d{1,4})\.so"
)


def library_for(level: str, name: str) -> str:
    """The member that has a library's machine code for these processors; `name` is that for the one it was packed on,
    whose level is ""."""
    folder, _, file = name.partition("/")
    return f"{folder}/{level}/{file}" if level else name


@dataclass(frozen=True)
class Content:
    """A pack's file, read and checked."""

    manifest: Mapping[str, Any]
    members: Mapping[str, bytes]
    body: bytes  # what a signature is of
    signature: bytes


Check = Callable[[bytes, bytes], None]  # of a body and its signature: it raises if that is not the right one


def packed(manifest: Mapping[str, Any], members: Mapping[str, bytes]) -> bytes:
    """What a signature is of: everything before it."""
    deflated = {name: _deflated(data) for name, data in members.items()}
    described = [
        {"name": name, "size": len(data), "stored": len(deflated[name]), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in members.items()
    ]
    text = json.dumps({**manifest, "members": described}, separators=(",", ":")).encode()
    return b"".join((MAGIC, len(text).to_bytes(_LENGTH, "little"), text, *deflated.values()))


def _deflated(data: bytes) -> bytes:
    found = zlib.compress(data, 6)
    return found if _is_plausible(len(data), len(found)) else zlib.compress(data, 0)


def _is_plausible(size: int, stored: int) -> bool:
    return size <= _SMALL + stored * _MOST_DEFLATED


def sealed(body: bytes, signature: bytes = b"") -> bytes:
    whole = b"".join((body, len(signature).to_bytes(_SHORT, "little"), signature))
    return whole + hashlib.sha256(whole).digest()


def write(path: Path, data: bytes) -> None:
    """A reader sees the whole file or none. Raises OSError with the name of `path`, or TooLarge for a file that `read`
    would refuse."""
    try:
        parsed(data)
    except _Malformed as error:
        raise TooLarge(str(error)) from None
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():  # a rename would put a file in a device's place
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:  # it names the temporary file
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with contextlib.suppress(OSError):  # the folder may be the reason
            temporary.unlink()


def read(path: Path, require_signature: Check | None = None) -> Content:
    """Raises PackDamaged, OSError, or what `require_signature` raises. That is called before anything is parsed."""
    try:
        return parsed(_bytes_of(path), require_signature)
    except _Malformed as error:
        raise PackDamaged(str(path), str(error)) from None


def _without_waiting(path: str, flags: int) -> int:
    """For the other end of a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _bytes_of(path: Path) -> bytes:
    with open(path, "rb", opener=_without_waiting) as file:
        status = os.fstat(file.fileno())
        _require(stat.S_ISREG(status.st_mode), "it is not a file")
        _require(status.st_size <= _FILE_BYTES, f"its {status.st_size} bytes are more than {_FILE_BYTES}")
        return file.read(_FILE_BYTES + 1)


class TooLarge(Exception):
    """Why a pack cannot be written."""


class _Malformed(Exception):
    pass


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise _Malformed(reason)


def parsed(data: bytes, require_signature: Check | None = None) -> Content:
    head = len(MAGIC) + _LENGTH
    _require(data.startswith(MAGIC), "it is not a burnish pack, or one of another format")
    _require(len(data) >= head + _SHORT + _DIGEST, "it is cut off")
    whole, digest = data[:-_DIGEST], data[-_DIGEST:]
    _require(hashlib.sha256(whole).digest() == digest, "its bytes do not match their checksum")
    if require_signature is not None:
        require_signature(*_apart(whole))
    length = int.from_bytes(data[len(MAGIC) : head], "little")
    _require(length <= min(_MANIFEST_BYTES, len(whole) - head), "its manifest is longer than it may be")
    manifest = _object(data[head : head + length])
    listed = _listed(manifest.get("members"))
    end = head + length + sum(each["stored"] for each in listed)
    stated = int.from_bytes(whole[end : end + _SHORT], "little")
    _require(len(whole) == end + _SHORT + stated, "it is cut off, or has bytes of no member")
    _require(stated in (0, _SIGNATURE_BYTES), "its signature is none")
    members = _inflated(whole, head + length, listed)
    return Content(manifest, members, whole[:end], whole[end + _SHORT :])


def _apart(whole: bytes) -> tuple[bytes, bytes]:
    """The body and the signature, by the length before a signature: where the body ends, only the manifest says. A body
    without a signature that ends like this is none that was signed."""
    length = _SIGNATURE_BYTES.to_bytes(_SHORT, "little")
    start = len(whole) - _SIGNATURE_BYTES
    return (whole[: start - _SHORT], whole[start:]) if whole[:start].endswith(length) else (whole[:-_SHORT], b"")


def _object(text: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise _Malformed("its manifest cannot be read") from None
    _require(type(found) is dict, "its manifest cannot be read")
    checked: Mapping[str, Any] = found
    return checked


def _listed(listed: Any) -> list[dict[str, Any]]:
    _require(type(listed) is list and len(listed) <= _MOST_MEMBERS, "its manifest lists no members")
    _require(all(map(_is_described, listed)), "its manifest describes a member wrongly")
    names = [each["name"] for each in listed]
    _require(len(set(names)) == len(names), "two of its members have one name")
    for name in names:
        _require(_NAME.fullmatch(name) is not None, f"it has a member {name[:100]!r}, of no kind that a pack has")
    for each in listed:
        _require(_is_plausible(each["size"], each["stored"]), f"its {each['name']} is larger than it may be")
    _require(sum(each["size"] for each in listed) <= _TOTAL_BYTES, "its members are larger than they may be")
    checked: list[dict[str, Any]] = listed
    return checked


def _inflated(data: bytes, start: int, listed: Iterable[Mapping[str, Any]]) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    for each in listed:
        end = start + each["stored"]
        members[each["name"]] = _inflated_member(data[start:end], each)
        start = end
    return members


def _is_described(each: Any) -> bool:
    if type(each) is not dict or each.keys() != {"name", "size", "stored", "sha256"}:
        return False
    sizes = (each["size"], each["stored"])
    return (
        all(type(size) is int and 0 <= size <= _MEMBER_BYTES for size in sizes)
        and type(each["name"]) is str
        and type(each["sha256"]) is str
    )


def _inflated_member(data: bytes, described: Mapping[str, Any]) -> bytes:
    reader = zlib.decompressobj()
    try:
        found = reader.decompress(data, described["size"] + 1)  # one more than it may have
    except zlib.error:
        raise _Malformed(f"its member {described['name']} cannot be decompressed") from None
    whole = reader.eof and not reader.unused_data and len(found) == described["size"]
    _require(whole and hashlib.sha256(found).hexdigest() == described["sha256"], f"its {described['name']} is damaged")
    return found
