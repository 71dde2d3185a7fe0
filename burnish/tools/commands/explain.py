"""`burnish explain TARGET`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

DESCRIPTION = (
    "Compile TARGET, call it, and say what was done: graph breaks and recompiles with their line, their measured cost "
    "and a rewrite; calls left to ATen and why; fusions made and refused; bytes moved before and after; every kernel's "
    "time and bandwidth against this machine's ceiling. With --dump, every stage's output is written as a file."
)


def add_explain(commands: Any, target_help: str) -> None:
    parser = commands.add_parser(
        "explain", help="compile a target and say what was done with it", description=DESCRIPTION
    )
    parser.add_argument("target", metavar="TARGET", help=target_help)
    parser.add_argument("--full", action="store_true", help="every kernel, and every pair that was not fused")
    parser.add_argument("--timings", action="store_true", help="the compile's stages, with bars")
    parser.add_argument("--dynamic", choices=("auto", "true", "false"), default="auto", help="as burnish.compile's")
    parser.add_argument("--mode", help="as burnish.compile's")
    parser.add_argument(
        "--regions",
        metavar="LIST",
        default="auto",
        help="as burnish.compile's: auto, none, or names of classes and modules with commas between",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--tuning",
        action="store_true",
        help="on a GPU: search as mode max-autotune does, and print which form each kernel takes, as "
        "burnish.compile(tuning=FILE) reads it",
    )
    parser.add_argument(
        "--dump",
        metavar="DIR",
        type=Path,
        help="write the graph after each pass, the schedule, the C source, the program and the stats to DIR",
    )
    parser.set_defaults(run=run_explain)


def run_explain(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from burnish.tools.explain.render import report
    from burnish.tools.explain.session import ExplainSettings, run_explanation
    from burnish.tools.targets import load_target

    if arguments.dump:
        arguments.dump.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    target = load_target(arguments.target)
    plan = ExplainSettings(
        dynamic={"auto": None, "true": True, "false": False}[arguments.dynamic],
        mode=arguments.mode or ("max-autotune" if arguments.tuning else None),
        dump=arguments.dump,
        other_sizes=arguments.dump is None and not arguments.tuning,  # files would replace those of the inputs given
        referee=not arguments.tuning,
        regions=arguments.regions if arguments.regions in ("auto", "none") else tuple(arguments.regions.split(",")),
    )
    if arguments.tuning:
        explanation = run_explanation(target, plan)
        print(explanation.stats.tuning_record)
    elif arguments.json:
        explanation = run_explanation(target, plan)
        print(explanation.to_json())
    else:
        with Console(stderr=True).status("compiling") as status:
            explanation = run_explanation(target, plan, lambda text: status.update(text))
        console = Console(highlight=False, markup=False)
        console = console if console.is_terminal else Console(highlight=False, markup=False, width=140)  # a log file
        console.print(report(explanation, arguments.full, arguments.timings), soft_wrap=not console.is_terminal)
        if not arguments.dump:
            console.print("\nMore: --full, --timings, --json, --tuning; --dump DIR writes every stage as a file.")
    if arguments.dump:
        (arguments.dump / "stats.txt").write_text(f"{explanation.stats}\n", encoding="utf-8")
        if not arguments.json and not arguments.tuning:
            _print_files(arguments.dump)
    return 0


def _print_files(folder: Path) -> None:
    print(f"Wrote to {folder}:")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        print(f"  {path.stat().st_size:>10,}  {path.relative_to(folder)}")
