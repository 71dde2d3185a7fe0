"""The cache on disk: what it stores comes back or is missed, whatever happens to files, disk or neighbours."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import logging
import multiprocessing
import os
import signal
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from burnish.options import Options
from burnish.runtime.cache import ledger, private_files
from burnish.runtime.cache import store as cache_module
from burnish.runtime.cache.store import Cache, CacheKey, Difference, open_cache

MIB = 1 << 20


def key(name: str = "kernel", **factors: str) -> CacheKey:
    return CacheKey((("name", name), *({"source": "s1", "compiler": "gcc 12", "flags": "-O3"} | factors).items()))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 64 * MIB)


def stored(cache: Cache, which: CacheKey | None = None, data: bytes = b"some code" * 100) -> Path:
    path = cache.put("library", which or key(), data)
    assert path is not None
    return path


# -- what it stores comes back -------------------------------------------------------------------------------------


def test_round_trip(cache: Cache) -> None:
    assert cache.get("library", key()) is None
    path = stored(cache, data=b"\0\xffbytes")
    assert cache.get("library", key()) == b"\0\xffbytes"
    assert path.read_bytes() == b"\0\xffbytes"
    assert cache.get("other", key()) is None  # a kind is a namespace
    assert Cache(cache.root, MIB).get("library", key()) == b"\0\xffbytes"  # as another process would
    counted = cache.stats()
    assert (counted.hits, counted.misses, counted.entries) == (1, 2, 1)


def test_empty_data_is_an_entry(cache: Cache) -> None:
    stored(cache, data=b"")
    assert cache.get("library", key()) == b""


def test_every_factor_but_the_name_changes_the_digest() -> None:
    assert key(name="a").digest == key(name="b").digest
    digests = {key().digest} | {key(**{factor: "changed"}).digest for factor in ("source", "compiler", "flags")}
    assert len(digests) == 4
    assert CacheKey((("a", "b"), ("c", "d"))).digest != CacheKey((("a", 'b"], ["c", "d'),)).digest


def test_layout_and_permissions(cache: Cache) -> None:
    digest = key().digest
    assert stored(cache) == cache.root / "library" / digest[:2] / digest / "data"
    assert stat.S_IMODE(cache.root.stat().st_mode) == 0o700
    assert list((cache.root / "tmp").iterdir()) == []


def test_a_kind_cannot_lead_out_of_the_cache(cache: Cache) -> None:
    for kind in ("../elsewhere", "tmp", "", "a/b", "A"):
        with pytest.raises(ValueError):
            cache.put(kind, key(), b"")


def test_first_of_two_writers_wins(cache: Cache) -> None:
    stored(cache, data=b"first")
    stored(cache, data=b"second")
    assert cache.get("library", key()) == b"first"


def test_off(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", MIB, off="switched off")
    assert cache.put("library", key(), b"x") is None
    assert cache.get("library", key()) is None
    assert cache.stats().unusable == "switched off"
    assert "switched off" in cache.miss_reason("library", key())
    assert not cache.root.exists()


def test_open_cache_gives_one_object_per_directory(tmp_path: Path) -> None:
    options = Options(cache_dir=tmp_path / "cache", disable_cache=False)
    assert open_cache(options) is open_cache(options)
    assert open_cache(options).root == tmp_path / "cache"
    assert "options" in (open_cache(replace(options, disable_cache=True)).unusable or "")


# -- damage --------------------------------------------------------------------------------------------------------


def _truncate(entry: Path) -> None:
    os.truncate(entry / "data", 10)


def _lengthen(entry: Path) -> None:
    with open(entry / "data", "ab") as file:
        file.write(b"!")


def _alter_one_byte(entry: Path) -> None:
    data = bytearray((entry / "data").read_bytes())
    data[len(data) // 2] ^= 1
    (entry / "data").write_bytes(data)


def _lose_data(entry: Path) -> None:
    (entry / "data").unlink()


def _lose_meta(entry: Path) -> None:
    (entry / "meta.json").unlink()


def _link_data_elsewhere(entry: Path) -> None:
    elsewhere = entry.parent / "elsewhere"
    (entry / "data").rename(elsewhere)
    (entry / "data").symlink_to(elsewhere)


def _pipe_for_meta(entry: Path) -> None:
    (entry / "meta.json").unlink()
    os.mkfifo(entry / "meta.json")


def _directory_for_data(entry: Path) -> None:
    (entry / "data").unlink()
    (entry / "data").mkdir()


def _file_for_entry(entry: Path) -> None:
    for file in entry.iterdir():
        file.unlink()
    entry.rmdir()
    entry.write_bytes(b"not a directory")


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _lengthen,
        _alter_one_byte,
        _lose_data,
        _lose_meta,
        _link_data_elsewhere,
        _pipe_for_meta,
        _directory_for_data,
        _file_for_entry,
    ],
)
def test_a_damaged_entry_is_missed_and_can_be_replaced(cache: Cache, damage: Callable[[Path], None]) -> None:
    entry = stored(cache).parent
    damage(entry)
    assert cache.get("library", key()) is None
    stored(cache, data=b"rebuilt")
    assert cache.get("library", key()) == b"rebuilt"


def test_a_damaged_entry_is_replaced_by_a_put_that_never_looked(cache: Cache) -> None:
    _alter_one_byte(stored(cache).parent)
    stored(cache, data=b"rebuilt")
    assert cache.get("library", key()) == b"rebuilt"


def test_damage_is_removed_counted_and_logged(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    entry = stored(cache).parent
    _truncate(entry)
    assert cache.get("library", key()) is None
    assert not entry.exists()
    assert cache.stats().damaged == 1
    assert "damaged" in caplog.text


def test_removing_a_planted_link_leaves_its_target_alone(cache: Cache, tmp_path: Path) -> None:
    entry = stored(cache).parent
    target = tmp_path / "target"
    entry.rename(target)
    (target / "meta.json").write_text("{}")
    entry.symlink_to(target)
    assert cache.get("library", key()) is None
    assert not entry.is_symlink()
    assert (target / "meta.json").exists()


HOSTILE = {
    "empty": b"",
    "not json": b"\x80\x04\x95pickle",
    "null": b"null",
    "list": b"[1, 2]",
    "nested": b"[" * 100_000,
    "long": b" " * (2 << 20),
    "long number": b'{"size": ' + b"9" * 10_000 + b"}",
    "nothing in it": b"{}",
}
HOSTILE_FIELDS: dict[str, dict[str, object]] = {
    "negative size": {"size": -1},
    "true size": {"size": True},
    "float size": {"size": 9.0},
    "endless size": {"size": 1 << 80},
    "size of text": {"size": "9"},
    "created is NaN": {"created": float("nan")},
    "created never": {"created": None},
    "created in the far future": {"created": 1 << 4000},
    "checksum of nothing": {"sha256": None},
    "checksum is a list": {"sha256": ["a"]},
    "factors of numbers": {"factors": [[1, 2]]},
    "factors of three": {"factors": [["a", "b", "c"]]},
    "factors are text": {"factors": "abcd"},
    "factors are a dict": {"factors": {"ab": "cd"}},
    "another's factors": {"factors": [["source", "another"]]},
    "half a character": {"factors": [["source", "\ud800"]]},
}


@pytest.mark.parametrize("what", [*HOSTILE, *HOSTILE_FIELDS])
def test_hostile_meta_is_a_miss(cache: Cache, what: str) -> None:
    entry = stored(cache).parent
    meta = json.loads((entry / "meta.json").read_text())
    hostile = HOSTILE[what] if what in HOSTILE else json.dumps(meta | HOSTILE_FIELDS[what]).encode()
    (entry / "meta.json").write_bytes(hostile)
    assert cache.entries() == []
    assert cache.why("library", key())[0].stored is None
    assert cache.get("library", key()) is None
    assert not entry.exists()


def test_no_escape_sequence_is_passed_on_to_a_terminal(cache: Cache) -> None:
    red = key(name="\x1b[31mred\n")
    stored(cache, red)
    assert cache.get("library", red) is not None
    assert cache.entries()[0].name == r"\x1b[31mred\n"
    assert all(difference.stored == difference.current for difference in cache.why("library", red))


def test_a_file_of_another_users_is_not_read(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(cache)
    assert cache.unusable is None
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cache.get("library", key()) is None


# -- a disk or a directory that will not do ------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("call", ["rename", "mkdir", "write_file"])
def test_a_failing_disk_is_one_line_in_the_log(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int, call: str
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    stored(cache, key("before"))
    monkeypatch.setattr(cache_module if call == "write_file" else os, call, fail)
    for number in range(3):
        assert cache.put("library", key(source=f"n{number}"), b"data") is None
    assert cache.get("library", key("before")) is not None  # what is there can still be read
    monkeypatch.undo()
    assert len(caplog.records) == 1
    assert os.strerror(code) in caplog.text
    assert list((cache.root / "tmp").iterdir()) == []


def test_a_root_beneath_a_file_is_unusable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "cache", MIB)
    assert cache.put("library", key(), b"x") is None
    assert cache.get("library", key()) is None
    assert cache.entries() == []
    assert cache.clear() == (0, 0)
    assert "Not a directory" in (cache.unusable or "")
    assert len(caplog.records) == 1


def test_a_world_writable_root_is_refused(tmp_path: Path) -> None:
    stored(Cache(tmp_path / "cache", MIB))
    (tmp_path / "cache").chmod(0o777)
    cache = Cache(tmp_path / "cache", MIB)
    assert cache.get("library", key()) is None
    assert "every user" in (cache.unusable or "")


def test_another_users_root_is_refused(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(cache)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    other = Cache(cache.root, MIB)
    assert other.get("library", key()) is None
    assert "belongs to user" in (other.unusable or "")


def test_a_read_only_cache_still_hits(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*arguments: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    stored(cache)
    monkeypatch.setattr(os, "utime", read_only)
    assert cache.get("library", key()) is not None


# -- the limit -----------------------------------------------------------------------------------------------------


def test_the_limit_holds(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 100_000)
    for number in range(50):
        stored(cache, key(source=str(number)), bytes(10_000))
        assert cache.stats().bytes <= 100_000
    assert cache.stats().entries >= 5
    assert cache.stats().evicted >= 40
    assert cache.get("library", key(source="49")) is not None


def test_the_longest_unused_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 100_000)
    for number in range(8):
        entry = stored(cache, key(source=str(number)), bytes(10_000)).parent
        os.utime(entry / "meta.json", (number, number))
    assert cache.get("library", key(source="0")) is not None  # used again: the newest now
    for number in range(8, 12):
        stored(cache, key(source=str(number)), bytes(10_000))
    kept = [number for number in range(12) if cache.get("library", key(source=str(number))) is not None]
    assert kept == [0, 4, 5, 6, 7, 8, 9, 10, 11]  # 15/16 of the limit: the rest is for what is written unseen


def test_looking_for_entries_to_evict_is_amortised_over_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(Cache, "trim", lambda self, room=0: looks.append(room))
    for number in range(320):  # each by a process of its own, as far as the cache can tell
        stored(Cache(tmp_path / "cache", 1600 * 4096), key(source=str(number)), bytes(4096))
    assert len(looks) == 320 // 71  # 3/64 of the limit each


def test_a_process_that_stops_while_it_evicts_holds_nobody_up_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ledger, "_PATIENCE", 0.05)
    cache = Cache(tmp_path / "cache", 100_000)
    stored(cache, key(source="before"), bytes(1_000))
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with Cache(tmp_path / "cache", 100_000)._ledger.evicting():
            os.write(writing, b"!")
            signal.pause()
    os.read(reading, 1)
    try:
        assert cache.put("library", key(), bytes(90_000)) is None
        assert cache._ledger._patience == 0.0  # the next does not wait at all
        assert cache.get("library", key(source="before")) is not None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert "takes too long" in caplog.text
    assert stored(cache, data=bytes(90_000)).exists()  # its lock has gone with it


@pytest.mark.parametrize("name", ["written", "evicting"])
def test_a_pipe_or_directory_in_the_place_of_the_count_costs_only_time(tmp_path: Path, name: str) -> None:
    for make in (os.mkfifo, os.mkdir):
        cache = Cache(tmp_path / make.__name__, 100_000)
        cache.root.mkdir()
        make(cache.root / name)
        for number in range(20):
            stored(cache, key(source=str(number)), bytes(10_000))
            assert cache.stats().bytes <= 100_000


def test_eviction_leaves_what_is_being_written(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 100_000)
    with cache.workspace() as fresh:
        (fresh / "data").write_bytes(bytes(200_000))
        abandoned = fresh.with_name("of-a-process-that-died")
        abandoned.mkdir()
        stored(cache, data=bytes(90_000))
        cache.trim()
        assert (fresh / "data").exists()
        assert not abandoned.exists()


def test_what_is_being_cleared_away_cannot_be_taken_by_whoever_has_just_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its maker, which locks it a moment later, would write into a directory that is about to go."""
    cache = Cache(tmp_path / "cache", 100_000)
    with cache.workspace() as fresh:
        made = fresh.with_name("made-and-not-locked-yet")
        made.mkdir()
    taken: list[bool | None] = []

    def rmtree(name: str, ignore_errors: bool, dir_fd: int) -> None:
        mine = os.open(name, os.O_RDONLY, dir_fd=dir_fd)
        taken.append(cache_module._lock(mine))
        os.close(mine)

    monkeypatch.setattr(cache_module.shutil, "rmtree", rmtree)
    cache.trim()
    assert taken == [False]


def test_without_locks_what_is_being_written_is_known_by_its_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    cache = Cache(tmp_path / "cache", 100_000)
    with cache.workspace() as fresh, cache.workspace() as abandoned:
        os.utime(abandoned, (1, 1))
        cache.trim()
        assert fresh.exists() and not abandoned.exists()


def test_what_was_just_written_is_not_evicted_by_its_own_writing(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 100_000)
    stored(cache, key(source="before"), bytes(50_000))
    assert stored(cache, data=bytes(99_000)).exists()
    assert cache.get("library", key(source="before")) is None


def test_more_than_the_limit_is_not_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(tmp_path / "cache", 1000)
    stored(cache, key(source="small"), b"small")
    assert cache.put("library", key(), bytes(1001)) is None
    assert cache.get("library", key(source="small")) is not None
    assert "limit" in caplog.text


# -- many processes ------------------------------------------------------------------------------------------------


def run_processes(*bodies: Callable[[], None]) -> None:
    """Run each body in a forked process, all released at once; any exception in one fails the test."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(len(bodies))

    def start(body: Callable[[], None]) -> None:
        logging.disable()
        barrier.wait()
        body()

    processes = [context.Process(target=start, args=(body,)) for body in bodies]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(bodies)


def test_four_writers_of_one_key(tmp_path: Path) -> None:
    payloads = [bytes([number]) * 300_000 for number in range(4)]

    def writer(payload: bytes) -> Callable[[], None]:
        def body() -> None:
            cache = Cache(tmp_path / "cache", 64 * MIB)
            for number in range(20):
                path = cache.put("library", key(source=str(number)), payload)
                assert path is not None
                assert path.read_bytes() in payloads  # whole, whoever wrote it
                assert cache.get("library", key(source=str(number))) in payloads
            assert cache.stats().damaged == 0

        return body

    run_processes(*map(writer, payloads))
    assert Cache(tmp_path / "cache", 64 * MIB).stats().entries == 20
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []


def test_readers_writers_and_evictions_at_once(tmp_path: Path) -> None:
    limit = 200_000  # ten of the twenty entries

    def payload(number: int) -> bytes:
        return bytes([number]) * 20_000

    def body() -> None:
        cache = Cache(tmp_path / "cache", limit)
        for step in range(200):
            number = step * 7 % 20
            data = cache.get("library", key(source=str(number)))
            assert data in (None, payload(number))
            if data is None:
                cache.put("library", key(source=str(number)), payload(number))

    run_processes(body, body, body, body)
    cache = Cache(tmp_path / "cache", limit)
    cache.trim()
    assert 0 < cache.stats().bytes <= limit
    assert all(cache.get("library", key(source=entry.factors[1][1])) is not None for entry in cache.entries())


def test_clearing_under_a_writer(tmp_path: Path) -> None:
    def write() -> None:
        cache = Cache(tmp_path / "cache", MIB)
        for number in range(200):
            assert cache.put("library", key(source=str(number % 5)), b"x" * 1000) is not None

    def clear() -> None:
        cache = Cache(tmp_path / "cache", MIB)
        for _ in range(200):
            cache.clear()

    run_processes(write, write, clear)
    cache = Cache(tmp_path / "cache", MIB)
    cache.clear()
    assert cache.stats().entries == 0


@pytest.mark.slow
def test_the_limit_holds_for_ten_thousand_entries_of_eight_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is fullest, just before something is evicted; and looking for what to evict stays rare."""
    monkeypatch.setattr(ledger, "_PATIENCE", 300.0)  # however slow this machine is
    size = Cache(tmp_path / "one", MIB)
    stored(size, key(source="0000"), bytes(300))
    limit, each, processes = 5_000 * size.stats().bytes, 1_250, 8
    looks = tmp_path / "looks"
    trim = Cache.trim

    def counted(self: Cache, room: int = 0) -> int:
        with open(looks, "ab") as file:
            file.write(b".")
        assert self.stats().bytes <= limit
        return trim(self, room)

    def writer(number: int) -> Callable[[], None]:
        def body() -> None:
            Cache.trim = counted  # type: ignore[method-assign]
            cache = Cache(tmp_path / "cache", limit)
            for count in range(each):
                name = f"{number * each + count:04}"
                assert cache.put("verdict", key(source=name), bytes(300)) is not None
            assert cache.get("verdict", key(source=name)) == bytes(300)

        return body

    run_processes(*(writer(number) for number in range(processes)))
    cache = Cache(tmp_path / "cache", limit)
    assert cache.stats().entries > 4_000 and cache.stats().bytes <= limit
    assert looks.stat().st_size <= 4 * 16  # twice the limit was written


# -- killed --------------------------------------------------------------------------------------------------------

CHANGES = ("mkdir", "rename", "unlink", "rmdir")  # to the disk


def killed_at(number: int, root: Path) -> bool:
    """Whether a process that stores two entries was killed, with -9, before its change `number` to the disk."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    calls = itertools.count(1)

    def deadly(call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object, **named: object) -> object:
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return wrapped

    for name in CHANGES:
        setattr(os, name, deadly(getattr(os, name)))

    def torn(name: str, directory: int, data: bytes) -> None:
        private_files.write_file(name, directory, data[: len(data) // 2])
        deadly(os.unlink)(name, dir_fd=directory)
        private_files.write_file(name, directory, data)

    cache_module.write_file = torn
    cache = Cache(root, 2_000)  # the second makes the first go
    cache.put("library", key(source="first"), bytes(1_000))
    cache.put("library", key(source="second"), bytes(1_000))
    os._exit(0)


def test_a_killed_process_leaves_nothing_but_a_temporary_that_the_next_removes(tmp_path: Path) -> None:
    for number in itertools.count(1):
        root = tmp_path / str(number)
        was_killed = killed_at(number, root)
        files = [path for path in root.rglob("*") if path.is_file() and path.parent != root]
        whole = {path.parent for path in files if path.is_relative_to(root / "library")}
        cache = Cache(root, MIB)
        assert len(cache.entries()) == len(whole), "what is no temporary is whole"
        for entry in cache.entries():
            assert cache.get("library", CacheKey(entry.factors)) == bytes(1_000)
        assert not list(root.glob("tmp/*")), "the next start has removed it"
        assert cache.put("library", key(source="next"), b"next") is not None
        if not was_killed:
            break
    assert number > 15  # it was killed before each of them


# -- telling -------------------------------------------------------------------------------------------------------


def test_why_lists_every_factor_against_the_nearest_entry(cache: Cache) -> None:
    stored(cache, key("far", source="s2", compiler="gcc 9", flags="-O0"))
    stored(cache, key("near", source="s2"))
    assert cache.why("library", key("new")) == [
        Difference("name", "near", "new"),
        Difference("source", "s2", "s1"),
        Difference("compiler", "gcc 12", "gcc 12"),
        Difference("flags", "-O3", "-O3"),
    ]


def test_why_prefers_an_entry_of_the_same_name(cache: Cache) -> None:
    stored(cache, key("mine", source="s2", compiler="gcc 9"))
    stored(cache, key("other", source="s2"))
    assert Difference("compiler", "gcc 9", "gcc 12") in cache.why("library", key("mine"))


def test_why_with_factors_come_and_gone(cache: Cache) -> None:
    stored(cache, key(gone="x"))
    differences = cache.why("library", key(new="y"))
    assert Difference("gone", "x", None) in differences
    assert Difference("new", None, "y") in differences


def test_why_with_nothing_stored(cache: Cache) -> None:
    assert all(difference.stored is None for difference in cache.why("library", key()))
    assert cache.miss_reason("library", key()) == "kernel: nothing of kind 'library' is stored"


def test_a_miss_explains_itself_in_a_line(cache: Cache) -> None:
    stored(cache, key(compiler="gcc 11"))
    assert cache.miss_reason("library", key()) == "kernel: compiler: gcc 11 -> gcc 12"
    assert cache.miss_reason("library", key("new")) == "new: new; the nearest, kernel, differs in compiler"
    assert (
        cache.miss_reason("library", key(compiler="gcc 11", source="a" * 64)) == "kernel: source: s1 -> aaaaaaaaaaaa…"
    )


def test_entries_are_listed_most_recently_used_first(cache: Cache) -> None:
    before = time.time()
    for number, name in enumerate(["old", "new"]):
        entry = stored(cache, key(name, source=name), bytes(number)).parent
        os.utime(entry / "meta.json", (number, number))
    new, old = cache.entries()
    assert (new.name, new.kind, new.size, new.last_used) == ("new", "library", 1, 1.0)
    assert (old.name, old.size, old.last_used) == ("old", 0, 0.0)
    assert new.digest == key("new", source="new").digest
    assert before - 1 <= new.created <= time.time() + 1


def test_clear_removes_entries_and_nothing_else(cache: Cache) -> None:
    for number in range(3):
        stored(cache, key(source=str(number)), bytes(1000))
    own = [cache.root / "notes.txt", cache.root / "library" / "readme", cache.root / "photos" / "ab" / "cd.jpg"]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    count, freed = cache.clear()
    assert count == 3
    assert freed >= 3000
    assert cache.stats().entries == 0
    assert all(path.exists() for path in own)
