"""Backend selection on a GPU: who computes each product, convolution and attention, by a rule or as it was measured.

Each kind has a module with its rule: products.py, convolutions.py, attention_backends.py. The decision falls between
two rounds of fusion, for what a library's call is followed by is free to fuse with whatever comes next. In
`max-autotune` the rule is only the first of the forms that are measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from burnish.schedule.form import Form
from burnish.schedule.gpu.attention_backends import AttentionBackend
from burnish.schedule.gpu.convolutions import ConvolutionBackend
from burnish.schedule.gpu.products import ProductBackend
from burnish.schedule.kernels import AttendKernel, ContractKernel, ConvolveKernel, Kernel, Schedule


class Backend(Protocol):
    """The choice for one kernel of a schedule."""

    def rule(self) -> Form:
        """The choice where nothing was measured."""

    def forms(self) -> list[Form]:
        """What could be chosen: the rule's choice first."""

    def kernels(self, form: Form) -> list[Kernel]:
        """What then runs instead of the kernel; buffers for partial sums and library results are added to the
        schedule."""


def backend(schedule: Schedule, kernel: Kernel) -> Backend | None:
    match kernel:
        case ContractKernel():
            return ProductBackend(schedule, kernel)
        case ConvolveKernel():
            return ConvolutionBackend(schedule, kernel)
        case AttendKernel():
            return AttentionBackend(schedule, kernel)
    return None


def backend_forms(schedule: Schedule, kernel: Kernel) -> list[Form]:
    """Who could compute it, and in how many pieces: the rule's choice first. Nothing, where there is no choice."""
    chooser = backend(schedule, kernel)
    return chooser.forms() if chooser is not None else []


def choose_backends(schedule: Schedule, forms: Mapping[int, Form] | None = None) -> Schedule:
    """Every kernel that has a choice becomes what will run it: by the rule or, by its number, in one of `forms`."""
    chosen: list[Kernel] = []
    schedule = schedule.copy()
    for n, kernel in enumerate(schedule.kernels):
        chooser = backend(schedule, kernel)
        form = (forms or {}).get(n)
        chosen += chooser.kernels(form or chooser.rule()) if chooser is not None else [kernel]
    return schedule.with_kernels(chosen)
