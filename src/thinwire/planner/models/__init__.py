"""The models that the planner knows, and how one is named.

gpt:24x2048x16        layers x hidden x heads, the trainer's own GPT; gpt: may be left out
llama-2-7b            a preset
path/to/model         a Hugging Face config.json, or the folder that holds one
1.3B                  a number of parameters: the GPT of usual proportions that is nearest
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError
from thinwire.planner.models.config import ModelConfig, read_config
from thinwire.planner.models.decoder import FAMILIES, decoder_workload
from thinwire.planner.models.encoder import bert_workload, vit_workload
from thinwire.planner.models.gpt import (
    gpt_workload,
    is_shape,
    nearest_shape,
    parse_shape,
    parse_size,
)
from thinwire.planner.models.gpt2 import gpt2_workload, neox_workload
from thinwire.planner.models.positions import DEFAULT_TOKENS, sequence_length
from thinwire.planner.models.t5 import t5_workload
from thinwire.planner.value_form import check_at_most
from thinwire.planner.workload import Workload
from thinwire.quantities import format_numbered
from thinwire.quoting import quoted

__all__ = ["config_workload", "parse_model", "preset_names"]

SEQUENCE_FAMILIES = {
    **dict.fromkeys(FAMILIES, decoder_workload),
    "gpt2": gpt2_workload,
    "gpt_neox": neox_workload,
    "bert": bert_workload,
    "t5": t5_workload,
}


def parse_model(text: str, *, tokens: int | None = None, fused: bool = True) -> Workload:
    """The workload that a text names.

    Args:
        text: one of the forms above. A preset's name wins over a folder of the same name.
        tokens: sequence length; ``None``: 2048, or as many as the model has positions where those
            are fewer. A ViT has its own, which its image size decides.
        fused: attention as one kernel (FlashAttention), or with its square of scores in memory.

    Raises:
        ConfigError: none of the forms, or sizes that cannot be; says what to write instead.
    """
    if tokens is not None:
        check_at_most("sequence length", tokens)
    length = DEFAULT_TOKENS if tokens is None else tokens
    text = text.strip()
    presets = _presets()
    text = presets["shapes"].get(text, text)
    if is_shape(text):
        return gpt_workload(parse_shape(text), tokens=length, fused=fused)
    if text in presets["configs"]:
        config = ModelConfig(name=text, values=presets["configs"][text])
        return config_workload(config, tokens=tokens, fused=fused)
    path = Path(text)
    # os.path, not Path: a text may be no path at all, empty or too long
    if os.path.exists(text) or path.suffix == ".json":
        return config_workload(read_config(path), tokens=tokens, fused=fused)
    num_parameters = parse_size(text)
    if num_parameters is None:
        raise ConfigError(
            f"model {quoted(text)}: not known; use gpt:LAYERSxHIDDENxHEADS, a preset "
            f"({', '.join(preset_names())}), a Hugging Face config.json or its folder, or a number "
            "of parameters such as 1.3B"
        )
    shape = nearest_shape(num_parameters, tokens=length)
    return dataclasses.replace(
        gpt_workload(shape, tokens=length, fused=fused),
        assumptions=(
            f"The shape {shape} is assumed: of GPTs of usual proportions the nearest to {text} "
            "parameters. Name a shape or a config.json for another.",
        ),
    )


def config_workload(
    config: ModelConfig, *, tokens: int | None = None, fused: bool = True
) -> Workload:
    """The workload of a Hugging Face config.

    Args:
        config: its content.
        tokens: sequence length, as :func:`parse_model` takes it.
        fused: attention as one kernel, or with its square of scores in memory.

    Raises:
        ConfigError: a family that is not known here, a size that is missing or cannot be, or a
            sequence longer than the model's positions.
    """
    if config.family == "vit":
        return vit_workload(config, tokens=tokens, fused=fused)
    if config.family not in SEQUENCE_FAMILIES:
        known = ", ".join((*SEQUENCE_FAMILIES, "vit"))
        raise ConfigError(
            f"{config.label}: model_type {quoted(config.family)} is not known; known are {known}; "
            "give the number of parameters instead, such as 1.3B"
        )
    length = sequence_length(config, tokens)
    workload = SEQUENCE_FAMILIES[config.family](config, tokens=length, fused=fused)
    if tokens is not None or length == DEFAULT_TOKENS:
        return workload
    return dataclasses.replace(
        workload,
        assumptions=(
            f"Sequences of {format_numbered(length, 'token')}, all positions that the model has.",
        ),
    )


def preset_names() -> tuple[str, ...]:
    """The names of all presets."""
    presets = _presets()
    return (*presets["shapes"], *presets["configs"])


def _presets() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "presets.toml").read_text(encoding="utf-8"))
