"""Backend selection on a GPU: selects the backend of each product, convolution and attention, by a rule or by
measurement.

Each kind has a module with its rule: products.py, convolutions.py, attention_backends.py. The selection runs between
two rounds of fusion, because the loop after a library's call may then fuse with later loops. In `max-autotune` the rule
is only the first of the forms that are measured.
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
        """The choice without a measurement."""

    def forms(self) -> list[Form]:
        """The candidates, the rule's choice first."""

    def kernels(self, form: Form) -> list[Kernel]:
        """The kernels that replace the kernel; buffers for partial sums and library results are added to the
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
    """The candidate backends and numbers of splits, the rule's choice first. Empty if there is no choice."""
    chooser = backend(schedule, kernel)
    return chooser.forms() if chooser is not None else []


def choose_backends(schedule: Schedule, forms: Mapping[int, Form] | None = None) -> Schedule:
    """Replace every kernel that has a choice by its selected form: by the rule, or from `forms` by its number."""
    chosen: list[Kernel] = []
    schedule = schedule.copy()
    for n, kernel in enumerate(schedule.kernels):
        chooser = backend(schedule, kernel)
        form = (forms or {}).get(n)
        chosen += chooser.kernels(form or chooser.rule()) if chooser is not None else [kernel]
    return schedule.with_kernels(chosen)
