"""A training loop with Lightning Fabric: compile, then set up."""

from __future__ import annotations

import torch
from lightning_fabric import Fabric

import burnish


def main() -> None:
    torch.manual_seed(0)
    fabric = Fabric(accelerator="cpu", devices=1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
    compiled = burnish.compile(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    wrapped, optimiser = fabric.setup(compiled, optimiser)
    x = torch.randn(64, 8)
    y = x.sum(1, keepdim=True)
    losses = []
    for _ in range(10):
        optimiser.zero_grad()
        loss = torch.nn.functional.mse_loss(wrapped(x), y)
        fabric.backward(loss)
        optimiser.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
    print(f"{dict(burnish.stats(compiled).graphs)}")


if __name__ == "__main__":
    main()
