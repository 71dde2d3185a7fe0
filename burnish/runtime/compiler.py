"""The system's C compiler: which one, what it is, which flags it knows, and running it so that it cannot hang us."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from burnish.errors import CompilerMissing
from burnish.runtime.cache import Cache, CacheKey
from burnish.trust.budget import UNLIMITED, Deadline
from burnish.trust.process import at_exit, give_way

COMPILE_SECONDS = 120.0  # a compiler that takes longer is stuck

# Flags a compiler may not know, with what to try in their place, best first. The last is to do without.
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


class CommandFailed(Exception):
    """A command did not do its work. Internal: the build turns it into an error that names the way out."""

    def __init__(self, command: Sequence[str], status: int | None, printed: str) -> None:
        super().__init__(printed)
        self.command = shlex.join(command)
        self._status = status  # negative for a signal; None when the command did not start, or did not end
        self._printed = printed

    @property
    def refused(self) -> bool:
        """The compiler said no, as it does to a flag it does not know."""
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
        """The first lines that speak of an error, or else the first lines; fit for a terminal."""
        lines = [_plain(line)[:300] for line in self._printed.splitlines() if line.strip()]
        return "\n".join(([line for line in lines if "error" in line.lower()] or lines)[:6])


_compilers: dict[tuple[tuple[str, ...], str], Compiler] = {}
_accepted: dict[Compiler, dict[str, str]] = {}  # for compilers that refused a source: flag -> what stands for it
_asking = threading.Lock()


def forget_compilers() -> None:
    _compilers.clear()
    _accepted.clear()


def find_compiler(requested: str | None, cache: Cache) -> Compiler:
    """The compiler to use. Its version is remembered in the cache for as long as its file stays the same, so that a
    process that needs nothing compiled does not run it even to ask who it is."""
    command = locate(requested)
    status = os.stat(command[0])
    file = f"{os.path.realpath(command[0])}, {status.st_size} bytes, modified {status.st_mtime_ns}"
    with _asking:
        if found := _compilers.get((command, file)):
            return found
        key = CacheKey((("name", command[0]), ("command", shlex.join(command)), ("file", file)))
        stored = cache.get("compiler", key)
        if stored is None:
            lines = run([*command, "--version"]).splitlines()
            stored = _plain(lines[0])[:200].encode() if lines else b"says nothing"
            cache.put("compiler", key, stored)
        found = _compilers[command, file] = Compiler(command, stored.decode(errors="replace"), file)
        return found


def locate(requested: str | None) -> tuple[str, ...]:
    """`requested` may be a path, a name, or a command with arguments, as the variable CC may be ("ccache gcc")."""
    candidates = ([requested], shlex.split(requested)) if requested else (["cc"], ["gcc"], ["clang"])
    for candidate in candidates:
        if candidate and (found := shutil.which(candidate[0])):
            return (os.path.abspath(found), *candidate[1:])
    raise CompilerMissing([requested] if requested else ["cc", "gcc", "clang"])


def compile_object(
    compiler: Compiler, flags: Sequence[str], source: Path, output: Path, deadline: Deadline = UNLIMITED
) -> None:
    """Compile one file. Only a refusal makes us find out which flags the compiler does not know."""
    try:
        _compile_with(compiler, _translate(compiler, flags), source, output, deadline)
    except CommandFailed as failure:
        if compiler in _accepted or not failure.refused:
            raise
        probes = {flag: _probe(compiler, flag, output.with_suffix(".probe.c")) for flag in _ALTERNATIVES}
        _accepted[compiler] = {flag: stand_in for flag, stand_in in probes.items() if stand_in is not None}
        if _translate(compiler, flags) == list(flags):
            raise
        _compile_with(compiler, _translate(compiler, flags), source, output, deadline)


def _translate(compiler: Compiler, flags: Sequence[str]) -> list[str]:
    accepted = _accepted.get(compiler, {})
    return [stand_in for flag in flags if (stand_in := accepted.get(flag, flag))]


def _probe(compiler: Compiler, flag: str, source: Path) -> str | None:
    """What stands for `flag` with this compiler; None when it compiles not even this: flags are not the trouble."""
    source.write_text(_PROBE)
    for candidate in _ALTERNATIVES[flag]:
        with contextlib.suppress(CommandFailed):
            _compile_with(compiler, [candidate] if candidate else [], source, source.with_suffix(".o"))
            return candidate
    return None


def _compile_with(
    compiler: Compiler, flags: Sequence[str], source: Path, output: Path, deadline: Deadline = UNLIMITED
) -> None:
    run([*compiler.command, *flags, "-c", str(source), "-o", str(output)], output, deadline=deadline)


def link_shared(
    compiler: Compiler, flags: Sequence[str], objects: Sequence[Path], output: Path, deadline: Deadline = UNLIMITED
) -> None:
    # -lm, though torch has it loaded: references without a version would bind to the oldest functions in it.
    command = [*compiler.command, "-shared", *map(str, objects), "-o", str(output), *flags, "-lm"]
    run(command, output, deadline=deadline)


def run(
    command: Sequence[str],
    output: Path | None = None,
    limit_seconds: float | None = None,
    deadline: Deadline = UNLIMITED,
) -> str:
    """Run one command to its end and return what it printed; `output` is the file it must have written. At the
    deadline it is ended."""
    deadline.check()
    limit = COMPILE_SECONDS if limit_seconds is None else limit_seconds
    left = deadline.remaining()
    limit = limit if left is None else min(limit, left)
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
            printed = process.communicate(timeout=limit)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        deadline.check()
        raise CommandFailed(command, None, f"did not end within {limit:g} seconds") from None
    finally:
        if process.returncode is None:  # out of time, or interrupted
            _end(process)
            process.communicate()
    if process.returncode != 0:
        deadline.check()  # cancelled, it was ended by us
        raise CommandFailed(command, process.returncode, printed)
    if output and not (output.is_file() and output.stat().st_size):
        raise CommandFailed(command, 0, f"error: wrote no {output.name}\n{printed}")
    return printed


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


@functools.cache
def cpu_features() -> str:
    """What -march=native looks at. /proc/cpuinfo is read up to its first blank line: one processor speaks for all."""
    told: dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as cpuinfo:
        for line in cpuinfo:
            if not line.strip():
                break
            field, _, value = line.partition(":")
            told[field.strip()] = value.strip()
    named = ("model name", "cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant")
    features = " ".join(sorted((told.get("flags") or told.get("Features") or "").split()))
    known = [f"{name} {told[name]}" for name in named if name in told]
    return ", ".join([platform.machine(), *known, f"features {hashlib.sha256(features.encode()).hexdigest()[:16]}"])


def _plain(text: str) -> str:
    return re.sub(r"[^ -~]", "?", text)
