"""Writes the gradients of one rank as ``gradients-STEP.pt``, to be inspected.

python benchmarks/inspect/dump_gradients.py FOLDER --steps 0,100
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from thinwire.train.corpus import default_corpus
from thinwire.train.data import Batches
from thinwire.train.model_spec import parse_model
from thinwire.train.models import build_model, next_token_loss

SEQ_LEN, MICRO_BATCH = 128, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="gpt:4x256x4")
    parser.add_argument("--steps", default="0,100")
    options = parser.parse_args()
    steps = [int(step) for step in options.steps.split(",")]
    torch.manual_seed(0)
    model = build_model(parse_model(options.model, seq_len=SEQ_LEN), seq_len=SEQ_LEN)
    batches = Batches(
        default_corpus(), seq_len=SEQ_LEN, micro_batch=MICRO_BATCH, seed=0, rank=0, world=1
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(max(steps) + 1):
        loss = next_token_loss(model, batches.train(step))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        if step in steps:
            gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
            torch.save(gradients, options.folder / f"gradients-{step}.pt")
            print(f"step {step}: loss {loss.item():.3f}")
        optimizer.step()


if __name__ == "__main__":
    main()
