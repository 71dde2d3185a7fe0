"""Who else could write a cache: directories that another user could change are refused, with the reason and a way out,
and nothing that is swapped under a reader's hands is read."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from burnish.runtime.cache import entry, private_files
from burnish.runtime.cache import store as cache_module
from burnish.runtime.cache.store import Cache, CacheKey

MIB = 1 << 20
KEY = CacheKey((("name", "kernel"), ("source", "s1")))
STRANGER = 12345
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cache with one entry in it."""
    assert Cache(tmp_path / "cache", MIB).put("library", KEY, b"honest") is not None
    return tmp_path / "cache"


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def refusal(root: Path) -> str:
    """Why the cache there is not used. It neither gives nor takes anything."""
    cache = Cache(root, MIB)
    assert cache.get("library", KEY) is None
    assert cache.put("library", CacheKey((("source", "s2"),)), b"new") is None
    assert cache.entries() == []
    return cache.unusable or ""


def serves(root: Path) -> bool:
    return Cache(root, MIB).get("library", KEY) == b"honest"


# -- what is made --------------------------------------------------------------------------------------------------


def test_all_that_is_made_is_this_users_alone(tmp_path: Path, no_umask: None) -> None:
    cache = Cache(tmp_path / "not" / "there" / "yet", MIB)
    assert cache.put("library", KEY, b"data") is not None
    with cache.workspace() as place:
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    for path in (tmp_path / "not").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_relative_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = Cache(Path("here"), MIB)
    cache.put("library", KEY, b"data")
    monkeypatch.chdir("/")
    assert cache.get("library", KEY) == b"data"


# -- the root and what leads there ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "who"), [(0o770, "its group"), (0o702, "every user"), (0o1777, "every user")])
def test_a_root_that_others_can_write(root: Path, mode: int, who: str) -> None:
    root.chmod(mode)
    told = refusal(root)
    assert f"{root} can be written by {who}; run: chmod go-w {root}" in told
    os.system(f"chmod go-w {root}")
    assert serves(root)


def test_a_root_that_others_can_read(root: Path) -> None:
    root.chmod(0o755)
    assert serves(root)


@pytest.mark.parametrize("mode", [0o777, 0o707])
def test_a_directory_on_the_way_that_others_can_write(root: Path, mode: int) -> None:
    root.parent.chmod(mode)
    assert f"chmod go-w {root.parent}" in refusal(root)


def test_a_directory_on_the_way_with_the_sticky_bit(root: Path) -> None:
    root.parent.chmod(0o1777)
    assert serves(root)


def test_a_directory_is_not_made_below_one_that_others_can_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert "can be written by every user" in (Cache(tmp_path / "a" / "b", MIB).unusable or "")
    assert not (tmp_path / "a").exists()


def test_another_users_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert "belongs to user" in refusal(root)


@is_root
@pytest.mark.parametrize("whose", ["root", "parent"])
def test_given_away(root: Path, whose: str) -> None:
    path = root if whose == "root" else root.parent
    os.chown(path, STRANGER, -1)
    assert f"{path} belongs to user {STRANGER}" in refusal(root)


@pytest.mark.parametrize(
    ("members", "primary_of", "trusted"),
    [
        ([], ["me"], True),  # a group of one's own, as most systems make
        (["me", "root"], ["me"], True),
        (["stranger"], ["me"], False),
        ([], ["me", "stranger"], False),
        (["gone"], ["me"], False),
        (None, ["me"], False),  # a number without a name
    ],
)
def test_a_directory_on_the_way_that_a_group_can_write(
    root: Path, monkeypatch: pytest.MonkeyPatch, members: list[str] | None, primary_of: list[str], trusted: bool
) -> None:
    users = {"me": os.geteuid(), "root": 0, "stranger": STRANGER}
    group = root.parent.stat().st_gid

    def account(name: str) -> object:
        return types.SimpleNamespace(pw_uid=users[name], pw_gid=group if name in primary_of else group + 1)

    def named(gid: int) -> object:
        if members is None or gid != group:
            raise KeyError(gid)
        return types.SimpleNamespace(gr_mem=members)

    monkeypatch.setattr(grp, "getgrgid", named)
    monkeypatch.setattr(pwd, "getpwnam", account)
    monkeypatch.setattr(pwd, "getpwall", lambda: [account(name) for name in users])
    private_files._has_only_trusted_members.cache_clear()
    root.parent.chmod(0o770)
    assert serves(root) if trusted else "its group" in refusal(root)
    private_files._has_only_trusted_members.cache_clear()


def test_rights_that_were_given_by_name_are_not_the_groups(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_files, "_has_only_trusted_members", lambda group, trusted: True)
    monkeypatch.setattr(os, "listxattr", lambda path: ["system.posix_acl_access"], raising=False)
    root.parent.chmod(0o770)
    assert "its group" in refusal(root)


# -- links ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relative", [True, False])
def test_links_on_the_way_are_followed(root: Path, tmp_path: Path, relative: bool) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "link"
    link.symlink_to(f"../../{tmp_path.name}" if relative else tmp_path)
    assert serves(link / "cache") and serves(link / "links" / ".." / "cache")
    (tmp_path / "links" / "cache").symlink_to(root)
    assert serves(tmp_path / "links" / "cache")


def test_what_a_link_leads_through_is_checked(root: Path, tmp_path: Path) -> None:
    (tmp_path / "safe").mkdir()
    (tmp_path / "safe" / "cache").symlink_to(root)
    root.chmod(0o777)
    assert f"{root} can be written by every user" in refusal(tmp_path / "safe" / "cache")


@is_root
def test_a_link_of_another_users(root: Path, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    link = tmp_path / "open" / "cache"
    link.symlink_to(root)
    os.chown(link, STRANGER, -1, follow_symlinks=False)
    assert f"{link} is a link of user {STRANGER}'s" in refusal(link)


def test_links_that_lead_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "symbolic links" in refusal(tmp_path / "a" / "cache")


# -- below the root ------------------------------------------------------------------------------------------------


def places(root: Path) -> tuple[Path, Path, Path]:
    shard = root / "library" / KEY.digest[:2]
    return root / "library", shard, shard / KEY.digest


@pytest.mark.parametrize("which", [0, 1], ids=["kind", "shard"])
def test_a_directory_below_that_others_can_write(root: Path, which: int, caplog: pytest.LogCaptureFixture) -> None:
    place = places(root)[which]
    place.chmod(0o777)
    cache = Cache(root, MIB)
    assert cache.get("library", KEY) is None
    assert cache.put("library", KEY, b"new") is None
    assert f"{place} can be written by every user; run: rm -r {place}" in caplog.text
    assert cache.put("verdict", KEY, b"new") is not None  # the rest is as it was
    os.system(f"rm -r {place}")
    assert cache.put("library", KEY, b"honest") is not None and serves(root)


@pytest.mark.parametrize("what", ["", "data", "meta.json"], ids=["entry", "data", "meta"])
@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_an_entry_that_others_can_write_is_removed(root: Path, what: str, mode: int) -> None:
    (places(root)[2] / what).chmod(mode)
    cache = Cache(root, MIB)
    assert cache.get("library", KEY) is None
    assert not places(root)[2].exists()
    assert cache.put("library", KEY, b"honest") is not None and serves(root)


@is_root
@pytest.mark.parametrize("what", ["", "data", "meta.json"], ids=["entry", "data", "meta"])
def test_an_entry_of_another_users_is_removed(root: Path, what: str) -> None:
    """Its checksum fits: whoever writes the bytes writes that, too."""
    os.chown(places(root)[2] / what, STRANGER, -1)
    assert Cache(root, MIB).get("library", KEY) is None
    assert not places(root)[2].exists()


@pytest.mark.parametrize("which", [0, 1], ids=["kind", "shard"])
def test_a_link_in_the_place_of_a_directory_is_not_followed(root: Path, tmp_path: Path, which: int) -> None:
    place = places(root)[which]
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    cache = Cache(root, MIB)
    assert cache.get("library", KEY) is None
    assert cache.put("library", KEY, b"new") is None
    assert cache.entries() == [] and cache.clear() == (0, 0)


# -- swapped meanwhile ---------------------------------------------------------------------------------------------


def hostile_copy(root: Path, tmp_path: Path) -> Path:
    """The same entry with other bytes, whole and with the right checksum."""
    assert Cache(tmp_path / "hostile", MIB).put("library", KEY, b"hostile") is not None
    return tmp_path / "hostile"


@pytest.mark.parametrize("which", [0, 1, 2], ids=["kind", "shard", "entry"])
def test_a_directory_swapped_between_check_and_use(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    hostile = hostile_copy(root, tmp_path)
    described = entry._described

    def swap(*arguments: object) -> object:
        found = described(*arguments)  # type: ignore[arg-type]
        places(root)[which].rename(tmp_path / "honest")
        places(hostile)[which].rename(places(root)[which])
        return found

    monkeypatch.setattr(entry, "_described", swap)
    assert Cache(root, MIB).get("library", KEY) == b"honest"


@pytest.mark.parametrize("planted", ["link", "directory"])
def test_a_temporary_swapped_while_it_is_written(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    """What is put in its place by then becomes no entry that is used, and nothing is written through it."""
    write: Callable[..., None] = private_files.write_file
    key = CacheKey((("source", "s3"),))
    (tmp_path / "target").mkdir()

    def swap(name: str, directory: int, data: bytes) -> None:
        write(name, directory, data)
        if name == "meta.json":
            (temporary,) = (root / "tmp").iterdir()
            temporary.rename(tmp_path / "taken")
            if planted == "link":
                temporary.symlink_to(tmp_path / "target")
            else:
                temporary.mkdir()
                (temporary / "data").write_bytes(b"hostile")

    monkeypatch.setattr(cache_module, "write_file", swap)
    cache = Cache(root, MIB)
    cache.put("library", key, b"honest")
    assert cache.get("library", key) is None
    assert list((tmp_path / "target").iterdir()) == []


def test_a_root_that_is_opened_up_later(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(root, MIB)
    assert cache.get("library", KEY) == b"honest"
    root.chmod(0o777)
    assert cache.get("library", KEY) is None and "every user" in caplog.text
    root.chmod(0o700)
    assert cache.get("library", KEY) == b"honest"


def test_a_root_that_is_removed_later_is_made_again(root: Path, tmp_path: Path) -> None:
    cache = Cache(root, MIB)
    assert cache.get("library", KEY) == b"honest"
    root.rename(tmp_path / "gone")
    assert cache.get("library", KEY) is None
    assert cache.put("library", KEY, b"honest") is not None and serves(root)
