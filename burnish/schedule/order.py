"""The order kernels must keep: those that touch the same memory, at least one of them writing, run as they are listed.

Buffers have names of their own memory (inputs that share storage never reach a schedule: AOTAutograd makes one input of
them), so comparing names suffices. Passes ask this module which kernels may be reordered; the driver checks here that
each pass has kept the order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from burnish.errors import CompileError
from burnish.fuel import Fuel
from burnish.schedule.kernels import ContractKernel, ExternKernel, Kernel, LoopKernel, Schedule, made_by

Part = TypeVar("Part", LoopKernel, ContractKernel)

_FAR = 64  # kernels that are looked through for others to go beside one


def dependences(kernels: Sequence[Kernel]) -> list[set[int]]:
    """For each kernel, the earlier ones it must follow: they write what it reads or writes, or read what it writes."""
    readers: dict[str, set[int]] = defaultdict(set)
    writers: dict[str, set[int]] = defaultdict(set)
    found: list[set[int]] = []
    call: int | None = None
    for k, kernel in enumerate(kernels):
        earlier: set[int] = set()
        for name in kernel.reads:
            earlier |= writers[name]
        for name in kernel.writes:
            earlier |= writers[name] | readers[name]
        if isinstance(kernel, ExternKernel):  # ATen calls keep their order: they may draw random numbers
            earlier |= set() if call is None else {call}
            call = k
        for name in kernel.reads:
            readers[name].add(k)
        for name in kernel.writes:
            writers[name].add(k)
        found.append(earlier)
    return found


def require_kept(earlier: Sequence[set[int]], order: Sequence[Sequence[int]]) -> None:
    """`order` lists, for each new kernel, the kernels it was joined from, in the order of their work."""
    place: Mapping[int, tuple[int, int]] = {
        k: (at, within) for at, members in enumerate(order) for within, k in enumerate(members)
    }
    for k, needed in enumerate(earlier):
        for d in needed:
            if place[d] >= place[k]:
                raise CompileError("fuse", f"kernel {k} must follow kernel {d} and would not")


def side_by_side(kernels: Sequence[Kernel], kinds: Sequence[object], most: int | None = None) -> list[list[Kernel]]:
    """The kernels in order, each with those from further on that can go beside it in one launch: they are of its kind,
    they may be brought forward, and none touches what another one there writes. A kernel of the kind None stays alone.
    """
    groups: list[list[Kernel]] = []
    taken: set[int] = set()
    for n, kernel in enumerate(kernels):
        if n in taken:
            continue
        members = [kernel]
        for later in range(n + 1, min(n + 1 + _FAR, len(kernels))) if kinds[n] is not None else ():
            other = kernels[later]
            if kinds[later] != kinds[n] or later in taken or len(members) == most:
                continue
            between = (k for at, k in enumerate(kernels[n:later], n) if at not in taken)  # those have moved, too
            if can_pass(other, members) and can_pass(other, between):
                members.append(other)
                taken.add(later)
        groups.append(members)
    return groups


def launched_together(
    groups: Sequence[Sequence[Kernel]],
    kind: type[Part],
    launch: Callable[[tuple[Part, ...]], Kernel],
    name: str,
    fuel: Fuel | None = None,
) -> list[Kernel]:
    """Each group as one launch of parts, as long as there is fuel; then its kernels, one after the other."""
    fuel = fuel or Fuel()
    kernels: list[Kernel] = []
    for members in groups:
        parts = tuple(k for k in members if isinstance(k, kind))
        if len(members) > 1 and fuel.spend(f"{name}: {' + '.join(map(made_by, members))}"):
            kernels.append(launch(parts))
        else:
            kernels += members
    return kernels


def meet(first: Kernel, second: Kernel) -> bool:
    """Whether one accesses a buffer that the other writes."""
    return bool(first.writes & (second.reads | second.writes) or first.reads & second.writes)


def can_pass(moved: Kernel, others: Iterable[Kernel | None]) -> bool:
    """Whether a kernel may run after others instead of before them, or the other way round."""
    return not any(meet(moved, other) for other in others if other is not None)


def can_repeat(kernel: Kernel, others: Iterable[Kernel | None]) -> bool:
    """Whether what a kernel computes can be computed again after others: what it reads is still there."""
    return not any(other.writes & kernel.reads for other in others if other is not None)


# --- proof ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """The part of a schedule's order that a pass must keep."""

    seen: Mapping[str, frozenset[bool]]  # a written buffer -> for its readers: whether they run after a write to it
    calls: tuple[str, ...]  # the first result of each ATen call, in order

    def require(self, after: Order, name: str) -> None:
        """Raises unless a pass has kept the order: each read of a buffer stays before or after its write, and ATen
        calls, which may draw random numbers, keep their order."""
        for buffer, found in after.seen.items():
            if not found <= self.seen.get(buffer, found):
                when = "after" if True in found - self.seen[buffer] else "before"
                raise CompileError("fuse", f"{name}: {buffer} would be read {when} it is written")
        places = [self.calls.index(call) for call in after.calls if call in self.calls]
        if places != sorted(places):
            raise CompileError("fuse", f"{name}: ATen calls would be made in another order")


def order_of(schedule: Schedule) -> Order:
    written = {name for kernel in schedule.kernels for name in kernel.writes}
    seen: dict[str, set[bool]] = defaultdict(set)
    done: set[str] = set()
    for kernel in schedule.kernels:
        for name in kernel.reads & written:
            if name in done or name not in kernel.writes:  # a kernel's own order is its loop's (`Loop.hazard`)
                seen[name].add(name in done)
        done |= kernel.writes
    calls = tuple(k.outputs[0] for k in schedule.kernels if isinstance(k, ExternKernel) and k.outputs)
    return Order({name: frozenset(found) for name, found in seen.items()}, calls)
