"""`burnish explain` for people."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from burnish.tools.explain.findings import Findings, GraphFacts, KernelFacts
from burnish.tools.explain.timings import stage_table
from burnish.tools.measure import duration

_KERNELS_SHOWN = 12
_REASONS_SHOWN = 8


def as_text(explanation: Findings, full: bool = False, timings: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=140, highlight=False, markup=False, color_system=None)
    console.print(report(explanation, full, timings))
    return out.getvalue().rstrip()


def report(e: Findings, full: bool = False, timings: bool = False) -> RenderableType:
    parts: list[RenderableType] = [_summary(e)]
    parts += _breaks(e) + _recompiles(e) + _aten_calls(e)
    for graph in e.graphs:
        parts += _graph(graph, e.ceiling, full)
    if timings:
        parts += [_title("Compile time by stage"), stage_table(e.stats.seconds, e.stats.timeline)]
    parts += [Text(f"  note          {note}") for note in e.notes]
    return Group(*parts)


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _summary(e: Findings) -> RenderableType:
    kinds = ", ".join(f"{count} {kind}" for kind, count in e.stats.graphs.items())
    inside = e.call_seconds - e.outside_seconds
    lines = [
        f"burnish explain: {e.name}",
        f"  compiles      {e.stats.compiles}" + (f" ({kinds})" if kinds else "") + f", {e.stats.kernels} kernels, "
        f"{_count(len(e.breaks), 'graph break')}, {_count(len(e.recompiles), 'recompile')}",
        f"  compile time  {e.stats.compile_seconds:.3f} s (first call {e.first_call_seconds:.3f} s)",
        f"  a call        {duration(e.call_seconds)}: {duration(inside)} in compiled graphs, "
        f"{duration(e.outside_seconds)} outside (guards, Python, eager)",
    ]
    if e.error is not None and e.eager_error is not None:
        lines.append(f"  error         {e.error:.1e} against float64 (eager's: {e.eager_error:.1e})")
    lines += [f"  blocks        {region}" for region in e.stats.regions]
    lines += [f"  fallback      {entry}" for entry in e.stats.fallbacks]
    return Text("\n".join(lines))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


# --- what the user's code costs ----------------------------------------------------------------------------------


def _breaks(e: Findings) -> list[RenderableType]:
    if not e.breaks:
        return []
    parts: list[RenderableType] = [_title(f"Graph breaks ({len(e.breaks)})")]
    for b in e.breaks:
        shared = f", with {b.shared_with} more" if b.shared_with else ""
        cost = "cost not seen" if b.seconds is None else f"{duration(b.seconds)} a call{shared}"
        parts += _entry(b.file, b.line, b.code, f"{b.kind}: {b.reason}", cost, b.advice)
    parts.append(
        Text("  Cost: median time between leaving one graph and entering the next, the line itself included.", "dim")
    )
    return parts


def _recompiles(e: Findings) -> list[RenderableType]:
    if not e.recompiles:
        return []
    parts: list[RenderableType] = [_title(f"Recompiles ({len(e.recompiles)})")]
    for r in e.recompiles:
        often = f", {r.count} times" if r.count > 1 else ""
        failed = r.check if "mismatch" in r.check or "changed" in r.check else f"{r.check} no longer holds"
        what = f"{r.kind}: {failed} ({r.when}{often})"
        parts += _entry(r.file, r.line, r.code, what, f"{r.seconds:.2f} s once", r.advice)
    parts.append(Text("  Cost: the call that compiled, less a call in steady state.", "dim"))
    return parts


def _entry(file: str, line: int, code: str, what: str, cost: str, advice: str) -> list[RenderableType]:
    return [
        Text(f"  {_shown(file)}:{line}  [{cost}]", style="yellow"),
        *([Text(f"      {code}", style="cyan")] if code else []),
        Text(f"    {what}"),
        Text(f"    → {advice}", style="green"),
    ]


def _shown(file: str) -> str:
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file


def _aten_calls(e: Findings) -> list[RenderableType]:
    if not e.aten_calls:
        return []
    table = _table(("calls", True), ("op", False), ("why it is left to ATen", False))
    for call in e.aten_calls:
        table.add_row(str(call.count), call.op, call.reason)
    return [_title(f"Calls left to ATen ({sum(c.count for c in e.aten_calls)})"), table]


# --- what the compiler did ---------------------------------------------------------------------------------------


def _graph(graph: GraphFacts, ceiling: float, full: bool) -> list[RenderableType]:
    saved = 1 - graph.fused_bytes / graph.eager_bytes if graph.eager_bytes else 0.0
    lines = [
        f"  fused         {graph.unfused_kernels} kernels became {len(graph.kernels)}",
        f"  time a call   {duration(graph.call_seconds)}, its kernels {duration(graph.seconds)}: the rest is the "
        "program around them, and threads that wait where the machine is busy",
        f"  bytes a call  {_bytes(graph.eager_bytes)} op by op in eager, {_bytes(graph.unfused_bytes)} before fusion, "
        f"{_bytes(graph.fused_bytes)} after ({saved:.0%} less than eager)",
    ]
    return [
        _title(f"Graph {graph.number} ({graph.kind})"),
        Text("\n".join(lines)),
        _kernel_table(graph, ceiling, full),
        *_refused(graph, full),
    ]


def _kernel_table(graph: GraphFacts, ceiling: float, full: bool) -> Table:
    table = _table(
        ("kernel", True), ("kind", False), ("computes", False), ("moves", True), ("time", True), ("share", True),
        ("GB/s", True), ("of ceiling", True), ("GFLOP/s", True),
    )  # fmt: skip
    total = graph.seconds
    order = sorted(graph.kernels, key=lambda k: -(k.seconds or 0.0))
    shown = order if full else order[:_KERNELS_SHOWN]
    for kernel in shown:
        table.add_row(*_kernel_row(kernel, total, ceiling, full))
    if len(shown) < len(order):
        left = order[len(shown) :]
        rest = sum(k.seconds or 0.0 for k in left)
        moved = _bytes(sum(k.bytes for k in left))
        table.add_row("", "", f"{len(left)} more (--full)", moved, duration(rest), _share(rest, total), "", "", "")
    table.add_section()
    speed = f"{graph.fused_bytes / total / 1e9:.1f}" if total else ""
    table.add_row("", "", "all", _bytes(graph.fused_bytes), duration(total), _share(total, total), speed, "", "")
    table.caption = f"ceiling: {ceiling / 1e9:.1f} GB/s, measured on this machine; more than that comes from caches"
    table.caption_justify = "left"
    return table


def _kernel_row(kernel: KernelFacts, total: float, ceiling: float, full: bool) -> tuple[str, ...]:
    speed = kernel.bandwidth
    of_ceiling = "" if speed is None else "cache" if speed > 1.1 * ceiling else f"{speed / ceiling:.0%}"
    flops = f"{kernel.flops / kernel.seconds / 1e9:.1f}" if kernel.flops and kernel.seconds else ""
    ops = ", ".join(kernel.ops if full or len(kernel.ops) <= 8 else (*kernel.ops[:8], f"… {len(kernel.ops) - 8} more"))
    time = "" if kernel.seconds is None else duration(kernel.seconds)
    share = _share(kernel.seconds or 0.0, total)
    rate = "" if speed is None else f"{speed / 1e9:.1f}"
    return str(kernel.number), kernel.kind, ops, _bytes(kernel.bytes), time, share, rate, of_ceiling, flops


def _share(seconds: float, total: float) -> str:
    return f"{seconds / total:.0%}" if total else ""


def _refused(graph: GraphFacts, full: bool) -> list[RenderableType]:
    if not graph.refused:
        return []
    lines = [f"  not fused     {len(graph.refused)} pairs that share data"]
    if full:
        lines += [f"    {r.first} and {r.second} ({', '.join(r.buffers)}): {r.reason}" for r in graph.refused]
    else:
        reasons = Counter(_general(r.reason) for r in graph.refused).most_common()
        lines += [f"    {count:>4}  {reason}" for reason, count in reasons[:_REASONS_SHOWN]]
        lines.append("          --full names each pair")
    return [Text("\n".join(lines))]


def _general(reason: str) -> str:
    """The reason without the buffer it is about, so that equal ones add up."""
    return re.sub(r"\b(b|in|out)\d+\b", "a buffer", reason)


def _table(*columns: tuple[str, bool]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title, is_number in columns:
        wraps = title in ("computes", "why it is left to ATen", "op")
        table.add_column(title, justify="right" if is_number else "left", no_wrap=not wraps, overflow="fold")
    return table


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
