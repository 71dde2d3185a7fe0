"""Generated C and the C runtime under the address and undefined-behaviour sanitizers, on values at every edge.

The programs are compiled as C, not loaded into Python: a small driver fills their tables from a file, each buffer in
memory of its own that ends where the tensor does, and runs them. A sanitizer that finds anything ends the process."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from burnish.codegen.c.compiled_unit import CUnit
from burnish.codegen.c.unit import generate
from burnish.ir.expr import evaluate
from burnish.runtime.build.shared_library import NATIVE_DIR
from burnish.schedule.kernels import ExternKernel, Schedule
from tests.lower.test_integers import BINARY, REDUCTIONS, TYPES, UNARY, edges, numbers, pairs, works
from tests.programs import capture, schedules, sizes_of

SANITIZERS = ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all", "-g"]
FLAGS = ["-O1", "-fno-math-errno", "-ffp-contract=off", "-std=gnu11", *SANITIZERS]
INDEX_OUT_OF_RANGE, ZERO_DIVISION, PLACE_OUT_OF_RANGE = 1, 2, 4
Function = Callable[..., object]


@dataclass
class Case:
    """A function, what it is captured with, and what it is run on, if that is something else."""

    fn: Function
    inputs: Sequence[torch.Tensor]
    evil: Sequence[torch.Tensor] | None = None
    dynamic: bool = False
    error: int = 0


def all_of(ops: dict[str, Function], *args: torch.Tensor) -> Case:
    kept = [op for op in ops.values() if works(op, *args)]
    return Case(lambda *args: [op(*args) for op in kept], args)


def integers(dtype: torch.dtype) -> list[Case]:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    rows = torch.randint(low, high, (9, 21), dtype=dtype)
    rows[1, :9], rows[3:, 5] = high, low
    few = tuple(x[:: max(1, len(x) // 999)].contiguous() for x in pairs(dtype))
    unary = {name: op for name, op in UNARY.items() if "power" not in name}
    return [all_of(BINARY, *few), all_of(unary, edges(dtype)), all_of(REDUCTIONS, rows)]


def divided() -> list[Case]:
    a, ones = torch.arange(60).view(6, 10) - 2**63, torch.ones(6, 10, dtype=torch.int64)
    evil = torch.tensor([0, -1, 1, 2, -(2**63)] * 12).view(6, 10)
    ops: list[Function] = [
        lambda a, b: (a // b, a % b, torch.fmod(a, b), torch.div(a, b, rounding_mode="trunc")),
        lambda a, b: (a // b).sum(-1),
        lambda a, b: (a % b).sum(0),
        lambda a, b: (a // b).cumsum(1),
    ]
    return [Case(op, (a, ones), (a, evil), error=ZERO_DIVISION) for op in ops]


def looked_up() -> list[Case]:
    table, places = torch.randn(7, 5), torch.tensor([0, 3, 6])
    evil = torch.tensor([-(2**63), 7, 2**62])
    ops: list[Function] = [
        lambda t, i: t[i] + 1,
        lambda t, i: F.embedding(i, t),
        lambda t, i: t[i].sum(0),
        lambda t, i: t[i].sum(-1),
        lambda t, i: t[i] @ t.T,
    ]
    along: list[Function] = [
        lambda t, i: t.index_add(0, i, t[:3]),
        lambda t, i: t.scatter_add(0, i[:, None].expand(3, 5), t[:3]),
        lambda t, i: t.gather(0, i[:, None].expand(3, 5)),
    ]
    return [
        *(Case(op, (table, places), (table, evil), error=INDEX_OUT_OF_RANGE) for op in ops),
        *(Case(op, (table, places), (table, evil), error=PLACE_OUT_OF_RANGE) for op in along),
    ]


EXTREME = torch.tensor(
    [0.0, -0.0, 1e-45, -1e-45, 1e-38, 1.0, -1.0, 88.7, -103.9, 1e10, -1e10, 3e38, -3e38, math.inf, -math.inf, math.nan]
)


def floats() -> list[Case]:
    x = EXTREME.repeat(5, 1)
    smooth = (
        "exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sigmoid erf sqrt rsqrt reciprocal floor round".split()
    )
    maps = {name: getattr(torch, name) for name in smooth}
    pairs = [x.flatten()[:, None].expand(80, 80).contiguous(), x.flatten().expand(80, 80).contiguous()]
    return [
        all_of(maps, x),
        all_of(maps, x.double()),
        all_of(maps, x.bfloat16()),
        all_of(maps, x.half()),
        Case(lambda a, b: [torch.pow(a, b), torch.fmod(a, b), a % b, a // b, torch.atan2(a, b), a / b], pairs),
        Case(lambda x: [x.softmax(-1), x.log_softmax(0), x.std(-1), x.var(0), x.logsumexp(-1), x.cumsum(0)], (x,)),
        Case(lambda x: F.layer_norm(x, (16,)) + F.gelu(x), (x.bfloat16(),)),
        *(Case(lambda x: [x.to(t) for t in TYPES], (numbers(have),)) for have in TYPES),
    ]


def products() -> list[Case]:
    def of(m: int, k: int, n: int, dtype: torch.dtype = torch.float32) -> Case:
        return Case(lambda a, b, c: F.relu(a @ b + c), [torch.randn(*s).to(dtype) for s in ((m, k), (k, n), (n,))])

    shapes = [(1, 70, 130), (65, 33, 67), (3, 257, 5), (128, 96, 200), (37, 1, 300)]
    strided = torch.randn(70, 90)[3:, 5:].T
    return [
        *(of(*shape) for shape in shapes),
        of(65, 33, 67, torch.float64),
        of(1, 40, 67, torch.bfloat16),
        of(1, 40, 67, torch.float16),
        Case(lambda a, b: a @ b, (strided, torch.randn(67, 44))),
        Case(torch.bmm, (torch.randn(3, 20, 30), torch.randn(3, 30, 50))),
        Case(lambda x, w: F.conv2d(x, w), (torch.randn(2, 3, 9, 9), torch.randn(4, 3, 1, 1))),
    ]


def attention() -> list[Case]:
    def of(queries: int, keys: int, dim: int, dtype: torch.dtype, **how: bool) -> Case:
        q, k, v = torch.randn(2, 4, queries, dim), torch.randn(2, 4, keys, dim), torch.randn(2, 4, keys, dim)
        with_mask = how.pop("masked", False)
        mask = (torch.rand(queries, keys) > 0.3,) if with_mask else ()
        return Case(
            lambda q, k, v, *m: F.scaled_dot_product_attention(q, k, v, *m, **how),
            (*(x.to(dtype) for x in (q, k, v)), *mask),
        )

    return [
        of(1, 77, 64, torch.float32),
        of(33, 33, 40, torch.float32, is_causal=True),
        of(17, 50, 24, torch.float32),
        of(17, 50, 16, torch.float32, masked=True),
    ]


def nothing() -> list[Case]:
    none = torch.zeros(0, 5)
    return [
        Case(lambda x: (x + 1, x.sum(0), x.sum(), x.T.contiguous()), (none,)),
        Case(lambda x, i: x[i], (torch.randn(4, 5), torch.zeros(0, dtype=torch.int64))),
        Case(lambda x: torch.cat([x, x[:0]]).cumsum(0), (torch.randn(3, 5),)),
        Case(lambda x: x.softmax(-1) * 2, (torch.randn(4, 5),), (none,), dynamic=True),
    ]


PROGRAMS: dict[str, Callable[[], list[Case]]] = {
    **{name: lambda name=name: integers(getattr(torch, name)) for name in ("int8", "int32", "int64")},  # type: ignore[misc]
    "divided": divided,
    "looked up": looked_up,
    "floats": floats,
    "products": products,
    "attention": attention,
    "nothing": nothing,
}

DRIVER = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef void (*entry)(int64_t *);
%(declared)s
static const entry programs[][8] = {%(entries)s};

static int64_t number(FILE *file)
{
    int64_t value;
    if (fread(&value, sizeof value, 1, file) != 1) exit(3);
    return value;
}

int main(int count, char **arguments)
{
    FILE *file = fopen(arguments[count - 1], "rb");
    for (size_t p = 0; p < sizeof programs / sizeof *programs; p++) {
        const int64_t slots = number(file);
        int64_t *table = calloc(slots, sizeof *table);
        void **held = calloc(slots, sizeof *held);
        for (int64_t slot = 0; slot < slots; slot++) {
            const int64_t bytes = number(file);
            if (bytes < 0) {
                table[slot] = number(file);
            } else if (bytes > 0) { /* what has no elements has no address, either */
                if (posix_memalign(&held[slot], 64, bytes)) exit(4);
                if (fread(held[slot], 1, bytes, file) != (size_t)bytes) exit(5);
                table[slot] = (int64_t)held[slot];
            }
        }
        for (int k = 0; k < 8 && programs[p][k]; k++) programs[p][k](table);
        printf("%%d ", (int)table[0]);
        for (int64_t slot = 0; slot < slots; slot++) free(held[slot]);
        free(held);
        free(table);
    }
    return 0;
}
"""


def toolchain(name: str, folder: Path) -> list[str]:
    """The command that compiles with sanitizers, threads too where there are any."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}")
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }")
    for machine, threads in itertools.product(("-march=native", "-mcpu=native"), ("-fopenmp", "-Wno-unknown-pragmas")):
        command = [found, *FLAGS, machine, threads]
        built = subprocess.run([*command, str(probe), "-o", str(folder / "probe")], capture_output=True)
        if built.returncode == 0 and subprocess.run([str(folder / "probe")], capture_output=True).returncode == 0:
            return command
    pytest.skip(f"{name} has no sanitizers here")


@pytest.fixture(scope="module", params=["gcc", "clang"])
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """A compiler's command, and the C runtime as it compiles it."""
    folder = tmp_path_factory.mktemp(request.param)
    command = toolchain(request.param, folder)
    sources = sorted(NATIVE_DIR.glob("*.c"))
    objects = [str(folder / f"{source.stem}.o") for source in sources]
    for pair in range(0, len(sources), 2):
        at_work = [
            subprocess.Popen([*command, f"-I{NATIVE_DIR}", "-c", str(source), "-o", target])
            for source, target in list(zip(sources, objects, strict=True))[pair : pair + 2]
        ]
        assert [process.wait() for process in at_work] == [0] * len(at_work)
    return command, objects


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_step_is_defined(name: str, runtime: tuple[list[str], list[str]], tmp_path: Path) -> None:
    command, library = runtime
    cases = PROGRAMS[name]()
    objects, entries, declared, content = [], [], [], b""
    for number, case in enumerate(cases):
        unit, filled = prepared(case)
        source = tmp_path / f"program{number}.c"
        source.write_text(unit.text)
        names = [f"p{number}_run_{k}" for k in range(len(unit.segments))]
        renamed = [f"-Dbn_run_{k}={n}" for k, n in enumerate(names)]
        target = tmp_path / f"program{number}.o"
        subprocess.run([*command, *renamed, f"-I{NATIVE_DIR}", "-c", str(source), "-o", str(target)], check=True)
        objects.append(str(target))
        declared += [f"void {n}(int64_t *);" for n in names]
        entries.append("{" + (", ".join(names) or "0") + "}")
        content += filled
    driver, tables = tmp_path / "driver.c", tmp_path / "tables"
    driver.write_text(DRIVER % {"declared": "\n".join(declared), "entries": ", ".join(entries)})
    tables.write_bytes(content)
    program = tmp_path / "program"
    subprocess.run([*command, str(driver), *objects, *library, "-lm", "-o", str(program)], check=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([str(program), str(tables)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[:4000]
    assert done.stdout.split() == [str(case.error) for case in cases]


def prepared(case: Case) -> tuple[CUnit, bytes]:
    """A case's C, and what its table holds."""
    (got,) = capture(case.fn, *case.inputs, dynamic=case.dynamic)
    schedule = schedules(got.captured)[1]
    assert not any(isinstance(kernel, ExternKernel) for kernel in schedule.kernels), got.captured.externs
    unit = generate(schedule)
    inputs = list(got.inputs)
    if case.evil is not None:
        evil = iter(case.evil)
        inputs = [next(evil) if isinstance(x, torch.Tensor) else x for x in inputs]
    sizes = sizes_of(got.captured, inputs)
    return unit, table(unit, schedule, inputs, sizes)


def table(unit: CUnit, schedule: Schedule, inputs: list[object], sizes: dict[str, int]) -> bytes:
    """Each slot: the size of a buffer and what is in it, or -1 and a number."""
    filled = {slot: struct.pack("qq", -1, 0) for slot in unit.slots.values()}
    for name, slot in unit.slots.items():
        if name in sizes:
            filled[slot] = struct.pack("qq", -1, sizes[name])
        elif name in schedule.buffers:
            buffer = schedule.buffers[name]
            assert buffer.dtype is not None
            held = inputs[buffer.position] if buffer.role == "input" else schedule.constants.get(name)
            size = evaluate(buffer.extent, sizes) * buffer.dtype.itemsize
            memory = bytes_of(held) if isinstance(held, torch.Tensor) else b"\xaa" * size
            filled[slot] = struct.pack("q", len(memory)) + memory
    return struct.pack("q", len(filled)) + b"".join(filled[slot] for slot in sorted(filled))


def bytes_of(x: torch.Tensor) -> bytes:
    if not x.numel():
        return b""
    extent = 1 + sum((d - 1) * s for d, s in zip(x.shape, x.stride(), strict=True))
    flat = x.detach().as_strided((extent,), (1,), x.storage_offset()).clone()
    return bytes(flat.view(torch.uint8).numpy())
