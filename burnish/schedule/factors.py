"""What all elements of a row are multiplied by leaves the row's sum: sum(x * r * w) is r * sum(x * w).

With a normalisation in front of a product, r is known only after a pass over the row. Outside, the product's sum is in
the same pass: a reduction is a barrier for all threads of a program, and one less to wait for. A rounding between the
factors goes (the sum of what is not rounded is the more exact one), as it does when a value is not stored.
"""

from __future__ import annotations

from dataclasses import replace

from burnish.ir.body import Apply, BodyBuilder, Loop, Reduced, prune, remap
from burnish.schedule.kernels import Kernel, LoopGroup, LoopKernel, Schedule
from burnish.schedule.vector_loops import is_vector_product


def factor_sums(schedule: Schedule) -> Schedule:
    schedule.kernels = [_factored(k) for k in schedule.kernels]
    return schedule


def _factored(kernel: Kernel) -> Kernel:
    if isinstance(kernel, LoopGroup):
        return LoopGroup(tuple(LoopKernel(_in_loop(p.loop)) for p in kernel.parts))
    return LoopKernel(_in_loop(kernel.loop)) if isinstance(kernel, LoopKernel) else kernel


def _in_loop(loop: Loop) -> Loop:
    if not is_vector_product(loop):
        return loop
    level = loop.element_level()
    body, values = BodyBuilder(), dict[int, int]()
    for n, i in enumerate(loop.body):
        inner, outer = _factors(loop, level, i) if isinstance(i, Reduced) and i.kind == "sum" else ([], [])
        if not inner or not outer:
            values[n] = body.emit(remap(i, values, {}))
            continue
        assert isinstance(i, Reduced)
        total = body.emit(replace(i, arg=_product(body, [values[v] for v in inner], i)))
        values[n] = _product(body, [total, *(values[v] for v in outer)], i)
    return replace(loop, body=prune(body.instrs))


def _product(body: BodyBuilder, factors: list[int], of: Reduced) -> int:
    first, *others = factors
    for other in others:
        first = body.emit(Apply("mul", (first, other), of.dtype))
    return first


def _factors(loop: Loop, level: list[bool], total: Reduced) -> tuple[list[int], list[int]]:
    """The factors of a sum's elements: those that vary along the row, and those that do not."""
    inner: list[int] = []
    outer: list[int] = []
    stack = [total.arg]
    while stack:
        value = stack.pop()
        match loop.body[value]:
            case Apply("mul", args, dtype) if level[value] and dtype is total.dtype:
                stack.extend(reversed(args))
            case Apply("cast", (arg,), dtype) if level[value] and dtype.compute is total.dtype:
                made = loop.body[arg]
                if isinstance(made, Apply) and made.fn == "mul" and made.dtype is total.dtype:
                    stack.append(arg)
                else:
                    inner.append(value)
            case _:
                (inner if level[value] else outer).append(value)
    return inner, outer
