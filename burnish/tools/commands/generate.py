"""`burnish generate MODEL`."""

from __future__ import annotations

import argparse
from typing import Any

from burnish.errors import BadOptionValue

DESCRIPTION = (
    "Compile the decoding of a Hugging Face causal language model, generate from a prompt of random tokens (or the "
    "target's own), and say how fast: tokens a second, the time to the first token, milliseconds per token, and the "
    "bytes that a step reads against what this machine's memory can do."
)


def add_generate(commands: Any, target_help: str) -> None:
    parser = commands.add_parser(
        "generate", help="measure a language model's decoding: tokens a second, GB/s", description=DESCRIPTION
    )
    parser.add_argument("target", metavar="MODEL", help=f"{target_help}. Its model, or one inside it, must generate")
    parser.add_argument("--new", type=int, default=128, help="tokens to generate (default 128)")
    parser.add_argument("--prompt", type=int, help="tokens of prompt (default: the target's own, else 128)")
    parser.add_argument("--batch", type=int, help="sequences at a time (default 1)")
    parser.add_argument("--max-length", type=int, help="tokens that the cache holds (default: as many as needed)")
    parser.add_argument("--sample", action="store_true", help="draw tokens instead of taking the likeliest")
    parser.add_argument("--runs", type=int, default=3, help="measured generations, the fastest of which counts")
    parser.add_argument("--mode", help="as burnish.compile's")
    parser.add_argument("--device", help="move the model there first, e.g. cuda")
    parser.add_argument("--dtype", help="convert the model first, e.g. bfloat16")
    parser.add_argument("--bits", type=int, choices=(8, 4), help="put the weights into so many bits first")
    parser.add_argument("--no-eager", dest="eager", action="store_false", help="do not run the model's own generate")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run_generate)


def run_generate(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    for option in ("new", "prompt", "batch", "max_length", "runs"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise BadOptionValue(f"--{option.replace('_', '-')}", value, "a whole number of at least 1")
    import torch

    dtype = getattr(torch, arguments.dtype, None) if arguments.dtype else None
    if arguments.dtype and not isinstance(dtype, torch.dtype):
        raise BadOptionValue("--dtype", arguments.dtype, "a torch type such as bfloat16 or float16")
    from burnish.tools.decoding import DecodingSettings, measure
    from burnish.tools.targets import check_device, load_target, placed, running

    if arguments.device:
        check_device("--device", arguments.device)
    target = load_target(arguments.target)
    with running(arguments.target, "moving it"):
        target = placed(target, arguments.device, dtype)
    plan = DecodingSettings(
        arguments.new, arguments.prompt, arguments.batch, arguments.max_length, arguments.sample, arguments.mode,
        arguments.runs, arguments.eager, arguments.bits,
    )  # fmt: skip
    with Console(stderr=True).status("compiling") as status:
        with running(arguments.target, "generating"):
            report = measure(target, plan, lambda text: status.update(text))
    print(report.to_json() if arguments.json else report)
    return 0
