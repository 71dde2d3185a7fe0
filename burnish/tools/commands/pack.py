"""`burnish pack TARGET FILE`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

DESCRIPTION = (
    "Compile TARGET, call it on its inputs, and write what was compiled to FILE: programs, guards, machine code and "
    "the verdict of the gate, without weights. burnish.load(FILE, model) runs it in another process, without a C "
    "compiler and without tracing, where burnish, torch, Python and the processor's features are the same. Status: 0 "
    "written, 2 it cannot be packed."
)


def add_pack(commands: Any, target_help: str) -> None:
    parser = commands.add_parser(
        "pack", help="write a compiled target to one file, for machines without a compiler", description=DESCRIPTION
    )
    parser.add_argument("target", metavar="TARGET", help=target_help)
    parser.add_argument("file", metavar="FILE", type=Path, help="what to write, such as model.burnish")
    parser.add_argument("--calls", type=_count, default=3, help="calls before packing, for the gate (default 3)")
    parser.add_argument("--dynamic", choices=("auto", "true", "false"), default="auto", help="as burnish.compile's")
    parser.add_argument("--no-gate", action="store_true", help="pack programs that lose the race against eager, too")
    parser.add_argument("--sign", type=Path, metavar="KEYFILE", help="sign it with this ed25519 private key (PEM)")
    parser.add_argument(
        "--targets",
        default="native",
        metavar="LIST",
        help="processors that it is for, with commas between: native (this one, the default), x86-64-v2, x86-64-v3 "
        "(AVX2), x86-64-v4 (AVX-512)",
    )
    parser.set_defaults(run=run_pack)


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return count


def run_pack(arguments: argparse.Namespace) -> int:
    import torch

    import burnish
    from burnish.packs.factors import for_targets
    from burnish.tools.targets import load_target, running

    targets = [each.strip() for each in arguments.targets.split(",")]
    for_targets(targets)  # a mistake is said before anything is compiled
    target = load_target(arguments.target)
    dynamic = {"auto": None, "true": True, "false": False}[arguments.dynamic]
    compiled = burnish.compile(target.model, name=target.name, dynamic=dynamic, gate=not arguments.no_gate)
    with torch.no_grad(), running(target.name, "calling it"):
        step = target.step(compiled)
        for _ in range(arguments.calls):
            step()
    print(burnish.pack(compiled, arguments.file, sign=arguments.sign, targets=targets))
    return 0
