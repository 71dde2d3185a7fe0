"""A training loop with Accelerate: compile, then prepare."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import burnish


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
    x = torch.randn(64, 8)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    compiled = burnish.compile(model)
    prepared, optimiser, loader = accelerator.prepare(compiled, optimiser, loader)
    losses = []
    for _ in range(4):
        for inputs, targets in loader:
            with accelerator.accumulate(prepared):
                loss = torch.nn.functional.mse_loss(prepared(inputs), targets)
                accelerator.backward(loss)
                optimiser.step()
                optimiser.zero_grad()
            losses.append(loss.item())
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
    print(f"{dict(burnish.stats(compiled).graphs)} on {accelerator.device}")


if __name__ == "__main__":
    main()
