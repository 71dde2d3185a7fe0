"""An operation of your own inside a compiled model: registered with torch, it stays one call in the compiled graph."""

from __future__ import annotations

import torch

import burnish


@torch.library.custom_op("examples::moving_sum", mutates_args=())
def moving_sum(x: torch.Tensor, width: int) -> torch.Tensor:
    """The sum of the last `width` elements. Any code may stand here: C++, CUDA, NumPy."""
    total = x.cumsum(-1)
    earlier = torch.nn.functional.pad(total, (width, 0))[..., : x.shape[-1]]
    return total - earlier


@moving_sum.register_fake
def _(x: torch.Tensor, width: int) -> torch.Tensor:
    return torch.empty_like(x)  # the shape and type of the result: all that tracing needs


def backward(ctx, gradient):
    return moving_sum(gradient.flip(-1), ctx.width).flip(-1), None


def setup_context(ctx, inputs, output):
    ctx.width = inputs[1]


moving_sum.register_autograd(backward, setup_context=setup_context)


@burnish.compile(fullgraph=True)
def smoothed(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(moving_sum(x * 0.5, 4) / 4) + 1


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 32, requires_grad=True)
    y = smoothed(x)
    torch.testing.assert_close(y, smoothed.burnish.eager(x))
    y.sum().backward()
    stats = burnish.stats(smoothed)
    print(f"{dict(stats.graphs)}, {stats.kernels} kernels, {dict(stats.aten_calls)}, {len(stats.graph_breaks)} breaks")


if __name__ == "__main__":
    main()
