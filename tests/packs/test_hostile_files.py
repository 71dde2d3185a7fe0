"""A pack's file is data from somewhere: damaged, foreign or hostile, it raises, and nothing of it runs."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import burnish
from burnish.errors import PackDamaged, PackDiffers
from burnish.packs import container, loading
from burnish.packs.data import decoded
from burnish.runtime.cache.data import NotData
from tests.packs.models import tiny


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def again(
    path: Path,
    change: Callable[[dict[str, Any], dict[str, bytes]], None],
    of: Path,
) -> Path:
    """A well-formed file with another content."""
    found = container.read(of)
    manifest, members = json.loads(json.dumps(found.manifest)), dict(found.members)
    change(manifest, members)
    return written(path, container.sealed(container.packed(manifest, members)))


# -- damaged ------------------------------------------------------------------------------------------------------


def test_a_thousand_mutated_files(of_tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_loaded", lambda *args: pytest.fail("a damaged pack was used"))
    whole = of_tiny.read_bytes()
    draw = random.Random(17)
    for _ in range(1000):
        data = bytearray(whole)
        kind = draw.choice(("flip", "cut", "grow", "swap", "zero"))
        at = draw.randrange(len(data))
        if kind == "flip":
            for _ in range(draw.choice((1, 1, 8))):
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        elif kind == "cut":
            del data[at:]
        elif kind == "grow":
            data[at:at] = draw.randbytes(draw.randrange(1, 64))
        elif kind == "swap":
            other = draw.randrange(len(data) - 64)
            data[at : at + 64], data[other : other + 64] = data[other : other + 64], data[at : at + 64]
        else:
            data[at : at + 32] = bytes(len(data[at : at + 32]))
        if bytes(data) == whole:
            continue
        with pytest.raises(container._Malformed):
            container.parsed(bytes(data))


def test_a_thousand_mutated_files_with_right_checksums(of_tiny: Path) -> None:
    """Whoever changes a file may also compute its checksum: what is inside must be found wrong, or be read as data."""
    whole = of_tiny.read_bytes()[:-32]
    draw = random.Random(23)
    read = 0
    for _ in range(1000):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 2, 8))):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        try:
            container.parsed(bytes(data) + hashlib.sha256(data).digest())
            read += 1
        except container._Malformed:
            pass
    assert read < 500  # most bytes are of members, which have checksums of their own


def test_mutated_variants_are_data_or_refused(of_tiny: Path) -> None:
    text = container.read(of_tiny).members["variants/0.json"]
    draw = random.Random(29)
    for _ in range(200):
        data = bytearray(text)
        for _ in range(4):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        with contextlib.suppress(NotData):
            decoded(bytes(data))


def test_a_file_that_is_no_pack(tmp_path: Path) -> None:
    for data in (b"", b"PK\x03\x04", container.MAGIC, container.MAGIC + b"\xff" * 100):
        with pytest.raises(PackDamaged, match=r"a\.burnish"):
            burnish.load(written(tmp_path / "a.burnish", data), tiny())
    with pytest.raises(PackDamaged, match="not a file"):
        burnish.load("/dev/null", tiny())
    with pytest.raises(FileNotFoundError):
        burnish.load(tmp_path / "none", tiny())


# -- hostile ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../escape", "/etc/passwd", "variants/../../x.json", "libraries/0.so\x00", "variants/0.json/", "code.py"]
)
def test_names_of_members_come_from_a_closed_set(of_tiny: Path, tmp_path: Path, name: str) -> None:
    def change(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
        members[name] = b"x"

    with pytest.raises(PackDamaged, match="of no kind that a pack has"):
        burnish.load(again(tmp_path / "a.burnish", change, of_tiny), tiny())


def _with_manifest(body: bytes, manifest: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(manifest).encode()
    return container.sealed(b"".join((container.MAGIC, len(text).to_bytes(8, "little"), text, data)))


@pytest.mark.parametrize(
    "described",
    [
        {"size": 1 << 40},
        {"size": -1},
        {"size": 10},
        {"stored": 1 << 20},
        {"size": "1"},
        {"sha256": "0" * 64},
        {"name": 7},
        {"more": 1},
    ],
)
def test_members_are_as_described(tmp_path: Path, described: dict[str, Any]) -> None:
    bomb = zlib.compress(bytes(1 << 20))
    right = {
        "name": "variants/0.json",
        "size": 1 << 20,
        "stored": len(bomb),
        "sha256": hashlib.sha256(bytes(1 << 20)).hexdigest(),
    }
    body = _with_manifest(b"", {"members": [{**right, **described}]}, bomb)
    with pytest.raises(PackDamaged):
        container.read(written(tmp_path / "a.burnish", body))


@pytest.mark.parametrize("members", [None, {}, "x", [[]], [1], [{"name": "variants/0.json"}]])
def test_lists_of_members_that_are_none(tmp_path: Path, members: Any) -> None:
    with pytest.raises(PackDamaged):
        container.read(written(tmp_path / "a.burnish", _with_manifest(b"", {"members": members}, b"")))


def test_a_deep_manifest(tmp_path: Path) -> None:
    text = b"[" * 100_000
    body = b"".join((container.MAGIC, len(text).to_bytes(8, "little"), text))
    with pytest.raises(PackDamaged, match="cannot be read"):
        container.read(written(tmp_path / "a.burnish", container.sealed(body)))


def test_two_members_of_one_name(tmp_path: Path) -> None:
    data = zlib.compress(b"x")
    each = {"name": "variants/0.json", "size": 1, "stored": len(data), "sha256": hashlib.sha256(b"x").hexdigest()}
    body = _with_manifest(b"", {"members": [each, each]}, data * 2)
    with pytest.raises(PackDamaged, match="one name"):
        container.read(written(tmp_path / "a.burnish", body))


def test_a_bomb_is_not_inflated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_inflated", lambda *_: pytest.fail("it was inflated"))
    data = bytes(1 << 22)
    bomb = zlib.compress(data)
    each = {
        "name": "variants/0.json",
        "size": len(data),
        "stored": len(bomb),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    with pytest.raises(PackDamaged, match="larger than it may be"):
        container.read(written(tmp_path / "a.burnish", _with_manifest(b"", {"members": [each]}, bomb)))


def test_members_of_zeros_are_written_so_that_they_are_read(tmp_path: Path) -> None:
    members = {"variants/0.json": bytes(1 << 20)}
    path = written(tmp_path / "a.burnish", container.sealed(container.packed({}, members)))
    assert container.read(path).members == members


def test_more_than_may_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_TOTAL_BYTES", 100)
    data = container.sealed(container.packed({}, {"variants/0.json": bytes(101)}))
    with pytest.raises(container.TooLarge, match="larger than they may be"):
        container.write(tmp_path / "a.burnish", data)
    assert not list(tmp_path.iterdir())


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PackDamaged, match="not a file"):
        burnish.load(tmp_path / "pipe", tiny())


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    data = container.sealed(container.packed({}, {}))
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none" / "a.burnish", tmp_path, tmp_path / "pipe", Path(), tmp_path / ("a" * 300)):
        with pytest.raises(OSError, match=f"{re.escape(repr(str(path)))}$"):
            container.write(path, data)
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"] and (tmp_path / "pipe").is_fifo()


def test_a_full_disk_leaves_the_pack_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.burnish", container.sealed(container.packed({}, {})))
    before = path.read_bytes()

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=f"No space left on device: {re.escape(repr(str(path)))}$"):
        container.write(path, before)
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == before


def test_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=re.escape(repr(str(tmp_path)))):
        burnish.load(tmp_path, tiny())


# -- wrong types --------------------------------------------------------------------------------------------------

_OTHERS: list[Any] = [None, 2.5, "x", ["tuple"], ["dict"], ["frozenset", 1], ["object", "Sym", "s", 0, None], {}]


def _places(text: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Of all values but bytecode, which is code."""
    if type(text) is list and text[:1] != ["code"]:
        for number, each in enumerate(text):
            yield (*path, number)
            yield from _places(each, (*path, number))


def _with(text: Any, path: tuple[int, ...], value: Any) -> Any:
    if not path:
        return value
    return [*text[: path[0]], _with(text[path[0]], path[1:], value), *text[path[0] + 1 :]]


@pytest.mark.parametrize("member", ["variants/0.json", "programs/0.json"])
def test_values_of_other_types_are_found(of_tiny: Path, tmp_path: Path, member: str) -> None:
    """Each is refused as damaged, or is of no consequence."""
    text = json.loads(container.read(of_tiny).members[member])
    places, draw = list(_places(text)), random.Random(41)
    refused = 0
    for _ in range(60):
        value = draw.choice(_OTHERS)
        changed = json.dumps(_with(text, draw.choice(places), value)).encode()
        path = again(tmp_path / "a.burnish", lambda manifest, members, c=changed: members.update({member: c}), of_tiny)
        try:
            burnish.load(path, tiny(), missing="error", verify="off")
        except PackDamaged:
            refused += 1
        except PackDiffers:
            pass  # an expectation of a guard, which is plain data of any kind
    assert refused >= 40


@pytest.mark.parametrize(
    ("field", "value"),
    [(2, None), (3, "x"), (4, ["tuple"]), (6, {}), (8, ["tuple", "0"]), (9, ["tuple", 0]), (10, 3), (13, "1"), (14, 0)],
)
def test_a_field_of_another_type_is_damage(of_tiny: Path, tmp_path: Path, field: int, value: Any) -> None:
    def change(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
        text = json.loads(members["variants/0.json"])
        text[field] = value
        members["variants/0.json"] = json.dumps(text).encode()

    with pytest.raises(PackDamaged, match="a variant cannot be read"):
        burnish.load(again(tmp_path / "a.burnish", change, of_tiny), tiny(), missing="error")


def test_paths_without_end(of_tiny: Path, tmp_path: Path) -> None:
    """Paths are walked recursively."""

    def change(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
        text = json.loads(members["variants/0.json"])
        nodes = text[4][2]
        nodes += [["tuple", number - 1, "type", None] for number in range(len(nodes) - 1, 20_000)]
        members["variants/0.json"] = json.dumps(text).encode()

    with pytest.raises(PackDamaged, match="guards without places"):
        burnish.load(again(tmp_path / "a.burnish", change, of_tiny), tiny(), missing="error")


def test_places_that_are_code_are_refused(of_tiny: Path, tmp_path: Path) -> None:
    """The places of a graph's inputs become part of a function's source."""

    def change(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
        text = members["variants/0.json"].decode()
        assert '"attribute","_parameters"' in text
        members["variants/0.json"] = text.replace('"attribute","_parameters"', '"attribute","x, print(1)"').encode()

    with pytest.raises(PackDamaged, match="print"):
        burnish.load(again(tmp_path / "a.burnish", change, of_tiny), tiny(), missing="error")


def test_a_member_that_is_not_there(of_tiny: Path, tmp_path: Path) -> None:
    def change(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
        del members["libraries/0.so"]

    with pytest.raises(PackDamaged, match=r"it has no libraries/0\.so"):
        burnish.load(again(tmp_path / "a.burnish", change, of_tiny), tiny())


def test_a_library_that_is_none(of_tiny: Path, tmp_path: Path) -> None:
    def change(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
        members["libraries/0.so"] = b"\x7fELF" + bytes(100)

    with pytest.raises(PackDiffers, match="cannot be loaded"):
        burnish.load(again(tmp_path / "a.burnish", change, of_tiny), tiny(), missing="error")


# -- foreign ------------------------------------------------------------------------------------------------------


def foreign(tmp_path: Path, of: Path, **changed: str) -> Path:
    def change(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
        manifest["factors"]["exact"] |= changed

    return again(tmp_path / "a.burnish", change, of)


def test_other_versions_are_listed_with_ours(of_tiny: Path, tmp_path: Path) -> None:
    path = foreign(tmp_path, of_tiny, torch="1.0", python="cpython-27, bytecode 00", burnish="9")
    with pytest.raises(PackDiffers) as caught:
        burnish.load(path, tiny(), missing="error")
    assert [(each.factor, each.stored) for each in caught.value.differences] == [
        ("burnish", "9"),
        ("torch", "1.0"),
        ("python", "cpython-27, bytecode 00"),
    ]
    assert all(each.current in str(caught.value) for each in caught.value.differences)


def test_a_processor_without_a_feature(of_tiny: Path, tmp_path: Path) -> None:
    def change(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
        manifest["factors"]["targets"][0]["features"].append("avx9000")

    with pytest.raises(PackDiffers, match="processor features: built with avx9000 in the pack"):
        burnish.load(again(tmp_path / "a.burnish", change, of_tiny), tiny(), missing="error")


@pytest.mark.parametrize(
    "factors",
    [
        None,
        [],
        {},
        {"exact": 1, "targets": [], "told": {}},
        {"exact": {}, "targets": [], "told": {}},
        {"exact": {}, "targets": [{"name": "native"}], "told": {}},
        {"exact": {}, "targets": [{"name": "z80", "features": []}], "told": {}},
        {"exact": {}, "targets": ["native"], "told": {}},
    ],
)
def test_factors_that_are_none(of_tiny: Path, tmp_path: Path, factors: Any) -> None:
    def change(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
        manifest["factors"] = factors

    with pytest.raises(PackDamaged, match="states no factors"):
        burnish.load(again(tmp_path / "a.burnish", change, of_tiny), tiny())
