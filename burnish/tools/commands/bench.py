"""`burnish bench TARGET`: its arguments, its progress bar, and where its results go."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.errors import BadOptionValue

if TYPE_CHECKING:
    from rich.console import Console

    from burnish.tools.bench.progress import Progress

DESCRIPTION = """\
Does compiling help this model, and with which settings? Every candidate compiles cold in a fresh process with empty
caches; then all of them take turns in one process on the same inputs. Printed are a verdict in words, latencies with
their intervals, compile times and after how many calls they pay, memory, and errors against float64.
Ctrl-C keeps what was measured by then."""

EPILOG = """\
candidates:
  eager                      always measured: the others are compared with it
  inductor, inductor:MODE    torch.compile with its default backend
  burnish, burnish:MODE      burnish.compile
  any backend                that torch.compile knows, e.g. aot_eager
  MODE is default, reduce-overhead, max-autotune or max-autotune-no-cudagraphs

a target of your own:
  def build():               # burnish bench model.py:build
      return model, (x,)
  To be told what compiling gains for a whole step, return a dict: {"model": model, "data": loader,
  "step": lambda model, batch: ...}; further keys: inputs, kind ("inference" or "train"), batch_size.

examples:
  burnish bench bert-base
  burnish bench model.py:build --html report.html
  burnish bench bert-base --shapes lognormal:8-512,batch=1-8
  burnish bench resnet50 --candidates inductor:max-autotune,burnish --seconds 30 --json result.json
"""


def add_bench(commands: Any, target_help: str) -> None:
    parser = commands.add_parser(
        "bench",
        help="measure a target with every candidate: does compiling help, and with which settings?",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", metavar="TARGET", help=target_help)
    parser.add_argument(
        "--candidates",
        metavar="LIST",
        help="what to compare, with commas between (default: eager,inductor,burnish; on a GPU reduce-overhead too)",
    )
    parser.add_argument("--seconds", type=float, help="how long the candidates take turns (default 10)")
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="write a report with plots: one file, no network needed"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every number")
    parser.add_argument(
        "--checklist",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="measure the production checklist too (default: with --html)",
    )
    parser.add_argument("--dynamic", action="store_true", default=None, help="compile once for all sizes")
    parser.add_argument("--static", dest="dynamic", action="store_false", help="compile for these sizes only")
    parser.add_argument("--fullgraph", action="store_true", help="a graph break is a failure")
    parser.add_argument("--threads", type=int, help="torch's threads (default: torch's own choice)")
    parser.add_argument("--device", help="move the model and its inputs there first, e.g. cuda")
    parser.add_argument("--dtype", help="convert the model and its inputs first, e.g. bfloat16")
    parser.add_argument(
        "--shapes",
        metavar="TRAFFIC",
        help="compare shape strategies on this traffic instead: a trace file (a JSON list of the sizes of each call), "
        "or a distribution such as lognormal:8-512,batch=1-8",
    )
    parser.add_argument("--requests", type=int, default=200, help="with a distribution: how many (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="with a distribution: another one draws other sizes")
    parser.set_defaults(run=run_bench)


def run_bench(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from burnish.tools.bench.run import DEFAULT_SECONDS, bench
    from burnish.tools.bench.table import render

    _check(arguments)
    if arguments.shapes is not None:
        return _run_shapes(arguments)
    console = Console(highlight=False, markup=False)  # messages may hold [brackets] of their own
    with _progress_bar(console) as show, _termination_as_ctrl_c():
        result = bench(
            arguments.target,
            candidates=arguments.candidates,
            seconds=DEFAULT_SECONDS if arguments.seconds is None else arguments.seconds,
            dynamic=arguments.dynamic,
            fullgraph=arguments.fullgraph,
            threads=arguments.threads,
            device=arguments.device,
            dtype=arguments.dtype,
            checklist=bool(arguments.html) if arguments.checklist is None else arguments.checklist,
            on_progress=show,
        )
    console.print(render(result), soft_wrap=False)
    if arguments.json:
        arguments.json.write_text(result.to_json(), encoding="utf-8")
        console.print(f"Numbers: {arguments.json}")
    if arguments.html:
        result.write_html(arguments.html)
        console.print(f"Report: {arguments.html}")
    return 130 if result.incomplete else 0


def _run_shapes(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from burnish.tools.bench.varying import DEFAULT, bench_shapes
    from burnish.tools.bench.varying_table import render
    from burnish.tools.targets import check_target

    check_target(arguments.target)
    console = Console(highlight=False, markup=False)
    names = [each.strip() for each in arguments.candidates.split(",")] if arguments.candidates else DEFAULT
    result = bench_shapes(
        arguments.target,
        arguments.shapes,
        candidates=names,
        requests=arguments.requests,
        seed=arguments.seed,
        threads=arguments.threads,
        device=arguments.device,
        dtype=arguments.dtype,
        on_progress=lambda doing: console.print(f"  {doing} …"),
    )
    console.print(render(result), soft_wrap=False)
    if arguments.json:
        arguments.json.write_text(result.to_json(), encoding="utf-8")
        console.print(f"Numbers: {arguments.json}")
    if arguments.html:
        from burnish.tools.report.varying import page

        arguments.html.write_text(page(result), encoding="utf-8")
        console.print(f"Report: {arguments.html}")
    return 0


@contextlib.contextmanager
def _termination_as_ctrl_c() -> Iterator[None]:
    """`timeout`, a batch system or a cancelled job ends us with SIGTERM: what was measured is kept then, too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check(arguments: argparse.Namespace) -> None:
    """Before minutes of work, not after them."""
    if arguments.seconds is not None and not 0 < arguments.seconds < 3600:
        raise BadOptionValue("--seconds", arguments.seconds, "between 0 and 3600")
    if arguments.threads is not None and arguments.threads < 1:
        raise BadOptionValue("--threads", arguments.threads, "a whole number of at least 1")
    if arguments.requests < 1:
        raise BadOptionValue("--requests", arguments.requests, "a whole number of at least 1")
    if arguments.device is not None:
        from burnish.tools.targets import check_device

        check_device("--device", arguments.device)
    if arguments.dtype is not None:
        import torch

        if not isinstance(getattr(torch, arguments.dtype, None), torch.dtype):
            raise BadOptionValue("--dtype", arguments.dtype, "a torch type such as bfloat16 or float16")
    for option in ("html", "json"):
        path: Path | None = getattr(arguments, option)
        if path is not None and not _can_be_written(path):
            raise BadOptionValue(f"--{option}", str(path), "a file in a folder that exists and can be written to")


def _can_be_written(path: Path) -> bool:
    if path.exists():
        return path.is_file() and os.access(path, os.W_OK)
    return path.parent.is_dir() and os.access(path.parent, os.W_OK)


@contextlib.contextmanager
def _progress_bar(console: Console) -> Iterator[Callable[[Progress], None]]:
    """A bar with the time left; where there is no terminal, a line for each thing done."""
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        """Counts down between two reports: a compile may say nothing for half a minute."""

        def render(self, task: Task) -> Text:
            return Text(time_left(task.fields["until"] - time.monotonic()))

    if not console.is_terminal:
        said = ""

        def tell(progress: Progress) -> None:
            nonlocal said
            if progress.doing != said:
                console.print(f"  {progress.doing} …")
            said = progress.doing

        yield tell
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeLeft(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=1.0, until=time.monotonic())

        def show(progress: Progress) -> None:
            until = time.monotonic() + progress.seconds_left
            bar.update(task, description=progress.doing, completed=progress.fraction, until=until)

        yield show


def time_left(seconds: float) -> str:
    if seconds < 1:
        return "a moment more"
    minutes, rest = divmod(round(seconds), 60)
    return f"about {minutes}:{rest:02d} left"
