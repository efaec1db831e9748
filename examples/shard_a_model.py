"""Train a small language model with compressed traffic: what changes is one line.

torchrun --nproc-per-node 2 examples/shard_a_model.py zeropp
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn

import thinwire as tw

TEXT = (b"the quick brown fox jumps over the lazy dog. " * 200)[:8192]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        h = self.norm(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        out: Tensor = x + self.mlp(x)
        return out


class Model(nn.Module):
    def __init__(self, width: int = 64, num_blocks: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
        logits = self.head(x).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    recipe = tw.recipes.parse_recipe(sys.argv[1] if len(sys.argv) > 1 else "zeropp")
    model = tw.shard(Model(), recipe)  # instead of fully_shard or DistributedDataParallel
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(20):
        starts = torch.randint(0, len(text) - 65, (4,), generator=generator)
        loss = model(torch.stack([text[start : start + 65] for start in starts]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and step % 5 == 4:
            print(f"step {step + 1}: loss {loss.item():.3f}")
    report = tw.ledger(model)
    if dist.get_rank() == 0:
        print(
            f"sent {report['sent_bytes'] / 1e6:.2f} MB; in bf16 {report['bf16_bytes'] / 1e6:.2f} MB"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
