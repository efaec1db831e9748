"""What ``--model`` says: a GPT of a given shape, a preset, a size, or a Hugging Face config.

Parsing needs no torch, so that a mistake in an option is answered at once.
"""

from __future__ import annotations

import os
from pathlib import Path

from thinwire.errors import ConfigError
from thinwire.planner.models.config import ModelConfig, read_config
from thinwire.planner.models.gpt import GPTShape, is_shape, nearest_shape, parse_shape, parse_size
from thinwire.quoting import quoted

__all__ = ["PRESETS", "ModelSpec", "parse_model"]

ModelSpec = GPTShape | ModelConfig

PRESETS = {
    "tiny": GPTShape(layers=2, hidden=64, heads=2),
    "small": GPTShape(layers=4, hidden=256, heads=4),
    "medium": GPTShape(layers=6, hidden=512, heads=8),
    "large": GPTShape(layers=12, hidden=768, heads=12),
}

FORMS = (
    f"gpt:LAYERSxHIDDENxHEADS, a preset ({', '.join(PRESETS)}), a Hugging Face config.json or the "
    "folder that holds one, or a number of parameters such as 25M"
)


def parse_model(text: str, *, seq_len: int) -> ModelSpec:
    """The model that a text describes.

    Args:
        text: one of the forms above. A preset's name wins over a folder of the same name.
        seq_len: tokens per sequence; the position embedding counts when a size is asked for.

    Raises:
        ConfigError: none of the forms, a shape that cannot be, or a config that cannot be read.
    """
    if text in PRESETS:
        return PRESETS[text]
    if is_shape(text):
        return parse_shape(text)
    path = Path(text)
    # os.path, not Path: a text may be no path at all, empty or too long
    if os.path.exists(text) or path.suffix == ".json":
        config = read_config(path)
        _ = config.family  # raises for a JSON file that is no model's config
        return config
    num_parameters = parse_size(text)
    if num_parameters is None:
        raise ConfigError(f"model {quoted(text)}: no such file or name; use {FORMS}")
    return nearest_shape(num_parameters, tokens=seq_len)
