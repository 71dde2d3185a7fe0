"""Random programs, fused or not, their reductions cut or not: every loop as Triton against what it means."""

from __future__ import annotations

from random import Random

import pytest

from tests.codegen.triton.interpreter import Interpreter
from tests.codegen.triton.test_graphs import SideBySide, split_reductions
from tests.programs import capture, copies, schedules, sizes_of
from tests.property.random_programs import random_program


@pytest.mark.parametrize("seed", range(12))
def test_random_program(interpreter: Interpreter, seed: int) -> None:
    program = random_program(Random(seed))
    for entry in capture(program.function(), *copies(program.inputs), dynamic=seed % 3 == 0):
        apart, joined = schedules(entry.captured)
        schedule = apart if seed % 5 == 4 else joined
        if seed % 2:
            schedule = split_reductions(schedule, workers=64, least=64)
        both = SideBySide(interpreter, schedule, copies(entry.inputs), sizes_of(entry.captured, entry.inputs))
        both.run()
        assert both.compared > 0 or not both.unit.calls, program.text
