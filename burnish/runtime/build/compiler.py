"""The system's C compiler: finding it, its identity, its supported flags, and running it with a time limit.

The compiler is part of the key of a library in the cache. If there is no compiler (or it does not answer), the cache
records which compiler filled it (`find_maker`): stored libraries can be loaded, and only building fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from burnish.errors import CompilerMissing
from burnish.runtime.cache.store import Cache, CacheKey
from burnish.runtime.deadline import UNLIMITED, Deadline
from burnish.runtime.process import NICE, at_exit, give_way

SECONDS = 20.0  # seconds that a command may take by default: the option `compiler_seconds`
_SOURCE_BYTES = 1 << 16  # bytes of one file for which it may take as long again
_MOST_TIMES = 6.0  # as long, whatever the file's size
_SECOND_CHANCE = 2.0  # seconds for the next command of a compiler that hung; after a second hang, none is run
_PRINTED_BYTES = 1 << 16  # of what a command prints, that are kept
_LOOK_SECONDS = 0.05  # interval of checks whether a command has ended whose output another process keeps open
_KIND = "compiler"
_STORED = "library"  # the kind of entry that records the compiler

# Flags that a compiler may not support, with their replacements, best first. The last replacement is no flag.
_ALTERNATIVES: Mapping[str, tuple[str, ...]] = {
    "-march=native": ("-march=native", "-mcpu=native", ""),
    "-fopenmp": ("-fopenmp", ""),
}
_PROBE = "#ifdef _OPENMP\n#include <omp.h>\n#endif\nint bn_probe(void) { return 0; }\n"
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded|Read-only file system")


@dataclass(frozen=True)
class Compiler:
    """A C compiler's identity: the command, its first line of --version, and the file that was asked."""

    command: tuple[str, ...]
    version: str
    file: str

    @property
    def factors(self) -> tuple[tuple[str, str], ...]:
        """As parts of a cache key, which names no folder: another machine may have the same compiler elsewhere."""
        return (
            ("compiler", shlex.join(map(_without_folder, self.command))),
            ("compiler version", self.version),
            ("compiler file", _without_folder(self.file)),
        )


def _without_folder(word: str) -> str:
    """`/usr/bin/cc` is `cc`. Of an argument that has a path in it (`--sysroot=/opt/root`), only a checksum is left: it
    is not known what another machine has there."""
    if word.startswith("/"):
        return word.rpartition("/")[2]
    return f"argument {hashlib.sha256(word.encode()).hexdigest()[:12]}" if "/" in word else word


@dataclass(frozen=True)
class Maker:
    """The compiler whose libraries serve this process, and, if it cannot compile any more, the reason."""

    compiler: Compiler
    problem: Exception | None = None


class CommandFailed(Exception):
    """A command failed. Internal: the build converts it to an error that names the fix."""

    def __init__(self, command: Sequence[str], status: int | None, printed: str, unended: bool = False) -> None:
        super().__init__(printed)
        self.command = shlex.join(command)
        self.unended = unended  # it did not end in time
        self._status = status  # negative for a signal; None when the command did not start, or did not end
        self._printed = printed

    @property
    def refused(self) -> bool:
        """The compiler rejected its input, as it does for an unknown flag."""
        return self._status is not None and self._status > 0 and not self.no_room

    @property
    def no_room(self) -> bool:
        return bool(_NO_ROOM.search(self._printed))

    @property
    def status(self) -> str:
        if self._status is None:
            return "no exit status"
        if self._status < 0:
            return f"signal {-self._status} ({signal.strsignal(-self._status)})"
        return f"exit status {self._status}"

    @property
    def first_errors(self) -> str:
        """The first lines that contain an error, or else the first lines; safe to print."""
        lines = [_plain(line)[:300] for line in self._printed.splitlines() if line.strip()]
        return "\n".join(([line for line in lines if "error" in line.lower()] or lines)[:6])


_compilers: dict[tuple[tuple[str, ...], str], Compiler] = {}
_silent: dict[tuple[tuple[str, ...], str], CommandFailed] = {}  # compilers that did not answer `--version`
_stand_ins: dict[str, Compiler] = {}  # by the cache's directory: the compiler that filled it
_accepted: dict[Compiler, dict[str, str]] = {}  # for compilers that rejected a source: flag -> its replacement
_unended: Counter[str] = Counter()  # by program: commands in a row that did not end in time
_asking = threading.Lock()


def forget_compilers() -> None:
    for memo in (_compilers, _silent, _stand_ins, _accepted, _unended):
        memo.clear()


def find_maker(requested: str | None, cache: Cache, seconds: float = SECONDS) -> Maker:
    """The compiler to use or, if none answers, the one that filled the cache. Without either it raises CompilerMissing
    or CommandFailed."""
    try:
        return Maker(find_compiler(requested, cache, seconds))
    except (CompilerMissing, CommandFailed) as problem:
        stand_in = _stand_in(cache)
        if stand_in is None:
            raise
        return Maker(stand_in, problem)


def find_compiler(requested: str | None, cache: Cache, seconds: float = SECONDS) -> Compiler:
    """The compiler to use. Its version is remembered in the cache for as long as its file stays the same, so that a
    process without anything to compile does not run it at all."""
    command = locate(requested)
    status = os.stat(command[0])
    file = f"{os.path.realpath(command[0])}, {status.st_size} bytes, modified {status.st_mtime_ns}"
    with _asking:
        if found := _compilers.get((command, file)):
            return found
        if failure := _silent.get((command, file)):
            raise failure.with_traceback(None)
        key = CacheKey((("name", command[0]), ("command", shlex.join(command)), ("file", file)))
        found = _recorded(cache.get(_KIND, key))
        if found is None or (found.command, found.file) != (command, file):
            found = Compiler(command, _version(command, file, seconds), file)
            cache.discard(_KIND, key)
            cache.put(_KIND, key, json.dumps([list(command), found.version, file]).encode())
        _compilers[command, file] = found
        return found


def _version(command: tuple[str, ...], file: str, seconds: float) -> str:
    try:
        lines = run([*command, "--version"], limit_seconds=seconds).splitlines()
    except CommandFailed as failure:
        if failure.unended:  # nor will it the next time
            _silent[command, file] = failure
        raise
    return _plain(lines[0])[:200] if lines else "says nothing"


def _recorded(data: bytes | None) -> Compiler | None:
    """A compiler as recorded in the cache."""
    try:
        command, version, file = json.loads(data or b"null")
    except (ValueError, TypeError, RecursionError):
        return None
    texts = [*command, version, file] if isinstance(command, list) and command else [None]
    return Compiler(tuple(command), version, file) if all(isinstance(text, str) for text in texts) else None


def _stand_in(cache: Cache) -> Compiler | None:
    """The compiler of most stored libraries, so that the libraries of one compiler serve the whole process: verdicts
    are for one compiler's output."""
    root = str(cache.root)
    if root not in _stand_ins:
        known = [found for data in cache.all(_KIND) if (found := _recorded(data)) is not None]  # last used first
        if not known:
            return None
        made: Counter[tuple[tuple[str, str], ...]] = Counter()
        if len(known) > 1:
            made.update(tuple(f for f in entry.factors if f[0].startswith("compiler")) for entry in cache.of(_STORED))
        _stand_ins[root] = max(known, key=lambda found: made[found.factors])  # of equal ones, the first
    return _stand_ins[root]


def locate(requested: str | None) -> tuple[str, ...]:
    """`requested` may be a path, a name, or a command with arguments, as the variable CC may be ("ccache gcc")."""
    candidates = ([requested], _words(requested)) if requested else (["cc"], ["gcc"], ["clang"])
    for candidate in candidates:
        if candidate and (found := shutil.which(candidate[0])):
            return (os.path.abspath(found), *candidate[1:])
    raise CompilerMissing([requested] if requested else ["cc", "gcc", "clang"])


def _words(command: str) -> list[str]:
    """Split like a shell; empty if a shell would refuse it."""
    try:
        return shlex.split(command)
    except ValueError:  # a quotation without an end
        return []


def compile_object(
    compiler: Compiler,
    flags: Sequence[str],
    source: Path,
    output: Path,
    deadline: Deadline = UNLIMITED,
    seconds: float = SECONDS,
) -> None:
    """Compile one file. Unsupported flags are searched only after a rejection."""
    seconds *= min(1 + source.stat().st_size / _SOURCE_BYTES, _MOST_TIMES)
    try:
        _compile_with(compiler, _translate(compiler, flags), source, output, deadline, seconds)
    except CommandFailed as failure:
        if compiler in _accepted or not failure.refused:
            raise
        probes = {flag: _probe(compiler, flag, output.with_suffix(".probe.c"), seconds) for flag in _ALTERNATIVES}
        _accepted[compiler] = {flag: stand_in for flag, stand_in in probes.items() if stand_in is not None}
        if _translate(compiler, flags) == list(flags):
            raise
        _compile_with(compiler, _translate(compiler, flags), source, output, deadline, seconds)


def _translate(compiler: Compiler, flags: Sequence[str]) -> list[str]:
    accepted = _accepted.get(compiler, {})
    return [stand_in for flag in flags if (stand_in := accepted.get(flag, flag))]


def _probe(compiler: Compiler, flag: str, source: Path, seconds: float) -> str | None:
    """The replacement of `flag` for this compiler; None if it cannot compile even a minimal file, so flags are not the
    cause."""
    source.write_text(_PROBE)
    for candidate in _ALTERNATIVES[flag]:
        with contextlib.suppress(CommandFailed):
            flags = [candidate] if candidate else []
            _compile_with(compiler, flags, source, source.with_suffix(".o"), UNLIMITED, seconds)
            return candidate
    return None


def _compile_with(
    compiler: Compiler, flags: Sequence[str], source: Path, output: Path, deadline: Deadline, seconds: float
) -> None:
    _run_patiently([*compiler.command, *flags, "-c", str(source), "-o", str(output)], output, deadline, seconds)


def link_shared(
    compiler: Compiler,
    flags: Sequence[str],
    objects: Sequence[Path],
    output: Path,
    deadline: Deadline = UNLIMITED,
    seconds: float = SECONDS,
) -> None:
    # -lm, though torch has it loaded: references without a version would bind to the oldest functions in it.
    command = [*compiler.command, "-shared", *map(str, objects), "-o", str(output), *flags, "-lm"]
    _run_patiently(command, output, deadline, seconds)


def _run_patiently(command: Sequence[str], output: Path, deadline: Deadline, seconds: float) -> None:
    """Run a command. After one timeout of a compiler the next limit is shorter; after a second one it is not run
    again."""
    program = command[0]
    if deadline.niceness >= NICE:  # no call waits, and it may get only a small share of a processor
        seconds *= _MOST_TIMES
    if _unended[program] > 1:
        raise CommandFailed(command, None, "not run: it did not end in time before, in this process")
    try:
        run(command, output, min(seconds, _SECOND_CHANCE) if _unended[program] else seconds, deadline)
    except CommandFailed as failure:
        if failure.unended:
            _unended[program] += 1
            raise
        _unended.pop(program, None)
        raise
    _unended.pop(program, None)


def run(
    command: Sequence[str],
    output: Path | None = None,
    limit_seconds: float = SECONDS,
    deadline: Deadline = UNLIMITED,
) -> str:
    """Run one command to its end and return what it printed; `output` is the file it must have written. At the deadline
    the command and its children are killed."""
    deadline.check()
    left = deadline.remaining()
    limit = limit_seconds if left is None else min(limit_seconds, left)
    # The child's environment, not a setting of ours: messages in English, temporary files beside the output.
    environment = {**os.environ, "LC_ALL": "C", **({"TMPDIR": str(output.parent)} if output else {})}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that the compiler's own children can be ended with it
            env=environment,
        )
    except OSError as error:
        raise CommandFailed(command, None, f"cannot be run: {error.strerror}") from None
    try:
        with _known(process), deadline.ending(lambda: _end(process)):
            if deadline.niceness:
                give_way(process.pid, deadline.niceness)
            printed = _printed(process, limit).decode(errors="replace")
    except subprocess.TimeoutExpired:
        deadline.check()
        told = f"did not end within {limit:.3g} seconds (BURNISH_COMPILER_SECONDS is how long it may take)"
        raise CommandFailed(command, None, told, unended=True) from None
    finally:
        _leave(process)
    if process.returncode != 0:
        deadline.check()  # cancelled, it was ended by us
        raise CommandFailed(command, process.returncode, printed)
    if output and not (output.is_file() and output.stat().st_size):
        raise CommandFailed(command, 0, f"error: wrote no {output.name}\n{printed}")
    return printed


def _printed(process: subprocess.Popen[bytes], limit: float) -> bytes:
    """The beginning of a process's output until it ends. Raises TimeoutExpired. A child that it leaves behind may keep
    the pipe open; that is not waited for."""
    assert process.stdout is not None
    pipe, kept, end = process.stdout.fileno(), b"", time.monotonic() + limit
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0:
            if selector.select(min(left, _LOOK_SECONDS)):
                part = os.read(pipe, 1 << 16)
                kept = (kept + part)[:_PRINTED_BYTES]
                if not part:  # closed, as it is when all have ended
                    process.wait(max(end - time.monotonic(), 0.0))
                    return kept
            elif process.poll() is not None:
                return kept
    raise subprocess.TimeoutExpired(process.args, limit)


def _leave(process: subprocess.Popen[bytes]) -> None:
    """Kill the rest of a process group. A process that cannot be killed, because it waits for a disk, is not waited
    for."""
    if process.returncode is None:  # out of time, or interrupted
        _end(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
    if process.stdout is not None:
        process.stdout.close()


# -- no process outlives this one ---------------------------------------------------------------------------------

_running: set[tuple[int, subprocess.Popen[bytes]]] = set()  # with the process they are children of


@contextlib.contextmanager
def _known(process: subprocess.Popen[bytes]) -> Iterator[None]:
    _running.add((os.getpid(), process))
    try:
        yield
    finally:
        _running.discard((os.getpid(), process))


def _end(process: subprocess.Popen[bytes]) -> None:
    """The compiler and its own children."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _end_all() -> None:
    for parent, process in list(_running):
        if parent == os.getpid():  # a forked child must not end its parent's
            _end(process)


at_exit(_end_all)


def _plain(text: str) -> str:
    return re.sub(r"[^ -~]", "?", text)
