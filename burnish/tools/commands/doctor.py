"""The command `burnish doctor [TARGET]`: its arguments, and its exit status."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any


def add_doctor(commands: Any, target_help: str) -> None:
    """Add the command to the `burnish` parser."""
    parser = commands.add_parser(
        "doctor",
        help="say what tier this machine gets and what to install; with a target, go through the production checklist",
        description="Check torch, Triton, the C compiler, the processor, the GPU, the cache and the environment, in "
        "under 3 seconds: each line says what was found, what it means and what to do about it. With TARGET, compile "
        "it as well and measure every line of the production checklist. Exit status 1 if anything failed.",
    )
    parser.add_argument("target", nargs="?", metavar="TARGET", help=target_help)
    parser.add_argument("--calls", type=_count, default=30, help="calls that each checklist line makes (default 30)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_doctor)


def _count(text: str) -> int:
    if (count := int(text)) < 2:
        raise argparse.ArgumentTypeError("at least 2")
    return count


def run_doctor(arguments: argparse.Namespace) -> int:
    from burnish.tools.doctor.examine import examine, worst
    from burnish.tools.doctor.show import plain_console, print_checklist, print_examination

    found = examine()
    told, statuses = found.to_dict(), [found.status]
    console = plain_console()
    if not arguments.json:
        print_examination(console, found)
    if arguments.target is not None:
        from rich.console import Console

        from burnish.tools.doctor.checklist import checklist

        quiet = arguments.json or not sys.stderr.isatty()
        with Console(stderr=True, quiet=quiet).status("compiling …") as shown:
            lines = checklist(arguments.target, calls=arguments.calls, on_progress=shown.update)
        statuses += [line.verdict for line in lines if line.verdict != "not measured"]
        told |= {"target": arguments.target, "checklist": [line.to_dict() for line in lines]}
        if not arguments.json:
            print_checklist(console, arguments.target, lines)
    told["status"] = worst(statuses)
    if arguments.json:
        print(json.dumps(told, indent=2, ensure_ascii=False))
    return 1 if told["status"] == "fail" else 0
