"""The file of a pack: a manifest and its members.

    magic, 16 bytes | length of the manifest, 8 bytes | manifest, JSON | members, deflated, in the manifest's order |
    length of the signature, 2 bytes | signature | SHA-256 of all that

Nothing in it is trusted. The checksum of the whole file is checked first, then the sizes that the manifest states,
before anything is decompressed. Names of members come from a closed set, and are never used as paths.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import PackDamaged

MAGIC = b"burnish pack\0\0\0\x01"
_LENGTH, _SHORT, _DIGEST = 8, 2, 32
_FILE_BYTES, _MANIFEST_BYTES, _MEMBER_BYTES, _TOTAL_BYTES = 1 << 30, 1 << 22, 1 << 28, 1 << 30
_MOST_MEMBERS, _SIGNATURE_BYTES = 4096, 64
_NAME = re.compile(r"variants/\d{1,4}\.json|programs/\d{1,4}\.json|libraries/(native|native-f64|host|\d{1,4})\.so")


@dataclass(frozen=True)
class Content:
    """A pack's file, read and checked."""

    manifest: Mapping[str, Any]
    members: Mapping[str, bytes]
    body: bytes  # what a signature is of
    signature: bytes


def packed(manifest: Mapping[str, Any], members: Mapping[str, bytes]) -> bytes:
    """What a signature is of: everything before it."""
    deflated = {name: zlib.compress(data, 6) for name, data in members.items()}
    described = [
        {"name": name, "size": len(data), "stored": len(deflated[name]), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in members.items()
    ]
    text = json.dumps({**manifest, "members": described}, separators=(",", ":")).encode()
    return b"".join((MAGIC, len(text).to_bytes(_LENGTH, "little"), text, *deflated.values()))


def sealed(body: bytes, signature: bytes = b"") -> bytes:
    whole = b"".join((body, len(signature).to_bytes(_SHORT, "little"), signature))
    return whole + hashlib.sha256(whole).digest()


def write(path: Path, data: bytes) -> None:
    """A reader sees the whole file or none."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path) -> Content:
    """Raises PackDamaged, or OSError."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise PackDamaged(str(path), "it is not a file")
        if status.st_size > _FILE_BYTES:
            raise PackDamaged(str(path), f"its {status.st_size} bytes are more than {_FILE_BYTES}")
        data = file.read(_FILE_BYTES + 1)
    try:
        return parsed(data)
    except _Malformed as error:
        raise PackDamaged(str(path), str(error)) from None


class _Malformed(Exception):
    pass


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise _Malformed(reason)


def parsed(data: bytes) -> Content:
    head = len(MAGIC) + _LENGTH
    _require(data.startswith(MAGIC), "it is not a burnish pack, or one of another format")
    _require(len(data) >= head + _SHORT + _DIGEST, "it is cut off")
    whole, digest = data[:-_DIGEST], data[-_DIGEST:]
    _require(hashlib.sha256(whole).digest() == digest, "its bytes do not match their checksum")
    length = int.from_bytes(data[len(MAGIC) : head], "little")
    _require(length <= min(_MANIFEST_BYTES, len(whole) - head), "its manifest is longer than it may be")
    manifest = _object(data[head : head + length])
    members, end = _members(whole, head + length, manifest.get("members"))
    signature = whole[end + _SHORT :]
    stated = int.from_bytes(whole[end : end + _SHORT], "little")
    _require(len(whole) >= end + _SHORT and len(signature) == stated, "it has bytes of no member")
    _require(stated in (0, _SIGNATURE_BYTES), "its signature is none")
    return Content(manifest, members, whole[:end], signature)


def _object(text: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise _Malformed("its manifest cannot be read") from None
    _require(type(found) is dict, "its manifest cannot be read")
    checked: Mapping[str, Any] = found
    return checked


def _members(data: bytes, start: int, listed: Any) -> tuple[dict[str, bytes], int]:
    _require(type(listed) is list and len(listed) <= _MOST_MEMBERS, "its manifest lists no members")
    _require(all(map(_is_described, listed)), "its manifest describes a member wrongly")
    names = [each["name"] for each in listed]
    _require(len(set(names)) == len(names), "two of its members have one name")
    for name in names:
        _require(_NAME.fullmatch(name) is not None, f"it has a member {name[:100]!r}, of no kind that a pack has")
    _require(sum(each["size"] for each in listed) <= _TOTAL_BYTES, "its members are larger than they may be")
    members: dict[str, bytes] = {}
    for each in listed:
        end = start + each["stored"]
        _require(end <= len(data), f"its member {each['name']} is cut off")
        members[each["name"]] = _inflated(data[start:end], each)
        start = end
    return members, start


def _is_described(each: Any) -> bool:
    if type(each) is not dict or each.keys() != {"name", "size", "stored", "sha256"}:
        return False
    sizes = (each["size"], each["stored"])
    return (
        all(type(size) is int and 0 <= size <= _MEMBER_BYTES for size in sizes)
        and type(each["name"]) is str
        and type(each["sha256"]) is str
    )


def _inflated(data: bytes, described: Mapping[str, Any]) -> bytes:
    reader = zlib.decompressobj()
    try:
        found = reader.decompress(data, described["size"] + 1)  # one more than it may have
    except zlib.error:
        raise _Malformed(f"its member {described['name']} cannot be decompressed") from None
    whole = reader.eof and not reader.unused_data and len(found) == described["size"]
    _require(whole and hashlib.sha256(found).hexdigest() == described["sha256"], f"its {described['name']} is damaged")
    return found
