"""The device of a rank, and the backend through which its kind talks."""

from __future__ import annotations

import os

import torch

from thinwire.errors import ConfigError

__all__ = ["BACKENDS", "rank_device"]

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def rank_device(name: str) -> torch.device:
    """The device of this rank; the launcher has said which rank it is on its host.

    Args:
        name: a key of ``BACKENDS``.

    Raises:
        ConfigError: this machine has fewer devices than ranks.
    """
    if name == "cpu":
        return torch.device("cpu")
    # under torchrun hosts are machines; those of the lab are all this one: a device for every rank
    of_machine = "TORCHELASTIC_RUN_ID" in os.environ
    index = int(os.environ["LOCAL_RANK" if of_machine else "RANK"])
    if index >= torch.cuda.device_count():
        raise ConfigError(
            f"device cuda: rank {index} needs device {index}, and this machine has "
            f"{torch.cuda.device_count()}; use --device cpu or fewer ranks"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
