"""How long a sequence may be: as long as a model's learned positions, where it has any.

Rotary and relative positions (llama, gpt_neox, t5, ...) hold at any length, and the trainer's own
GPT gets as many as are asked for.
"""

from __future__ import annotations

from thinwire.errors import ConfigError
from thinwire.planner.models.config import ModelConfig
from thinwire.quantities import format_numbered

__all__ = ["DEFAULT_TOKENS", "check_positions", "num_positions", "sequence_length"]

DEFAULT_TOKENS = 2048
# the key that gives the number, and what transformers assumes where the config leaves it out
KEYS = {"gpt2": ("n_positions", None), "bert": ("max_position_embeddings", 512)}


def num_positions(config: ModelConfig) -> int:
    """How many positions a model of one of these families has learned.

    Raises:
        ConfigError: the number is missing or cannot be.
    """
    return config.integer(*KEYS[config.family])


def sequence_length(config: ModelConfig, tokens: int | None) -> int:
    """Tokens of a sequence: what was asked for, or else the default, as far as positions go.

    Raises:
        ConfigError: the sequence is longer than the positions.
    """
    if config.family not in KEYS:
        return DEFAULT_TOKENS if tokens is None else tokens
    positions = num_positions(config)
    if tokens is None:
        return min(DEFAULT_TOKENS, positions)
    check_positions(config, tokens, positions)
    return tokens


def check_positions(config: ModelConfig, tokens: int, positions: int) -> None:
    """Raise if a sequence is longer than a model's positions.

    Raises:
        ConfigError: says how long it may be.
    """
    if tokens > positions:
        raise ConfigError(
            f"{config.label}: has {format_numbered(positions, 'position')}; "
            f"use --seq {positions} or shorter"
        )
