"""`burnish cache push URL` and `burnish cache pull URL`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burnish.options import Options
    from burnish.runtime.cache.shared import SharedStore
    from burnish.runtime.cache.store import Cache

_AT_ONCE = 8  # entries on their way: a store far away answers each after tens of milliseconds

_PUSH = (
    "Sign every entry of the cache on this disk that another machine could use, and write it to the store at URL: a "
    "folder, or anything fsspec knows (s3://, gs://, hf://, ...). What is there already is left as it is. Status: 0 "
    "all written, 1 some could not be, 2 wrong arguments."
)
_PULL = (
    "Load every entry of the store at URL that the key's owner has signed into the cache on this disk. Status: 0 all "
    "loaded, 1 some were refused, 2 wrong arguments."
)


def add_push_and_pull(actions: Any) -> None:
    push = actions.add_parser("push", help="copy the cache into a store that other machines read", description=_PUSH)
    _add_place(push)
    push.add_argument("--sign", type=Path, metavar="KEYFILE", help="the ed25519 private key (BURNISH_CACHE_SIGN)")
    push.set_defaults(run=run_push)
    pull = actions.add_parser("pull", help="fill the cache from such a store", description=_PULL)
    _add_place(pull)
    pull.add_argument(
        "--verify-key", type=Path, metavar="KEYFILE", help="the ed25519 public key (BURNISH_CACHE_VERIFY_KEY)"
    )
    pull.set_defaults(run=run_pull)


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", nargs="?", metavar="URL", help="where the store is (BURNISH_CACHE)")
    parser.add_argument("--kind", action="append", metavar="KIND", help="only entries of this kind, as `cache ls` says")


def run_push(arguments: argparse.Namespace) -> int:
    from burnish.errors import CacheUrl
    from burnish.runtime.cache.shared import LOCAL_KINDS

    options = _options(arguments, cache_sign=arguments.sign)
    cache, store = _opened(options)
    if options.cache_sign is None:
        raise CacheUrl(store.shown, "to write to it takes a private key: --sign KEYFILE")
    there = set(store.names())
    wanted = [each for each in cache.entries() if each.kind not in LOCAL_KINDS]
    wanted = [each for each in wanted if _is_asked_for(each.kind, arguments) and (each.kind, each.digest) not in there]

    def send(entry: Any) -> str:
        found = cache.kept(entry.kind, entry.digest)
        if found is None:
            return "gone"
        store.send(entry.kind, *found)
        return "written"

    return _report(send, wanted, f"to {store.shown}, {len(there)} were there before")


def run_pull(arguments: argparse.Namespace) -> int:
    options = _options(arguments, cache_verify_key=arguments.verify_key)
    cache, store = _opened(options)
    here = {(each.kind, each.digest) for each in cache.entries()}
    there = [each for each in store.names() if _is_asked_for(each[0], arguments)]

    def load(name: tuple[str, str]) -> str:
        found = store.read(*name)
        if found is None:
            return "refused"
        return "loaded" if cache.keep(name[0], *found) is not None else "not stored"

    wanted = [each for each in there if each not in here]
    return _report(load, wanted, f"from {store.shown}, {len(there) - len(wanted)} were here before")


def _is_asked_for(kind: str, arguments: argparse.Namespace) -> bool:
    return not arguments.kind or kind in arguments.kind


def _options(arguments: argparse.Namespace, **keys: Path | None) -> Options:
    from burnish.errors import CacheUrl
    from burnish.options import Options

    given: dict[str, object] = {name: value for name, value in keys.items() if value is not None}
    if arguments.url:
        given["cache"] = arguments.url
    options = Options.from_arguments(options=given)
    if options.cache is None:
        raise CacheUrl("", "no URL is given, and BURNISH_CACHE is not set")
    return options


def _opened(options: Options) -> tuple[Cache, SharedStore]:
    from burnish.runtime.cache.shared import open_shared
    from burnish.runtime.cache.store import Cache, shared_place

    place = shared_place(options)
    assert place is not None
    return Cache(options.cache_dir, options.cache_limit_bytes), open_shared(place)


def _report(one: Callable[[Any], str], wanted: list[Any], rest: str) -> int:
    """Do each, several at once, and say how it went; a failure ends it with the store's own words."""
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for outcome in _with_progress(pool.map(one, wanted), len(wanted)):
            counts[outcome] += 1
    told = ", ".join(f"{count} {what}" for what, count in sorted(counts.items())) or "nothing to do"
    print(f"{told} {rest}")
    return 1 if counts["refused"] or counts["not stored"] else 0


def _with_progress(outcomes: Iterator[str], total: int) -> Iterator[str]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(
        outcomes, total=total, description="entries", transient=True, console=console, disable=not console.is_terminal
    )
