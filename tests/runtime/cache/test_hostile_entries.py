"""Entries of every kind, damaged in every way: what is found in their place is compiled again, results are eager's, and
nothing of theirs is run.

The kinds are those of a cache that was really filled, so a new one is in these tests as soon as something stores it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import burnish
from burnish.observe.log import CompileLog
from burnish.runtime.build import shared_library
from burnish.runtime.cache.deferred_writes import later
from burnish.runtime.cache.entry import checksum
from burnish.runtime.cache.store import Cache, CacheKey
from burnish.runtime.cpu import product_backend
from burnish.runtime.triton.build import KernelBuilder
from burnish.runtime.triton.compile import BuiltKernel, KernelSource
from burnish.runtime.triton.workers import NoWorkers, WorkerPool
from burnish.tuning.store import CacheStore

MIB = 1 << 20
PACKAGE = Path(burnish.__file__).parent
KINDS = sorted(
    {
        kind
        for path in PACKAGE.rglob("*.py")
        for kind in re.findall(r'^_?KIND = "(\w+)"', path.read_text(), flags=re.MULTILINE)
    }
)


# -- what fills a cache, and reads it again ------------------------------------------------------------------------


class NoPool(WorkerPool):
    def __init__(self) -> None:
        super().__init__(1)

    def shared_library(self, source: KernelSource) -> BuiltKernel:
        raise NoWorkers("none here")

    def alive(self) -> int:
        return 0


def kernel(number: int) -> KernelSource:
    text = f"def kernel{number}(): return {number}"
    return KernelSource(text, f"kernel{number}", (), {}, warps=4, stages=1, overlapped=False, capability=90)


def of_a_gpu(cache: Cache) -> None:
    """The kinds that only a GPU's programs have."""

    def built(source: KernelSource, folder: Path) -> BuiltKernel:
        return BuiltKernel(source.function, b"\x7fELF " + source.text.encode(), source.warps, 0)

    kernels = [kernel(number) for number in range(2)]
    found = KernelBuilder(cache, NoPool, built).build(kernels, CompileLog())
    assert found == [built(source, Path()) for source in kernels]
    store = CacheStore(cache, "a GPU")
    for key in ("a kernel", "another"):
        if store.get(key) != f"the form of {key}":  # the search asks whether it is one of the kernel's forms
            store.put(key, f"the form of {key}")


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(a @ b)  # large enough that who multiplies is measured


def run(root: Path) -> burnish.Stats:
    """What a new process would do; results must be eager's."""
    torch.compiler.reset()
    shared_library.forget_loaded()
    product_backend._answers.clear()
    options: dict[str, object] = {"cache_dir": root, "warm_start": True, "gate": False, "products": "measured"}
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    compiled, twin = burnish.compile(model(), options=options), model()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), twin(x))
    for each in (compiled, twin):
        for _ in range(2):
            each(x).square().sum().backward()
    for got, want in zip(compiled.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)
    large = torch.linspace(-1, 1, 512 * 512).reshape(512, 512)
    multiplied = burnish.compile(product, options=options)
    with torch.no_grad():
        torch.testing.assert_close(multiplied(large[:128], large), product(large[:128], large), rtol=1e-3, atol=1e-3)
    later.finish()
    for each in (burnish.stats(compiled), burnish.stats(multiplied)):
        assert each.fallbacks == () and {variant.engine for variant in each.variants} == {"burnish"}
    of_a_gpu(Cache(root, 64 * MIB))
    return burnish.stats(compiled)


@pytest.fixture(scope="module", autouse=True)
def _the_same_choice_each_time() -> Iterator[None]:
    """Who multiplies is measured, which on a busy machine ends one way or the other, or is not done at all. The C
    runtime is built a dozen times here, and its speed does not matter."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shared_library, "_NATIVE_FLAGS", (*shared_library._NATIVE_FLAGS, "-O1"))
        patched.setattr(product_backend, "_is_quiet", lambda: True)
        patched.setattr(product_backend, "race", lambda seconds: 2.0)
        yield


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, _the_same_choice_each_time: None) -> Path:
    root = tmp_path_factory.mktemp("filled") / "cache"
    run(root)
    return root


@pytest.fixture
def copy(filled: Path, tmp_path: Path) -> Path:
    shutil.copytree(filled, tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _fresh_build_state() -> Iterator[None]:
    yield
    shared_library.forget_loaded()
    product_backend._answers.clear()


def entries(root: Path, kind: str = "*") -> list[Path]:
    return sorted(root.glob(f"{kind}/??/{'?' * 64}"))


def key_of(entry: Path) -> CacheKey:
    """Read before it is damaged."""
    return CacheKey(tuple((name, value) for name, value in json.loads((entry / "meta.json").read_text())["factors"]))


def test_every_kind_is_in_a_filled_cache(filled: Path) -> None:
    assert sorted({entry.parts[-3] for entry in entries(filled)}) == KINDS


def test_undamaged_it_serves(copy: Path) -> None:
    assert run(copy).cache_misses == 0


# -- damage --------------------------------------------------------------------------------------------------------

Damage = Callable[[Path], None]


def _holes(entry: Path) -> None:
    os.truncate(entry / "data", 1 << 43)
    _rewrite(entry, size=1 << 43)


def _write_meta(content: bytes) -> Damage:
    def damage(entry: Path) -> None:
        (entry / "meta.json").write_bytes(content)

    return damage


def _rewrite(entry: Path, **changes: object) -> None:
    """Change what meta.json says; the rest of it stays right."""
    meta = json.loads((entry / "meta.json").read_text())
    (entry / "meta.json").write_text(json.dumps(meta | changes))


def _truncate(name: str, share: float) -> Damage:
    return lambda entry: os.truncate(entry / name, int((entry / name).stat().st_size * share))


def _flip(name: str, where: float) -> Damage:
    def damage(entry: Path) -> None:
        data = bytearray((entry / name).read_bytes())
        data[int((len(data) - 1) * where)] ^= 0x10
        (entry / name).write_bytes(data)

    return damage


def _replace(name: str, make: Callable[[Path], object]) -> Damage:
    """Something that is no file in the place of one."""

    def damage(entry: Path) -> None:
        (entry / name).rename(entry / "aside")
        make(entry / name)

    return damage


def _replace_entry(make: Callable[[Path], object]) -> Damage:
    def damage(entry: Path) -> None:
        shutil.rmtree(entry)
        make(entry)

    return damage


def _link_to_aside(path: Path) -> None:
    path.symlink_to(path.parent / "aside")


def _says(**changes: object) -> Damage:
    return lambda entry: _rewrite(entry, **changes)


def _directory(path: Path) -> None:
    path.mkdir()


DAMAGES: dict[str, Damage] = {
    **{f"{name} truncated to {share}": _truncate(name, share) for name in ("data", "meta.json") for share in (0, 0.5)},
    **{f"{name} flipped at {at}": _flip(name, at) for name in ("data", "meta.json") for at in (0, 0.5, 1)},
    "data longer": lambda entry: os.truncate(entry / "data", (entry / "data").stat().st_size + 7),
    "data astronomical, all holes": _holes,
    "data lost": lambda entry: (entry / "data").unlink(),
    "meta lost": lambda entry: (entry / "meta.json").unlink(),
    "data a pipe": _replace("data", os.mkfifo),
    "meta a pipe": _replace("meta.json", os.mkfifo),
    "data a directory": _replace("data", _directory),
    "meta a directory": _replace("meta.json", _directory),
    "data a link": _replace("data", _link_to_aside),
    "meta a link": _replace("meta.json", _link_to_aside),
    "data a link to nowhere": _replace("data", lambda path: path.symlink_to("/nowhere/at/all")),
    "data endless": _replace("data", lambda path: path.symlink_to("/dev/zero")),
    "entry a pipe": _replace_entry(os.mkfifo),
    "entry a file": _replace_entry(lambda path: path.write_bytes(b"")),
    "entry a link": _replace_entry(lambda path: path.symlink_to(path.parent.parent)),
    "entry empty": _replace_entry(_directory),
    "entry writable by all": lambda entry: entry.chmod(0o777),
    "data writable by all": lambda entry: (entry / "data").chmod(0o666),
    "meta huge": _write_meta(b"[" + b"1," * MIB + b"1]"),
    "meta nested": _write_meta(b"[" * 200_000),
    "meta a dict of dicts": _write_meta(b'{"a":' * 50_000),
    "meta not text": _write_meta(b"\xff\xfe\x00"),
    "meta null": _write_meta(b"null"),
    "size NaN": _says(size=float("nan")),
    "size infinite": _says(size=float("inf")),
    "size negative": _says(size=-1),
    "size astronomical": _says(size=1 << 49),
    "size text": _says(size="12"),
    "factors nested": _says(factors=[[["a"], ["b"]]]),
    "factors of another": _says(factors=[["source", "another"]]),
    "kind of another": _says(kind="another"),
    "kind a list": _says(kind=["library"]),
    "checksum a number": _says(sha256=1),
    "checksum of the data alone": lambda entry: _rewrite(
        entry, sha256=hashlib.sha256((entry / "data").read_bytes()).hexdigest()
    ),
}


def lookups(cache: Cache, keys: dict[Path, CacheKey]) -> Iterator[tuple[Path, bytes | None]]:
    for entry, key in keys.items():
        yield entry, cache.get(entry.parts[-3], key)


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_kind_gives_what_is_damaged(copy: Path, damage: str) -> None:
    keys = {entry: key_of(entry) for entry in entries(copy)}
    assert {entry.parts[-3] for entry in keys} == set(KINDS)
    for entry in keys:
        DAMAGES[damage](entry)
    cache = Cache(copy, 64 * MIB)
    list(cache.entries()), cache.stats(), cache.why("library", next(iter(keys.values())))
    for entry, data in lookups(cache, keys):
        assert data is None, entry
        assert cache.put(entry.parts[-3], keys[entry], b"new") is not None
    assert all(data == b"new" for _, data in lookups(cache, keys))


def _swap(first: Path, second: Path) -> None:
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


@pytest.mark.parametrize("what", ["", "data", "meta.json", "data and checksum"])
@pytest.mark.parametrize("between", ["one kind", "kinds"])
def test_no_kind_takes_another_entry_for_its_own(copy: Path, what: str, between: str) -> None:
    """Each is whole and well-formed, and was stored under another key."""
    keys = {entry: key_of(entry) for entry in entries(copy)}
    by_kind = {kind: entries(copy, kind) for kind in KINDS}
    pairs = (
        [(found[0], found[1]) for found in by_kind.values() if len(found) > 1]
        if between == "one kind"
        else [(by_kind[a][0], by_kind[b][0]) for a, b in zip(KINDS[::2], KINDS[1::2], strict=True)]
    )
    assert len(pairs) >= 4
    for first, second in pairs:
        if what == "data and checksum":
            texts = [json.loads((entry / "meta.json").read_text()) for entry in (first, second)]
            for entry, other in ((first, texts[1]), (second, texts[0])):
                _rewrite(entry, sha256=other["sha256"], size=other["size"])
            _swap(first / "data", second / "data")
        else:
            _swap(first / what, second / what)
    touched = {entry for pair in pairs for entry in pair}
    for entry, data in lookups(Cache(copy, 64 * MIB), keys):
        assert (data is None) == (entry in touched), entry


def test_an_entry_of_the_same_key_and_another_kind(copy: Path) -> None:
    """Moved as it is, with a name that fits its factors."""
    for entry, kind in ((entries(copy, kind)[0], kind) for kind in KINDS):
        other = "elsewhere" if kind == "library" else "library"
        target = copy / other / entry.parts[-2] / entry.name
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = key_of(entry)
        shutil.copytree(entry, target)
        assert Cache(copy, 64 * MIB).get(other, key) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("what", ["", "data", "meta.json"])
def test_a_hostile_payload_of_another_users_whose_checksum_fits(copy: Path, what: str) -> None:
    keys = {entry: key_of(entry) for entry in entries(copy)}
    for entry in keys:
        (entry / "data").write_bytes(b"hostile")
        _rewrite(entry, size=7, sha256=checksum(entry.parts[-3], entry.name, b"hostile"))
        assert Cache(copy, 64 * MIB).get(entry.parts[-3], keys[entry]) == b"hostile"  # of one's own, it is taken
        os.chown(entry / what, 12345, -1)
    assert all(data is None for _, data in lookups(Cache(copy, 64 * MIB), keys))


# -- and the model that wanted it ----------------------------------------------------------------------------------


def all_are_whole(root: Path, before: set[tuple[str, str]]) -> None:
    """Nothing damaged is left, and what was there is there again."""
    known = {(entry.kind, entry.digest) for entry in Cache(root, 64 * MIB).entries()}
    assert known == {(entry.parts[-3], entry.name) for entry in entries(root)}
    assert before <= known, before - known


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["data truncated to 0.5", "data flipped at 0.5", "entry a link", "meta nested"])
def test_everything_damaged_is_compiled_again(copy: Path, damage: str) -> None:
    before = {(entry.parts[-3], entry.name) for entry in entries(copy)}
    for entry in entries(copy):
        DAMAGES[damage](entry)
    assert run(copy).cache_misses > 0
    all_are_whole(copy, before)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_damaged_costs_that_kind(copy: Path, kind: str) -> None:
    for number, entry in enumerate(entries(copy, kind)):
        list(DAMAGES.values())[number % len(DAMAGES)](entry)
    run(copy)


def _nan_times(data: bytes) -> bytes:
    return re.sub(rb"\d+\.\d+", b"NaN", data)


# Written by this very user, with the right checksum: not an attack, but a bug or another version of ourselves.
PAYLOADS: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda data: b"",
    "null": lambda data: b"null",
    "nested": lambda data: b"[" * 200_000,
    "a number": lambda data: b"1e999",
    "not text": lambda data: b"\xff\xfe\x80",
    "half": lambda data: data[: len(data) // 2],
    "NaN": _nan_times,
    "texts for numbers": lambda data: re.sub(rb"\d+\.\d+", b'"x"', data),
    "lists for texts": lambda data: re.sub(rb'"[A-Za-z]\w*"', b"[]", data, count=20),
    "a number for each object": lambda data: re.sub(rb'\["object"', b'["tuple"', data),
}


@pytest.mark.slow
@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_payload_that_makes_no_sense_is_compiled_again(copy: Path, payload: str) -> None:
    for entry in entries(copy):
        kind, data = entry.parts[-3], (entry / "data").read_bytes()
        if kind == "library" and payload not in ("nothing", "null", "nested", "not text"):
            continue  # half of a library is what the loader of this system makes of it
        changed = PAYLOADS[payload](data)
        (entry / "data").write_bytes(changed)
        _rewrite(entry, size=len(changed), sha256=checksum(kind, entry.name, changed))
    run(copy)
