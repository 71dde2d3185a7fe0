"""A wrong graph as a standalone Python file."""

from __future__ import annotations

import math
import operator
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from burnish.lower.aten_calls import is_aten_call, spelling
from burnish.tools.verify.calls import Argument, Calls
from burnish.tools.verify.culprit import Culprit
from burnish.tools.verify.reduce import NotReducible, with_seeded_inputs
from burnish.tools.verify.replay import seeded

_HEAD = '''"""A graph that burnish compiles wrongly, written by `burnish verify` for {name}.

Stage: {stage}: {meaning}
Step:  {step}

    python {file}

compares it with eager and float64, and ends with status 1 while it is wrong, 0 once it is right.
{source}"""

import torch

from burnish.tools.verify.replay import check{imports}


def inputs():
    return {inputs}


def graph({parameters}):
{body}


if __name__ == "__main__":
    raise SystemExit(check(graph, inputs(), fuel={fuel}, culprit={culprit!r}))
'''


def write_repro(calls: Calls, culprit: Culprit, name: str, path: Path) -> Path:
    """Write the graph with inputs made by a seed where they show the fault, too, else saved beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with_seeds = with_seeded_inputs(calls, _seeded_like)
    if with_seeds is not None:
        inputs, imports = _seeded_text(with_seeds.arguments, calls.arguments), ", seeded"
    else:
        data = path.with_suffix(".pt")
        torch.save([a.detach().clone() if isinstance(a, torch.Tensor) else a for a in calls.arguments], data)
        inputs, imports = f'saved(Path(__file__).with_name("{data.name}"))', ", saved"
    text = _HEAD.format(
        name=name,
        stage=culprit.stage,
        meaning=culprit.meaning,
        step=culprit.step,
        file=path.name,
        source=_as_note(culprit.source),
        imports=imports,
        inputs=inputs,
        parameters=", ".join(n.name for n in calls.module.graph.nodes if n.op == "placeholder"),
        body=textwrap.indent("\n".join(_lines(calls.module)), "    "),
        fuel=culprit.fuel,
        culprit=culprit.step if culprit.step.startswith(f"{culprit.stage}: ") else f"{culprit.stage}: {culprit.step}",
    )
    text = (
        text.replace("import torch\n", "from pathlib import Path\n\nimport torch\n", 1) if "Path(" in inputs else text
    )
    path.write_text(text, encoding="utf-8")
    return path


def _as_note(source: str) -> str:
    if not source:
        return ""
    shown = source.replace("\\", "\\\\").replace('"""', "'''")
    return f"\nThe kernel:\n\n{textwrap.indent(shown, '    ')}\n"


# --- inputs -----------------------------------------------------------------------------------------------------


def _spread(tensor: torch.Tensor) -> tuple[float, float]:
    """(low, high) for `seeded`: floats get the spread they had, integers the range."""
    if tensor.numel() == 0:
        return 0, 1
    if tensor.is_floating_point():
        size = tensor[torch.isfinite(tensor)].double().abs()
        scale = float(size.square().mean().sqrt()) if size.numel() else 1.0
        return 0, float(f"{scale:.3g}") or 1.0
    if tensor.is_complex():
        return 0, 1
    return int(tensor.min()), int(tensor.max())


def _seeded_like(argument: Argument, seed: int) -> Argument:
    if not isinstance(argument, torch.Tensor):
        return argument
    low, high = _spread(argument)
    strides = None if argument.is_contiguous() else argument.stride()
    return seeded(
        seed, argument.shape, argument.dtype, strides=strides, low=low, high=high, device=str(argument.device)
    )


def _seeded_text(made: Sequence[Argument], like: Sequence[Argument]) -> str:
    lines = []
    for seed, (argument, original) in enumerate(zip(made, like, strict=True)):
        if not isinstance(argument, torch.Tensor):
            lines.append(repr(argument))
            continue
        low, high = _spread(original)
        parts = [str(seed), str(tuple(argument.shape)), str(argument.dtype)]
        parts += [] if argument.is_contiguous() else [f"strides={tuple(argument.stride())}"]
        parts += [f"low={low}"] if low else []
        parts += [f"high={high}"] if high != 1 else []
        parts += [f"device={str(argument.device)!r}"] if argument.device.type != "cpu" else []
        lines.append(f"seeded({', '.join(parts)})")
    return "[\n" + "".join(f"        {line},\n" for line in lines) + "    ]"


# --- calls ------------------------------------------------------------------------------------------------------


def _lines(module: fx.GraphModule) -> list[str]:
    lines = []
    for node in module.graph.nodes:
        if node.op == "call_function":
            lines.append(f"{node.name} = {_call(node)}")
        elif node.op == "output":
            results = node.args[0]
            assert isinstance(results, tuple | list)
            lines.append(f"return ({''.join(f'{r}, ' for r in results)})")
    return lines


def _call(node: fx.Node) -> str:
    args = [_value(a) for a in node.args]
    kwargs = [f"{k}={_value(v)}" for k, v in node.kwargs.items()]
    if node.target is operator.getitem:
        return f"{args[0]}[{args[1]}]"
    if not is_aten_call(node.target):
        raise NotReducible(str(node.target))
    return f"{spelling(node.target)}({', '.join([*args, *kwargs])})"


def _value(value: Any) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, list | tuple):
        inner = ", ".join(_value(v) for v in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    shown = str(value)
    if not re.fullmatch(r"torch\.[a-z_0-9]+", shown):  # types, layouts and memory formats print as their names
        raise NotReducible(shown)
    return shown
