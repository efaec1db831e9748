"""Small models for tests, with the shapes at which sharding goes wrong."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """A block with a norm, a bias and two matrices."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return out


SHAPES = ((1, 1), (7, 1), (1, 2305), (2305, 1), (9, 8, 2, 1), (16, 40), (5, 33), (2,), (3,))


class Bag(nn.Module):
    """Parameters of awkward shapes, each of which the loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.params = nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in SHAPES)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = sum((p * (p + x)).sum() for p in self.params)
        return total


class SmallModel(nn.Module):
    """Tied embedding and head, two blocks; 65 rows and 37 hidden units divide by no world size."""

    def __init__(self, width: int = 24, hidden: int = 37, rows: int = 65) -> None:
        super().__init__()
        self.embed = nn.Embedding(rows, width)
        nn.init.normal_(self.embed.weight, std=0.1)  # a first loss near log(rows)
        self.blocks = nn.ModuleList(Residual(width, hidden) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, rows, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


def make_model(seed: int = 0) -> SmallModel:
    """The model with weights that depend on the seed only."""
    torch.manual_seed(seed)
    return SmallModel()


def token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Next-token cross entropy, in fp32."""
    logits = model(tokens[:, :-1]).float()
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def draw_tokens(step: int, rank: int, batch: int = 2, length: int = 9) -> Tensor:
    """Tokens that depend on step and rank only; each but the first follows from the one before."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    tokens = [torch.randint(0, 65, (batch,), generator=generator)]
    for _ in range(length - 1):
        tokens.append((3 * tokens[-1] + 1) % 65)
    return torch.stack(tokens, dim=1)


def train(model: nn.Module, rank: int, steps: int, lr: float = 1e-2) -> list[float]:
    """Losses of this rank over ``steps`` AdamW steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    for step in range(steps):
        loss = token_loss(model, draw_tokens(step, rank))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
