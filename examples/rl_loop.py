"""An RL loop with a tiny policy. Compiling may not help: the race decides, and a lost race costs next to nothing."""

from __future__ import annotations

import torch
from torch import nn

import burnish


class Corridor:
    """Walk to the right end of a corridor; each step costs a little."""

    length = 8

    def reset(self) -> torch.Tensor:
        self.place = 0
        return self._seen()

    def step(self, action: int) -> tuple[torch.Tensor, float, bool]:
        self.place = max(self.place + (1 if action else -1), 0)
        done = self.place == self.length
        return self._seen(), 1.0 if done else -0.05, done

    def _seen(self) -> torch.Tensor:
        return torch.tensor([self.place / self.length, 1.0])


def episode(policy: nn.Module, world: Corridor, limit: int = 40) -> tuple[list[torch.Tensor], list[float]]:
    seen, chosen, rewards, done = world.reset(), [], [], False
    while not done and len(rewards) < limit:
        choice = torch.distributions.Categorical(logits=policy(seen))
        action = choice.sample()
        chosen.append(choice.log_prob(action))
        seen, reward, done = world.step(int(action))
        rewards.append(reward)
    return chosen, rewards


def main() -> None:
    torch.manual_seed(0)
    policy = burnish.compile(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)))
    optimiser = torch.optim.Adam(policy.parameters(), lr=0.02)
    returns = []
    for _ in range(20):
        chosen, rewards = episode(policy, Corridor())
        returns.append(sum(rewards))
        loss = -returns[-1] * torch.stack(chosen).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"return {returns[0]:.2f} to {returns[-1]:.2f}")
    print(burnish.stats(policy).variants[0])  # who serves, and the times that decided it


if __name__ == "__main__":
    main()
