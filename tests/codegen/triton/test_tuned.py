"""Forms that only a search chooses: each is one that the interpreter finds right and Triton's compiler takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from burnish.codegen.triton.module import generate, launch_forms
from burnish.schedule.form import Form
from burnish.schedule.fuse import fuse
from burnish.schedule.gpu.backends import backend_forms, choose_backends
from burnish.schedule.kernels import AttendKernel, ContractGroup, ExternKernel, ResultBuffer, Schedule
from burnish.schedule.lower import lower_graph
from tests.codegen.triton.compiler import Compiler
from tests.codegen.triton.interpreter import Interpreter
from tests.codegen.triton.test_graphs import SideBySide
from tests.codegen.triton.test_products import attend, bf16, compare, on_cuda, product_of, schedule_of
from tests.programs import capture, copies, sizes_of


def apart(forms: list[Form], count: int = 4) -> list[Form]:
    """The last ones, which are most unlike the rule's, and one of each name."""
    named = {form.name: form for form in forms}
    return list(dict.fromkeys([*forms[-count:], *named.values()]))


LOOPS: dict[str, tuple[Any, ...]] = {
    "map": (lambda x: torch.tanh(x) * 2 + 1, (37, 100)),
    "tile": (lambda x, y: x.t() + y, (40, 70), (70, 40)),
    "row": (lambda x: torch.softmax(x, -1), (6, 2100)),
    "long": (lambda x: torch.softmax(x, -1).sum(-1), (3, 17000)),
    "columns": (lambda x: x.sum(0), (150, 70)),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops(interpreter: Interpreter, name: str) -> None:
    fn, *shapes = LOOPS[name]
    schedule, given, sizes = on_cuda(fn, *(torch.randn(shape) for shape in shapes))
    (kernel,) = schedule.kernels
    forms = launch_forms(kernel)
    assert 4 <= len(forms) <= 15
    assert {"row": "long", "tile": "map"}.get(name, forms[0].name) in {form.name for form in forms}
    for form in apart(forms, 2):
        schedule.forms = {0: form}
        both = SideBySide(interpreter, schedule, copies(given), sizes)
        (call,) = both.unit.calls.values()
        assert call.launch.warps == form["warps"]
        both.run()


def products() -> dict[str, Schedule]:
    group = ContractGroup(tuple(product_of(40, n, 96, name=str(k)) for k, n in enumerate((48, 32, 17))))
    return {
        "product": schedule_of(product_of(40, 72, 136)),
        "siblings": schedule_of(group),
        "attention": attend(1, 4, 2, 40, 40, 24, True, None),
    }


@pytest.mark.parametrize("name", ["product", "siblings", "attention"])
def test_products(interpreter: Interpreter, name: str) -> None:
    schedule = products()[name]
    forms = launch_forms(schedule.kernels[0])
    assert len(forms) >= 6
    for form in apart([f for f in forms if f.name != "persistent"], 2):
        schedule.forms = {0: form}
        compare(interpreter, schedule)


@pytest.mark.parametrize("who", ["library", "ours splits=1", "ours splits=3"])
def test_convolutions(interpreter: Interpreter, who: str) -> None:
    conv = lambda x, k: torch.relu(F.conv2d(x, k, padding=1) + 1)  # noqa: E731
    last = torch.channels_last
    x, k = (bf16(*s).to(memory_format=last) for s in ((1, 96, 6, 6), (32, 96, 3, 3)))
    (entry,) = capture(conv, x, k, device="cuda")
    schedule = fuse(lower_graph(entry.captured), only_products=True)
    assert Form.parse(who) in backend_forms(schedule, schedule.kernels[0])
    schedule = fuse(choose_backends(schedule, {0: Form.parse(who)}))
    assert isinstance(schedule.kernels[0], ExternKernel) == (who == "library")
    if who != "library":
        schedule.forms = {0: launch_forms(schedule.kernels[0])[-1]}
        SideBySide(interpreter, schedule, copies(entry.inputs), sizes_of(entry.captured, entry.inputs)).run()


def test_attention_by_the_library() -> None:
    """Which of its kernels there are depends on the device: that the call is made as it should be can be seen here."""
    schedule = attend(2, 4, 4, 32, 32, 64, True, None)
    (kernel,) = schedule.kernels
    assert isinstance(kernel, AttendKernel)
    schedule.results = [ResultBuffer(kernel.out)]
    forms = backend_forms(schedule, kernel)
    assert [form.name for form in forms] == ["ours", "flash", "cudnn", "efficient"]
    for form in forms[1:]:
        chosen = choose_backends(schedule.copy(), {0: form})
        (call,) = chosen.kernels
        assert isinstance(call, ExternKernel) and form.name in call.op.name
        assert chosen.buffers[call.outputs[0]].role == "extern"
        assert len(call.op.args) + len(call.op.kwargs) <= len(call.op.target._schema.arguments)
    shared = attend(1, 4, 2, 32, 32, 64, True, None)  # a key head for two query heads
    assert len(backend_forms(shared, shared.kernels[0])) == 1


@pytest.mark.parametrize("number", [0, 1])
def test_compiles(compiler: Compiler, number: int) -> None:
    schedule = products()["attention"] if number else schedule_of(product_of(512, 1024, 768))
    forms = launch_forms(schedule.kernels[0])
    assert number or any(form.name == "persistent" for form in forms)
    for form in apart(forms, 1):
        schedule.forms = {0: form}
        assert ".target sm_90" in compiler.compile(generate(schedule, overlapped=True), 0, 90)
