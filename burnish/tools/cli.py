"""The `burnish` command."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from burnish.errors import BadOptionValue, BurnishError, in_one_line
from burnish.tools.commands.bench import add_bench
from burnish.tools.commands.cache import add_push_and_pull
from burnish.tools.commands.doctor import add_doctor
from burnish.tools.commands.explain import add_explain
from burnish.tools.commands.generate import add_generate
from burnish.tools.commands.pack import add_pack
from burnish.tools.commands.verify import add_verify

if TYPE_CHECKING:
    from burnish.runtime.cache.store import Cache

TARGET_HELP = (
    "a built-in workload (`burnish workloads` lists them; NAME@tiny is its small variant), FILE.py:FUNCTION or "
    "PACKAGE.MODULE:FUNCTION; the function takes no arguments and returns (model, example_inputs), or a dict with the "
    "loop around the model (see burnish bench --help)"
)


STATUS = """\
exit status:
  0    done, and nothing is wrong
  1    something is wrong: verify found wrong results, a line of doctor failed, a file could not be written
  2    no answer: a mistake in the call, or a target that cannot be built or run
  130  interrupted by Ctrl-C
  141  the reader of the output has gone (a closed pipe)
  Each ends with one line that names your file and line where there is one; --debug adds the traceback.
"""


def main(argv: Sequence[str] | None = None) -> int:
    arguments: argparse.Namespace | None = None
    try:
        _print_what_can_be_printed()
        arguments = _parsed(argv)
        run: Callable[[argparse.Namespace], int] = arguments.run
        status = run(arguments)
        sys.stdout.flush()  # a reader that has gone is noticed here, not when Python ends
        return status
    except BaseException as error:
        if arguments is None and isinstance(error, SystemExit):
            raise  # argparse: --help, or a mistake that it has told
        if getattr(arguments, "debug", False):
            traceback.print_exc()
        message, status = _ending(error)
        with contextlib.suppress(OSError):
            print(f"burnish: {message}", file=sys.stderr)
        return status


def _print_what_can_be_printed() -> None:
    """Our arrows and dots, and names in a user's language, are no reason to fail where the locale is C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="replace")


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    try:
        return build_parser().parse_args(argv)
    finally:
        sys.stdout.flush()  # the help


def _ending(error: BaseException) -> tuple[str, int]:
    """What to say, and the exit status."""
    if _is_broken_pipe(error):  # `burnish cache ls | head`
        _drop_output()
        return "the reader of the output has gone", 141
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if isinstance(error, BurnishError):
        return _in_a_line(str(error)), 2
    if isinstance(error, SystemExit):
        return f"the target ended the process (status {error.code})", 2
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot use {error.filename}: {error.strerror}", 1
    return f"failed: {in_one_line(error)}. --debug shows the whole traceback", 1


def _is_broken_pipe(error: BaseException) -> bool:
    """rich makes a SystemExit of it."""
    return isinstance(error, BrokenPipeError) or (
        isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError)
    )


def _drop_output() -> None:
    """What is still to be written goes nowhere: Python would try once more at its end, and complain."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _in_a_line(message: str) -> str:
    """What a process of ours said before it ended is told by its last line."""
    first, *rest = [line.strip() for line in message.splitlines() if line.strip()]
    return f"{first} {rest[-1]}" if rest else first


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\nTry: {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="burnish",
        description="A compiler for PyTorch models, and the proof that it helped.",
        epilog=STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the versions of burnish and torch")
    parser.set_defaults(run=_run_bare, parser=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_demo(commands)
    add_bench(commands, TARGET_HELP)
    add_verify(commands, TARGET_HELP)
    add_explain(commands, TARGET_HELP)
    add_generate(commands, TARGET_HELP)
    add_pack(commands, TARGET_HELP)
    add_doctor(commands, TARGET_HELP)
    _add_cache(commands)
    workloads = commands.add_parser("workloads", help="list the built-in workloads")
    workloads.set_defaults(run=_run_workloads)
    _add_debug(parser)
    return parser


def _add_debug(parser: argparse.ArgumentParser) -> None:
    """Before the command or after it."""
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="print the traceback of what fails"
    )
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _add_debug(command)


Commands = argparse._SubParsersAction  # argparse gives its type no public name


def _add_demo(commands: Commands[_Parser]) -> None:
    parser = commands.add_parser(
        "demo",
        help="compile three models, print eager / Inductor / burnish side by side",
        description="Compile models on the CPU with Inductor and with burnish, each cold in a fresh process, time both "
        "against eager in turns, and compare all of them with float64. The default three take under four minutes on "
        "two cores.",
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"what to measure instead: {TARGET_HELP}")
    parser.add_argument("--seconds", type=float, help="how long to time each target for (default 6)")
    parser.set_defaults(run=_run_demo)


def _add_cache(commands: Commands[_Parser]) -> None:
    parser = commands.add_parser(
        "cache", help="look into the cache on disk, clear it, share it, or ask why something was not in it"
    )
    parser.set_defaults(run=_run_bare, parser=parser)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    ls = actions.add_parser("ls", help="list the entries, the most recently used first")
    ls.add_argument("--long", action="store_true", help="with every factor of each entry's key")
    ls.set_defaults(run=_run_cache_ls)
    clear = actions.add_parser("clear", help="remove every entry")
    clear.set_defaults(run=_run_cache_clear)
    why = actions.add_parser(
        "why",
        help="compile a target and list, for each miss, every factor that changed",
        description="Compile TARGET as a program would and print what the cache answered. For each miss the nearest "
        "stored entry is named factor by factor, stored against current. What was missing is stored by this.",
    )
    why.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    why.set_defaults(run=_run_cache_why)
    add_push_and_pull(actions)


# -- the commands. What is heavy to import is imported here: `burnish --help` must be instant. --------------------


def _run_bare(arguments: argparse.Namespace) -> int:
    if getattr(arguments, "version", False):
        import torch

        import burnish

        print(f"burnish {burnish.__version__} (torch {torch.__version__}, Python {sys.version.split()[0]})")
        return 0
    arguments.parser.print_help()
    return 2


def _run_demo(arguments: argparse.Namespace) -> int:
    from burnish.tools.demo import DEFAULT_TARGETS, TIMING_SECONDS, run_demo

    if arguments.seconds is not None and not 0 < arguments.seconds < 3600:
        raise BadOptionValue("--seconds", arguments.seconds, "between 0 and 3600")
    return run_demo(arguments.targets or DEFAULT_TARGETS, arguments.seconds or TIMING_SECONDS)


def _run_workloads(arguments: argparse.Namespace) -> int:
    from burnish.tools.workloads import WORKLOADS

    for workload in WORKLOADS.values():
        needs = f" (needs 'burnish[{workload.extra}]')" if workload.extra else ""
        print(f"{workload.name:14} {workload.kind:10} {workload.description}{needs}")
    return 0


def _open_cache() -> Cache:
    from burnish.options import Options
    from burnish.runtime.cache.store import Cache

    options = Options()
    return Cache(options.cache_dir, options.cache_limit_bytes)


def _run_cache_ls(arguments: argparse.Namespace) -> int:
    cache = _open_cache()
    entries = cache.entries()
    now = time.time()
    for entry in entries:
        used = _age(now - entry.last_used)
        print(f"{entry.digest[:12]}  {entry.kind:10} {_size(entry.size):>10}  {used:>6}  {entry.name}")
        if arguments.long:
            for factor, value in entry.factors:
                print(f"    {factor:16} {value}")
    total = sum(entry.size for entry in entries)
    print(f"{len(entries)} entries, {_size(total)} of {_size(cache.limit_bytes)}, in {cache.root}")
    return 0


def _run_cache_clear(arguments: argparse.Namespace) -> int:
    cache = _open_cache()
    count, freed = cache.clear()
    print(f"removed {count} entries, {_size(freed)}, from {cache.root}")
    return 0


def _run_cache_why(arguments: argparse.Namespace) -> int:
    import burnish
    from burnish.options import Options
    from burnish.runtime.cache.store import open_cache
    from burnish.tools.targets import load_target, running

    target = load_target(arguments.target)
    open_cache(Options()).explains_from_shared = True
    compiled = burnish.compile(target.model)
    with target.grad_mode(), running(target.name, "calling it"):
        target.step(compiled)()
    stats = burnish.stats(compiled)
    print(f"{target.name}: {stats.cache_hits} hits, {stats.cache_misses} misses")
    for reason in stats.cache_reasons:
        print(f"  miss  {reason}")
    return 0


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
