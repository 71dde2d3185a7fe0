"""A store that machines share: what one has compiled another loads, if it was signed; and nothing the store does, or
does not do, is in the way of a compile."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fsspec.implementations.memory import MemoryFileSystem

import burnish
from burnish.errors import BadKey, CacheUrl, MissingExtra
from burnish.runtime.cache import shared
from burnish.runtime.cache.deferred_writes import later
from burnish.runtime.cache.shared import SharedPlace, SharedStore, open_shared
from burnish.runtime.cache.store import Cache, CacheKey
from burnish.runtime.signatures import Signer
from burnish.tools.cli import main

KEY = CacheKey((("name", "a thing"), ("source", "s1")))
ROOT = Path(__file__).parents[3]


class Keys(NamedTuple):
    private: Path
    public: Path


def keys_in(folder: Path, name: str = "key") -> Keys:
    key = Ed25519PrivateKey.generate()
    found = Keys(folder / f"{name}.pem", folder / f"{name}.pub.pem")
    found.private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    found.public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return found


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return keys_in(tmp_path)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'store'}"


@pytest.fixture(autouse=True)
def _no_store_of_another_test() -> Iterator[None]:
    yield
    open_shared.cache_clear()


def writer(url: str, keys: Keys) -> SharedStore:
    return open_shared(SharedPlace(url, keys.private, None))


def reader(url: str, keys: Keys) -> SharedStore:
    return open_shared(SharedPlace(url, None, keys.public))


def files_of(url: str) -> list[Path]:
    return sorted(path for path in Path(url.removeprefix("file://")).rglob("*") if path.is_file())


# -- the store ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_what_one_writes_another_reads(tmp_path: Path, keys: Keys, scheme: str) -> None:
    url = f"{scheme}://{tmp_path / 'store'}"
    writer(url, keys).put("library", KEY, b"code")
    assert writer(url, keys).settle(60)
    assert reader(url, keys).get("library", KEY) == b"code"
    assert reader(url, keys).get("program", KEY) is None
    assert reader(url, keys).get("library", CacheKey((("source", "s2"),))) is None


def test_one_writer_trusts_what_it_has_signed(url: str, keys: Keys) -> None:
    writer(url, keys).send("library", KEY, b"code")
    assert writer(url, keys).get("library", KEY) == b"code"


def test_what_another_key_has_signed_is_refused_and_said_once(
    url: str, keys: Keys, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer(url, keys_in(tmp_path, "another")).send("library", KEY, b"code")
    store = reader(url, keys)
    assert [store.get("library", KEY) for _ in range(3)] == [None] * 3
    assert [each.message for each in caplog.records] == [
        f"burnish cache {url}: not used: library/{KEY.digest[:12]}: no key that is trusted here has signed it"
    ]
    assert store.counts == {"misses": 3, "refused": 3}


def test_an_entry_in_anothers_place_is_refused(url: str, keys: Keys) -> None:
    """It has a signature of the right key."""
    other = CacheKey((("source", "s2"),))
    writer(url, keys).send("library", KEY, b"code")
    (path,) = files_of(url)
    place = path.parents[1] / other.digest[:2] / other.digest
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(path.read_bytes())
    assert reader(url, keys).get("library", other) is None
    kind = path.parents[2] / "program" / KEY.digest[:2] / KEY.digest
    kind.parent.mkdir(parents=True)
    kind.write_bytes(path.read_bytes())
    assert reader(url, keys).get("program", KEY) is None


def test_a_thousand_damaged_files(url: str, keys: Keys) -> None:
    writer(url, keys).send("library", KEY, bytes(range(256)) * 4)
    (path,) = files_of(url)
    whole = path.read_bytes()
    draw = random.Random(7)
    for _ in range(1000):
        raw = bytearray(whole)
        kind = draw.randrange(3)
        if kind == 0:
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del raw[draw.randrange(len(raw)) :]
        else:
            at = draw.randrange(len(raw))
            raw[at:at] = draw.randbytes(draw.randrange(1, 40))
        path.write_bytes(raw)
        assert reader(url, keys)._read("library", KEY.digest) is None
    path.write_bytes(whole)
    assert reader(url, keys).get("library", KEY) == bytes(range(256)) * 4


def test_many_writers_of_the_same(url: str, keys: Keys) -> None:
    files, root = fsspec.core.url_to_fs(url)
    stores = [SharedStore(files, root, url, Signer(keys.private), ()) for _ in range(8)]
    for number in range(40):
        for each in stores:
            each.put("library", CacheKey((("source", str(number)),)), b"code %d" % number)
    assert all(each.settle(60) for each in stores)
    found = [reader(url, keys).get("library", CacheKey((("source", str(number)),))) for number in range(40)]
    assert found == [b"code %d" % number for number in range(40)]
    assert len(files_of(url)) == 40


# -- stores that fail -----------------------------------------------------------------------------------------------


class Unwilling(MemoryFileSystem):
    """Answers late, or with an error."""

    protocol = "unwilling"
    cachable = False
    answer = threading.Event()
    problem: Exception | None = None
    asked = 0

    def cat_file(self, *args: Any, **kwargs: Any) -> Any:
        type(self).asked += 1
        if self.problem is not None:
            raise self.problem
        self.answer.wait()
        return super().cat_file(*args, **kwargs)

    def pipe_file(self, *args: Any, **kwargs: Any) -> Any:
        if self.problem is not None:
            raise self.problem
        return super().pipe_file(*args, **kwargs)


@pytest.fixture
def unwilling(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Unwilling]]:
    fsspec.register_implementation("unwilling", Unwilling, clobber=True)
    monkeypatch.setattr(Unwilling, "answer", threading.Event())
    monkeypatch.setattr(Unwilling, "problem", None)
    monkeypatch.setattr(Unwilling, "asked", 0)
    yield Unwilling
    Unwilling.answer.set()


def test_a_store_that_does_not_answer_is_waited_for_once(
    unwilling: type[Unwilling], keys: Keys, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared, "READ_SECONDS", 0.05)
    store = reader("unwilling://store", keys)
    assert [store.get("library", KEY) for _ in range(5)] == [None] * 5
    assert unwilling.asked == 1 and "not asked for 60 s: no answer within" in caplog.text


def test_a_store_that_raises_is_left_alone(
    unwilling: type[Unwilling], keys: Keys, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unwilling, "problem", PermissionError("no access to the bucket"))
    store = writer("unwilling://store", keys)
    assert store.get("library", KEY) is None and store.get("library", KEY) is None
    store.put("library", KEY, b"code")
    assert store.settle(60)
    assert unwilling.asked == 1
    assert "PermissionError: no access to the bucket" in caplog.text and "cannot be written" in caplog.text


def test_a_compile_with_a_store_that_raises_is_as_without(
    unwilling: type[Unwilling], keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unwilling, "problem", ConnectionError("no route"))
    options = {"cache_sign": keys.private, "cache_dir": tmp_path / "cache", "warm_start": True}
    compiled = burnish.compile(torch.nn.Linear(4, 4), cache="unwilling://store", options=options)
    x = torch.ones(2, 4)
    torch.testing.assert_close(compiled(x), compiled.eager(x))
    assert burnish.stats(compiled).compiles == 1 and burnish.stats(compiled).fallbacks == ()


def test_entries_that_are_written_when_the_process_ends_are_sent(url: str, keys: Keys) -> None:
    store = writer(url, keys)
    later.do(lambda: store.put("library", KEY, b"code"))
    store._end()
    assert reader(url, keys).get("library", KEY) == b"code"


def test_without_another_thread_entries_are_sent_in_the_end(
    url: str, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "has_started", lambda thread: False)
    store = writer(url, keys)
    store.put("library", KEY, b"code")
    assert files_of(url) == []
    store._end()
    assert len(files_of(url)) == 1


def test_a_forked_child_sends_its_own(url: str, keys: Keys) -> None:
    store = writer(url, keys)
    store.put("library", KEY, b"parent's")
    other = CacheKey((("source", "child's"),))
    child = os.fork()
    if child == 0:
        store.put("library", other, b"child's")
        os._exit(0 if store.settle(60) else 1)
    assert os.waitpid(child, 0)[1] == 0 and store.settle(60)
    assert reader(url, keys).get("library", other) == b"child's"


# -- what is given ----------------------------------------------------------------------------------------------------


def test_a_store_needs_a_key(url: str) -> None:
    with pytest.raises(CacheUrl, match="no key says whose is trusted"):
        burnish.compile(torch.nn.Linear(2, 2), cache=url)


@pytest.mark.parametrize("bad", ["nosuch://store", "s3://:/"])
def test_a_url_that_is_none_is_named(keys: Keys, bad: str) -> None:
    with pytest.raises(CacheUrl, match=bad.split(":")[0]):
        burnish.compile(torch.nn.Linear(2, 2), cache=bad, options={"cache_verify_key": keys.public})


def test_a_file_that_is_no_key_is_named(keys: Keys, url: str, tmp_path: Path) -> None:
    for name, key in (("cache_verify_key", keys.private), ("cache_sign", keys.public), ("cache_sign", tmp_path / "x")):
        with pytest.raises(BadKey, match=str(key)):
            burnish.compile(torch.nn.Linear(2, 2), cache=url, options={name: key})


def test_without_the_package_for_signatures(keys: Keys, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(MissingExtra, match=r"burnish\[sign\]"):
        burnish.compile(torch.nn.Linear(2, 2), cache=url, options={"cache_verify_key": keys.public})


def test_no_password_is_shown() -> None:
    with pytest.raises(CacheUrl) as caught:
        open_shared(SharedPlace("ftp://me:secret@host/store", None, None))
    assert "secret" not in str(caught.value)


def test_without_a_cache_none_is_shared(keys: Keys, url: str, tmp_path: Path) -> None:
    options = {"cache_sign": keys.private, "disable_cache": True}
    compiled = burnish.compile(torch.nn.Linear(4, 4), cache=url, options=options)
    compiled(torch.ones(2, 4))
    assert files_of(url) == []


# -- two machines -----------------------------------------------------------------------------------------------------

_MACHINE = """
import json, torch, burnish
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
compiled = burnish.compile(model, options={"gate": False, "products": "ours", "warm_start": True})
x = torch.linspace(-1, 1, 24).reshape(3, 8)
with torch.no_grad():
    torch.testing.assert_close(compiled(x), model(x))
compiled(x).sum().backward()
stats = burnish.stats(compiled)
print(json.dumps([stats.cache_misses, stats.seconds.get("cc", 0.0), list(stats.cache_reasons)]))
"""


def machine(tmp_path: Path, name: str, **variables: object) -> list[Any]:
    """A process with a disk and a working directory of its own."""
    (tmp_path / name).mkdir()
    ours = {"BURNISH_CACHE_DIR": tmp_path / name / "cache", "OMP_NUM_THREADS": 1, "PYTHONPATH": ROOT, **variables}
    environment = {**os.environ, **{key: str(value) for key, value in ours.items()}}
    done = subprocess.run(
        [sys.executable, "-c", _MACHINE], env=environment, cwd=tmp_path / name, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_second_machine_compiles_nothing(tmp_path: Path, keys: Keys, url: str) -> None:
    misses, compiling, _ = machine(tmp_path, "first", BURNISH_CACHE=url, BURNISH_CACHE_SIGN=keys.private)
    assert misses > 0 and compiling > 0
    misses, compiling, why = machine(tmp_path, "second", BURNISH_CACHE=url, BURNISH_CACHE_VERIFY_KEY=keys.public)
    assert misses == 0 and compiling == 0, why


def test_pushed_and_pulled(
    tmp_path: Path, keys: Keys, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(tmp_path, "first")
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path / "first" / "cache"))
    assert main(["cache", "push", url, "--sign", str(keys.private)]) == 0
    assert main(["cache", "push", url, "--sign", str(keys.private)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    written = int(first.partition(" ")[0])
    assert first == f"{written} written to {url}, 0 were there before"
    assert second == f"nothing to do to {url}, {written} were there before"
    (tmp_path / "second").mkdir()
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path / "second" / "cache"))
    assert main(["cache", "pull", url, "--verify-key", str(keys.public)]) == 0
    assert capsys.readouterr().out == f"{written} loaded from {url}, 0 were here before\n"
    (tmp_path / "second").rename(tmp_path / "pulled")
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path / "pulled" / "cache"))
    misses, _, why = machine(tmp_path, "second", BURNISH_CACHE_DIR=tmp_path / "pulled" / "cache")
    assert misses == 0, why


def test_a_pull_says_what_it_refuses(
    tmp_path: Path, keys: Keys, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    writer(url, keys_in(tmp_path, "another")).send("library", KEY, b"code")
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["cache", "pull", url, "--verify-key", str(keys.public)]) == 1
    assert capsys.readouterr().out == f"1 refused from {url}, 0 were here before\n"


def test_a_push_without_a_private_key(url: str, keys: Keys, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "push", url]) == 2
    assert "no key says whose is trusted" in capsys.readouterr().err


def test_a_miss_is_explained_by_what_the_store_has(url: str, keys: Keys, tmp_path: Path) -> None:
    old = CacheKey((("name", "mine"), ("source", "s1"), ("torch", "2.12.0")))
    new = CacheKey((("name", "mine"), ("source", "s1"), ("torch", "2.13.0")))
    writer(url, keys).send("library", old, b"code")
    cache = Cache(tmp_path / "cache", 1 << 20, shared=reader(url, keys))
    assert cache.miss_reason("library", new) == "mine: nothing of kind 'library' is stored"
    cache.explains_from_shared = True
    assert cache.miss_reason("library", new) == "mine: torch: 2.12.0 -> 2.13.0"


def test_what_was_discarded_is_not_taken_from_the_store_again(url: str, keys: Keys, tmp_path: Path) -> None:
    """Its bytes are intact and no use here."""
    writer(url, keys).send("library", KEY, b"of no use")
    cache = Cache(tmp_path / "cache", 1 << 20, shared=writer(url, keys))
    assert cache.get("library", KEY) == b"of no use"
    cache.discard("library", KEY)
    assert cache.get("library", KEY) is None
    cache.put("library", KEY, b"of use")
    assert cache.get("library", KEY) == b"of use" and writer(url, keys).settle(60)
    assert reader(url, keys).get("library", KEY) == b"of use"


def test_no_key_has_a_folder_or_a_machines_name_in_it(tmp_path: Path) -> None:
    machine(tmp_path, "first", HOME=tmp_path / "home")
    cache = Cache(tmp_path / "first" / "cache", 1 << 30)
    entries = [each for each in cache.entries() if each.kind not in shared.LOCAL_KINDS]
    assert {"library", "program", "frame"} <= {each.kind for each in entries}
    for entry in entries:
        for factor, value in entry.factors:
            for private in (str(tmp_path), str(ROOT), socket.gethostname(), sys.prefix, " /", "=/", "-I"):
                assert private not in f" {value}", (entry.kind, factor, value)


def test_the_settings_that_name_the_store_are_no_part_of_a_key(keys: Keys, url: str) -> None:
    from burnish.options import Options
    from burnish.runtime.cache.stored_program import option_factor

    options = Options()
    given = dataclasses.replace(options, cache=url, cache_sign=keys.private, cache_verify_key=keys.public)
    assert option_factor(given) == option_factor(options)


def doctor_says(capsys: pytest.CaptureFixture[str]) -> str:
    main(["doctor"])
    return " ".join(capsys.readouterr().out.split()).partition("shared cache")[2]


def test_the_doctor_asks_the_store(
    url: str, keys: Keys, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BURNISH_CACHE", url)
    assert "no key says whose is trusted" in doctor_says(capsys)
    monkeypatch.setenv("BURNISH_CACHE_VERIFY_KEY", str(keys.public))
    assert "reads what its key's owner signed" in doctor_says(capsys)


def test_the_doctor_says_why_a_store_is_left_alone(
    unwilling: type[Unwilling], keys: Keys, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(unwilling, "problem", PermissionError("no access to the bucket"))
    monkeypatch.setenv("BURNISH_CACHE", "unwilling://store")
    monkeypatch.setenv("BURNISH_CACHE_SIGN", str(keys.private))
    assert "no access to the bucket" in doctor_says(capsys)
