"""Causal language models of the transformers library, from a config alone.

Bytes are fed as token numbers 0 to 255, so that any model trains on any text without a tokenizer:
what is compared is how recipes carry a model of this shape, not what the model knows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from thinwire.errors import ConfigError
from thinwire.planner.models.config import ModelConfig

__all__ = ["build"]

BYTES = 256


def build(spec: ModelConfig, *, seq_len: int) -> nn.Module:
    """A causal language model with random fp32 weights.

    The dtype that the config names is that of a checkpoint; training keeps fp32 parameters and
    computes in the recipe's dtype.

    Raises:
        ConfigError: transformers is not installed, does not know the architecture, or the model has
            fewer than 256 tokens or fewer than ``seq_len`` positions.
    """
    transformers = _import_transformers()
    values = {key: value for key, value in spec.values.items() if key != "model_type"}
    try:
        config = transformers.AutoConfig.for_model(spec.family, **values)
        _check_config(spec, config, seq_len)
        config.use_cache = False  # a training step never decodes one token at a time
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )
    except ConfigError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        # what transformers raises for an unknown architecture, or for values that contradict
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(
            f"model {spec.name}: transformers cannot build it ({first_line})"
        ) from error
    return model


def _import_transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ConfigError(
            "a Hugging Face model needs the transformers library: pip install 'thinwire[hf]'"
        ) from error
    return transformers


def _check_config(spec: ModelConfig, config: Any, seq_len: int) -> None:
    text_config = config.get_text_config()
    vocabulary = getattr(text_config, "vocab_size", None)
    if not isinstance(vocabulary, int) or vocabulary < BYTES:
        raise ConfigError(
            f"model {spec.name}: a vocabulary of {vocabulary} cannot hold bytes; "
            f"vocab_size must be at least {BYTES}"
        )
    positions = getattr(text_config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions < seq_len:
        raise ConfigError(
            f"model {spec.name}: has {positions} positions; use --seq {positions} or shorter"
        )
