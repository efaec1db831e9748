"""One rank of a rival: the same model, text, optimizer and learning rates as ``thinwire train``.

    python rival_rank.py powersgd --model gpt:6x512x8 --seq 64 --micro-batch 1 --steps 10

Started once per rank with torchrun's variables. Rank 0 prints one JSON object at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from thinwire.lab import read_interface
from thinwire.train.corpus import default_corpus
from thinwire.train.data import Batches
from thinwire.train.leaving import leave
from thinwire.train.loop import Schedule
from thinwire.train.model_spec import parse_model
from thinwire.train.models import build_model, next_token_loss

__all__ = ["RIVALS"]

POWERSGD_RANK = 4
ONE_BUCKET_MB = 1000


class Training:
    """A wrapped model and how it takes a step; rivals differ in ``backward`` and ``step``."""

    def __init__(self, model: nn.Module, schedule: Schedule) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=schedule.learning_rate, fused=True
        )

    def step(self, tokens: Tensor, learning_rate: float) -> None:
        """Forward, backward, optimizer."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        torch.autograd.backward(next_token_loss(self.model, tokens))
        self.optimizer.step()
        self.optimizer.zero_grad()


class DeepSpeedTraining(Training):
    """ZeRO-3 in bf16, as a user would configure it."""

    def __init__(self, model: nn.Module, schedule: Schedule, micro_batch: int) -> None:
        import deepspeed  # type: ignore[import-not-found]  # in an environment of its own

        optimizer = torch.optim.AdamW(model.parameters(), lr=schedule.learning_rate)
        self.model, self.optimizer, _, _ = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            config={
                "train_micro_batch_size_per_gpu": micro_batch,
                "bf16": {"enabled": True},
                "zero_optimization": {"stage": 3},
                "zero_allow_untested_optimizer": True,
            },
        )

    def step(self, tokens: Tensor, learning_rate: float) -> None:
        """DeepSpeed's engine runs backward and the optimizer."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        engine: Any = self.model
        engine.backward(next_token_loss(engine, tokens))
        engine.step()


class NoGather:
    """In FSDP2's place for all-gather: every slot gets this rank's own shard, nothing is sent."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Part of FSDP2's interface."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, **_: object
    ) -> None:
        """Fill the output, as a gather would."""
        output_tensor.view(group.size(), -1).copy_(input_tensor.clone())


class NoReduce(NoGather):
    """In FSDP2's place for reduce-scatter: this rank's own gradients, nothing is sent."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, **_: object
    ) -> None:
        """Fill the output, as a reduction would."""
        output_tensor.copy_(input_tensor.view(group.size(), -1)[group.rank()])


def compute_only(model: nn.Module, schedule: Schedule, micro_batch: int) -> Training:
    """FSDP2 with bf16 compute whose collectives send nothing: what a step takes without a wire."""
    del micro_batch
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    (blocks,) = (m for m in model.children() if isinstance(m, nn.ModuleList))
    for module in (*blocks, model):
        wrapped: Any = fully_shard(module, mp_policy=policy)
        assert isinstance(wrapped, FSDPModule)
        wrapped.set_custom_all_gather(NoGather())  # type: ignore[arg-type]
        wrapped.set_custom_reduce_scatter(NoReduce())  # type: ignore[arg-type]
    return Training(model, schedule)


def ddp_bf16(model: nn.Module, schedule: Schedule, micro_batch: int) -> Training:
    """DDP with PyTorch's hook that casts gradients to bf16."""
    del micro_batch
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return Training(wrapped, schedule)


def powersgd(model: nn.Module, schedule: Schedule, micro_batch: int) -> Training:
    """DDP with PyTorch's PowerSGD hook, compressing from the first step that it allows."""
    del micro_batch
    # in one bucket: with several it aborts over gloo
    wrapped = DistributedDataParallel(model, bucket_cap_mb=ONE_BUCKET_MB)
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=2
    )
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return Training(wrapped, schedule)


Rival = Callable[[nn.Module, Schedule, int], Training]
RIVALS: dict[str, Rival] = {
    "compute only": compute_only,
    "ddp_bf16": ddp_bf16,
    "powersgd": powersgd,
    "deepspeed": DeepSpeedTraining,
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Train, and tell rank 0's steps, the interface's bytes and the held-out loss."""
    schedule = Schedule(
        steps=options.steps, learning_rate=options.lr, warmup_steps=min(10, options.steps // 10)
    )
    batches = Batches(
        default_corpus(),
        seq_len=options.seq,
        micro_batch=options.micro_batch,
        seed=options.seed,
        rank=dist.get_rank(),
        world=dist.get_world_size(),
    )
    torch.manual_seed(options.seed)
    model = build_model(parse_model(options.model, seq_len=options.seq), seq_len=options.seq)
    training = RIVALS[options.rival](model, schedule, options.micro_batch)
    step_s: list[float] = []
    sent_bytes = 0
    for step in range(schedule.steps):
        if step == schedule.settling_steps:
            dist.barrier()
            sent_bytes = -_sent_bytes()
            step_s.clear()
        start_s = time.perf_counter()
        training.step(batches.train(step), schedule.rate_at(step))
        step_s.append(time.perf_counter() - start_s)
    dist.barrier()
    sent_bytes += _sent_bytes()
    return {
        "step_s": {
            "median": statistics.median(step_s),
            "min": min(step_s),
            "max": max(step_s),
        },
        "nic_bytes_per_rank": sent_bytes / len(step_s) / int(os.environ["LOCAL_WORLD_SIZE"]),
        "validation_loss": _held_out_loss(training.model, batches),
    }


def _held_out_loss(model: nn.Module, batches: Batches) -> float:
    model.eval()
    with torch.no_grad():
        losses = [next_token_loss(model, tokens).double() for tokens in batches.validation()]
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def _sent_bytes() -> int:
    name = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    return 0 if name == "lo" else read_interface(name).sent_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rival", choices=RIVALS)
    parser.add_argument("--model", required=True)
    parser.add_argument("--seq", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args()
    torch.set_num_threads(1)  # ranks share the processors
    dist.init_process_group("gloo")
    result = run(options)
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    leave(0)


if __name__ == "__main__":
    main()
