"""Who convolves, measured: each convolution of ResNet-50 with its norm, residual and activation, alone.

    PYTHONPATH=. python3 -m benchmarks.convolutions [--batch 1] [--only 3x3] [--tiles]

For each distinct convolution: the library followed by our loop, our kernel as the rule would run it, and with --tiles
our kernel with other tiles and cuts. Times are microseconds of a convolution in a captured chain of them, each with
weights of its own. The rules in burnish/schedule/gpu/convolutions.py and burnish/codegen/triton/convolve.py come from
here.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F

from burnish.codegen.triton import convolve as triton_convolve
from burnish.codegen.triton.tile import Tile
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.cuda.program import generate_cuda, load_cuda_program, overlaps
from burnish.runtime.program import build_program
from burnish.schedule.fuse import fuse
from burnish.schedule.gpu import convolutions
from burnish.schedule.gpu.backends import choose_backends
from burnish.schedule.gpu.split_reductions import split_reductions
from burnish.schedule.kernels import ConvolveKernel
from burnish.schedule.lower import lower_graph
from burnish.tools.workloads.resnet import ResNet
from tests.programs import capture

CHAIN = 12  # convolutions in one graph
ROUNDS = 15
SHAPES = [(64, 16, 4), (64, 32, 4), (64, 64, 4), (128, 64, 4), (128, 128, 4), (128, 128, 8), (128, 256, 8)]
TILES = [Tile(*shape[:2], *steps, shape[2]) for shape, steps in itertools.product(SHAPES, [(64, 4), (128, 3)])]
Run = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Layer:
    channels: int
    outputs: int
    taps: int
    stride: int
    size: int

    def __str__(self) -> str:
        return f"{self.taps}x{self.taps}/{self.stride} {self.channels}->{self.outputs} at {self.size}"

    def inputs(self, batch: int) -> list[torch.Tensor]:
        def half(*shape: int) -> torch.Tensor:
            t = (torch.randn(*shape) * 0.1).to("cuda", torch.bfloat16)
            return t.to(memory_format=torch.channels_last) if t.dim() == 4 else t

        o, after = self.outputs, -(-self.size // self.stride)
        x = half(batch, self.channels, self.size, self.size)
        k = half(o, self.channels, self.taps, self.taps)
        return [x, k, half(batch, o, after, after), half(o), half(o).abs() + 0.5, half(o), half(o)]

    def __call__(
        self, x: torch.Tensor, k: torch.Tensor, residual: torch.Tensor, mean: torch.Tensor, var: torch.Tensor,
        weight: torch.Tensor, bias: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        y = F.batch_norm(F.conv2d(x, k, None, self.stride, self.taps // 2), mean, var, weight, bias)
        return torch.relu(y + residual if self.taps == 1 and self.outputs > self.channels else y)


def layers() -> Iterator[Layer]:
    """Each convolution of the network, once."""
    found: dict[Layer, None] = {}
    with torch.device("meta"):
        model = ResNet((3, 4, 6, 3), width=64, classes=1000).eval()
        for m in model.modules():
            if isinstance(m, torch.nn.Conv2d):
                m.register_forward_hook(
                    lambda m, x, _: found.setdefault(
                        Layer(m.in_channels, m.out_channels, m.kernel_size[0], m.stride[0], x[0].shape[-1])
                    )
                )
        model(torch.empty(1, 3, 224, 224))
    return iter(found)


class Variant(NamedTuple):
    """What is not as the rule has it."""

    tile: Tile | None = None
    splits: int | None = None
    persistent: bool | None = None


def build(layer: Layer, batch: int, ours: bool, variant: Variant) -> Run:
    with torch.no_grad():
        entry, *_ = capture(layer, *layer.inputs(batch))
    schedule = fuse(lower_graph(entry.captured), only_products=True)
    rules = triton_convolve.tile_of, convolutions.splits_of, convolutions.is_persistent
    chosen = [r if v is None else (lambda kernel, gpu, v=v: v) for r, v in zip(rules, variant, strict=True)]
    with (
        patch.object(convolutions, "is_ours", lambda kernel, gpu: ours and convolutions.is_readable(kernel)),
        patch.object(triton_convolve, "tile_of", chosen[0]),
        patch.object(convolutions, "splits_of", chosen[1]),
        patch.object(triton_convolve, "is_persistent", chosen[2]),
    ):
        schedule = split_reductions(fuse(choose_backends(schedule)))
        if ours and not any(isinstance(k, ConvolveKernel) for k in schedule.kernels):
            raise ValueError("not in a layout our kernel reads")
        unit = generate_cuda(schedule, overlaps(entry.captured.device))
    program = build_program(schedule, unit, entry.captured.symbols.sources, len(entry.inputs), entry.captured.device)
    return load_cuda_program(program, Options(), CompileLog())


def microseconds(run: Run, sets: list[list[torch.Tensor]]) -> float:
    for _ in range(3):
        run(list(sets[0]))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for inputs in sets:
            run(list(inputs))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(ROUNDS):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(sets))
    return statistics.median(times)


def measure(layer: Layer, batch: int, tiles: bool) -> None:
    sets = [layer.inputs(batch) for _ in range(CHAIN)]
    with torch.no_grad():
        want = layer(*(t.double() for t in sets[0]))
    results: list[tuple[float, str]] = []

    def attempt(
        name: str, ours: bool, tile: Tile | None = None, splits: int | None = None, persistent: bool | None = None
    ) -> None:
        try:
            run = build(layer, batch, ours, Variant(tile, splits, persistent))
            (got,) = run(list(sets[0]))
            wrong = (got.double() - want).abs().max().item() > 0.1
            results.append((microseconds(run, sets), f"{name}{' WRONG' if wrong else ''}"))
        except Exception as error:  # a tile that does not fit, a layout that is not ours
            results.append((float("inf"), f"{name}: {type(error).__name__} {str(error)[:60]}"))

    attempt("library", False)
    attempt("ours", True)
    if layer.taps == layer.stride == 1 and layer.outputs % 128 == 0:
        attempt("persistent", True, splits=1, persistent=True)
        attempt("not persistent", True, persistent=False)
    print(f"{layer!s:28s} " + "   ".join(f"{name} {time:.1f}" for time, name in results), flush=True)
    if tiles:
        whole = layer.channels * layer.taps**2
        for tile in TILES:
            if layer.channels % tile.depth == 0 and tile.columns <= max(layer.outputs, 16):
                for splits in (1, 2, 4, 8):
                    if splits == 1 or (whole % (splits * tile.depth) == 0 and whole // splits >= 256 and batch < 8):
                        attempt(f"{tuple(tile)} in {splits}", True, tile, splits, persistent=False)
        best = sorted(r for r in results if r[0] != float("inf"))[:5]
        print("    " + "   ".join(f"{name}: {time:.1f}" for time, name in best), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--only", default="", help="layers whose name contains this")
    parser.add_argument("--tiles", action="store_true", help="try other tiles and cuts, too")
    options = parser.parse_args()
    for layer in layers():
        if options.only in str(layer):
            measure(layer, options.batch, options.tiles)


if __name__ == "__main__":
    main()
