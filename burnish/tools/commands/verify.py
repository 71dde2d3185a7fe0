"""`burnish verify TARGET`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

DESCRIPTION = (
    "Compile TARGET and compare it with eager: outputs, changed state (buffers, caches, written inputs) and gradients. "
    "float64 is the referee: an error is judged beside eager's own. What is wrong is traced to the optimisation and "
    "the kernel that made it so, and a file that shows it is written. Status: 0 right, 1 wrong, 2 a wrong call."
)


def add_verify(commands: Any, target_help: str) -> None:
    parser = commands.add_parser(
        "verify", help="prove that a target computes what eager computes", description=DESCRIPTION
    )
    parser.add_argument("target", metavar="TARGET", help=target_help)
    parser.add_argument("--sets", metavar="NAMES", help="input sets (given,random,special,batch)")
    parser.add_argument("--no-gradients", action="store_true", help="outputs and state only")
    parser.add_argument("--dynamic", choices=("auto", "true", "false"), default="auto", help="as burnish.compile's")
    parser.add_argument("--mode", help="as burnish.compile's")
    parser.add_argument("--no-bisect", action="store_true", help="do not look for the cause")
    parser.add_argument("--repro", type=Path, metavar="FILE", help="where the repro goes (burnish-repro.py)")
    parser.add_argument("--full", action="store_true", help="a row for every tensor")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.set_defaults(run=run_verify)


def run_verify(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from burnish.tools.targets import load_target
    from burnish.tools.verify.inputs import SETS
    from burnish.tools.verify.render import report
    from burnish.tools.verify.session import VerifySettings, run_verification
    from burnish.tools.verify.subject import Phase

    target = load_target(arguments.target)
    phases: tuple[Phase, ...] = ("gradients",) if target.kind == "train" else ("inference", "gradients")
    plan = VerifySettings(
        phases=phases if not arguments.no_gradients else ("inference",),
        sets=[name.strip() for name in arguments.sets.split(",")] if arguments.sets else tuple(SETS),
        dynamic={"auto": None, "true": True, "false": False}[arguments.dynamic],
        mode=arguments.mode,
        bisect=not arguments.no_bisect,
        repro=arguments.repro,
    )
    console = Console(highlight=False, markup=False)
    console = console if console.is_terminal else Console(highlight=False, markup=False, width=150)  # a log file
    if arguments.json:
        result = run_verification(target.model, target.inputs, plan, target.name)
        print(result.to_json())
    else:
        with Console(stderr=True).status("compiling") as status:
            result = run_verification(target.model, target.inputs, plan, target.name, lambda text: status.update(text))
        console.print(report(result, arguments.full))
    return 0 if result.ok else 1
