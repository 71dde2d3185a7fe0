"""A captured graph's launch through the driver, with the copies around it: one native call for them all.

A replay through torch costs a Python method, a device guard and a dispatcher call for each copy. Here the C extension
(`burnish.runtime.host.extension`) keeps the addresses of the graph's memory and reads only those of a call's tensors.

Several copies are one kernel launch, if the driver accepts the kernel and a test shows that it copies.

Results that are copied out need fresh memory, and an allocation takes as long as a small graph runs. So small results
are allocated ahead, after the launch, while the device is busy.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from burnish.runtime.cuda.launch import DRIVER_LIBRARY
from burnish.runtime.host.extension import Host

_FEW = 6  # copies of one kind; more are faster as torch's multi-tensor copy
_SMALL = 1 << 20  # bytes of results for which memory is kept ready
_GAPS = 2  # times its elements that a tensor may extend over, to be copied as it lies

Template = tuple[Sequence[int], Sequence[int], torch.dtype, torch.device]  # sizes, strides, and so on
Copies = Mapping[int, torch.Tensor]  # position among the arguments -> the graph's own memory


class Results:
    """Memory for a call's results, allocated ahead for the next call if small. Not thread-safe."""

    def __init__(self, templates: Sequence[Template], host: Host) -> None:
        self._templates = list(templates)
        self.are_small = sum(_bytes(each) for each in templates) <= _SMALL
        self._ready: tuple[int, bool, Sequence[torch.Tensor]] | None = None
        self._make: Callable[[], Sequence[torch.Tensor] | None] = lambda: None
        if self.are_small:
            with contextlib.suppress(ImportError):  # where C cannot make tensors
                self._make = host.Fresh(self._fresh())

    def results(self, stream: int) -> Sequence[torch.Tensor]:
        """Memory for the results on this, the current stream. An allocator's memory belongs to a stream, and a tensor
        to the inference mode it was made in."""
        ready, self._ready = self._ready, None
        if ready is not None and ready[0] == stream and ready[1] == torch.is_inference_mode_enabled():
            return ready[2]
        return self._fresh()

    def prepare(self, stream: int) -> None:
        """Have results ready for a next call like this one."""
        if self.are_small:
            try:
                self._ready = stream, torch.is_inference_mode_enabled(), self._fresh()
            except torch.OutOfMemoryError:  # this call has its results: let the next one see for itself
                self._ready = None

    def _fresh(self) -> Sequence[torch.Tensor]:
        made = self._make()
        if made is not None:
            return made
        return [torch.empty_strided(size, stride, dtype=t, device=d) for size, stride, t, d in self._templates]


class DriverLaunch(Results):
    """`run` is the graph with its copies; `results` are fresh ones for it."""

    def __init__(self, native: Any, templates: Sequence[torch.Tensor], host: Host) -> None:
        super().__init__([(x.shape, x.stride(), x.dtype, x.device) for x in templates], host)
        self.native = native
        self.run: Callable[[list[Any], Sequence[torch.Tensor], int], bool] = native.run


def driver_launch(
    host: Host, graph: Any, into: Copies, back: Copies, out: Sequence[torch.Tensor], device: torch.device
) -> DriverLaunch | None:
    """Into the graph's memory before it runs, back to arguments and out to results after it. None where torch's own
    copies serve better. The device must be current."""
    if max(map(len, (into, back, out))) > _FEW or not all(map(_may_be_copied_over, back.values())):
        return None
    if not all(extent(x) <= _GAPS * x.numel() for x in (*into.values(), *out)):
        return None
    copies = (_listed(into), _listed(back), _listed(dict(enumerate(out))))
    kernel = copy_kernel(host, device)
    return DriverLaunch(host.Launch(DRIVER_LIBRARY, graph.raw_cuda_graph_exec(), *copies, kernel), out, host)


_kernels: dict[tuple[str, torch.device], int] = {}  # by driver and device; 0 for none


def copy_kernel(host: Host, device: torch.device) -> int:
    """The driver's handle of the kernel that makes all copies; 0 where there is none that does it right."""
    key = DRIVER_LIBRARY, device
    if key not in _kernels:
        try:
            kernel = int(host.load_copies(DRIVER_LIBRARY))
            _kernels[key] = kernel if _copies(host, kernel, device) else 0
        except RuntimeError:  # a driver without a compiler for PTX: it makes the copies one by one
            _kernels[key] = 0
    return _kernels[key]


def _copies(host: Host, kernel: int, device: torch.device) -> bool:
    """Whether it copies correctly: lengths divisible by 16 and others, adjacent, without writing beyond them."""
    lengths = (16 * 4096, 4099, 7)
    sources = [torch.arange(n, device=device).to(torch.uint8) for n in lengths]
    targets = [torch.zeros(n + 16, dtype=torch.uint8, device=device) for n in lengths]
    given = [target[:n] for target, n in zip(targets, lengths, strict=True)]
    launch = host.Launch(DRIVER_LIBRARY, 0, [], [], _listed(dict(enumerate(sources))), kernel)
    launch.run([], given, torch.cuda.current_stream(device).cuda_stream)
    return all(torch.equal(a, b) for a, b in zip(given, sources, strict=True)) and not any(
        target[n:].any() for target, n in zip(targets, lengths, strict=True)
    )


def _listed(copies: Copies) -> list[tuple[int, torch.Tensor, int]]:
    return [(k, x, extent(x) * x.element_size()) for k, x in copies.items()]


def _bytes(template: Template) -> int:
    size, _, dtype, _ = template
    return math.prod(size) * dtype.itemsize


def extent(x: torch.Tensor) -> int:
    """Elements from the first to the last, those between that are not x's included."""
    return 1 + sum((d - 1) * s for d, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0


def _may_be_copied_over(x: torch.Tensor) -> bool:
    """Whether the tensor has no gaps, which may hold other tensors' values."""
    step = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if stride != step:
                return False
            step *= size
    return True
