"""The order kernels must keep: those that touch the same memory, at least one of them writing, run as they are listed.

Buffers have names of their own memory (inputs that share storage never reach a schedule: AOTAutograd makes one input of
them), so names decide. Fusion asks here which kernels must wait for which, and shows here that the list it made obeys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TypeVar

from burnish.errors import CompileError
from burnish.passes.rewrite import Fuel
from burnish.schedule.kernels import ContractKernel, ExternKernel, Kernel, LoopKernel

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
    """`order` lists, for each kernel that now runs, the kernels it was joined from, in the order it does their work."""
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
            if not any(meet(member, other) for member in members) and can_move(kernels, n, later, taken):
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
        made = [", ".join(sorted(k.writes)) for k in members]
        if len(members) > 1 and fuel.spend(f"{name}: {' + '.join(made)}"):
            kernels.append(launch(parts))
        else:
            kernels += members
    return kernels


def can_move(kernels: Sequence[Kernel], to: int, at: int, gone: Set[int]) -> bool:
    """Whether the kernel may run as early as `to`: nothing since makes what it reads or meets what it writes."""
    moved = kernels[at]
    for n in range(to, at):
        between = kernels[n]
        if n in gone:
            continue  # it has moved there itself, and its group was checked
        if meet(between, moved):
            return False
    return True


def meet(first: Kernel, second: Kernel) -> bool:
    """Whether one touches what the other writes."""
    return bool(first.writes & (second.reads | second.writes) or first.reads & second.writes)
