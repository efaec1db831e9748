"""What ``--model`` says: a GPT of a given shape, a preset, a size, or a Hugging Face config.

Parsing needs no torch, so that a mistake in an option is answered at once. The parameters of a GPT
follow from its shape; those of a Hugging Face model are known only when it is built.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError
from thinwire.quantities import parse_count

__all__ = ["PRESETS", "GPTSpec", "HuggingFaceSpec", "ModelSpec", "nearest_gpt", "parse_model"]

VOCABULARY = 256  # one token per byte: any text, no tokenizer
HEAD_WIDTH = 64  # of GPT-2 and GPT-3 up to 2.7B (arXiv 2005.14165, table 2.1)
WIDEST = 16384

# hidden / layers of the published GPTs lies between 32 (GPT-2 XL: 1600/48) and 128 (GPT-3: 12288/96)
NARROWEST_ASPECT, WIDEST_ASPECT = 32, 128


def layer_parameters(hidden: int) -> int:
    """Parameters of one layer: qkv 3h^2+3h, output h^2+h, MLP 8h^2+5h, two norms 4h."""
    return 12 * hidden**2 + 13 * hidden


def outer_parameters(hidden: int, seq_len: int) -> int:
    """Parameters around the layers: byte and position embeddings, the last norm, the head."""
    return (2 * VOCABULARY + seq_len + 2) * hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTSpec:
    """The shape of a byte-level GPT: pre-norm, fused qkv, 4x GELU, learned positions.

    Raises:
        ConfigError: a number is below 1, or the heads do not divide the hidden size.
    """

    layers: int
    hidden: int
    heads: int

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"model {self}: {name} must be at least 1")
        if self.hidden % self.heads:
            raise ConfigError(
                f"model {self}: {self.heads} heads do not divide a hidden size of {self.hidden}"
            )

    def __str__(self) -> str:
        return f"gpt:{self.layers}x{self.hidden}x{self.heads}"

    def num_parameters(self, seq_len: int) -> int:
        """How many parameters the model has for sequences of ``seq_len`` tokens."""
        return self.layers * layer_parameters(self.hidden) + outer_parameters(self.hidden, seq_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceSpec:
    """A causal language model of the transformers library, by its ``config.json``.

    Only the shape is taken: the weights are random, nothing is downloaded, and code that a config
    points to is never run.
    """

    config_path: Path

    def __str__(self) -> str:
        return str(self.config_path)

    def read(self) -> dict[str, Any]:
        """The content of the config file.

        Raises:
            ConfigError: the file cannot be read, is no JSON, or names no ``model_type``.
        """
        path = self.config_path
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"model {path}: cannot be read ({reason})") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"model {path}: not a JSON file ({error})") from error
        if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
            raise ConfigError(
                f"model {path}: names no model_type, so it is not the config of a "
                "Hugging Face model"
            )
        return content


ModelSpec = GPTSpec | HuggingFaceSpec

PRESETS = {
    "tiny": GPTSpec(layers=2, hidden=64, heads=2),
    "small": GPTSpec(layers=4, hidden=256, heads=4),
    "medium": GPTSpec(layers=6, hidden=512, heads=8),
    "large": GPTSpec(layers=12, hidden=768, heads=12),
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
    if text.startswith("gpt:"):
        match = re.fullmatch(r"gpt:(\d{1,6})x(\d{1,6})x(\d{1,6})", text, flags=re.ASCII)
        if match is None:
            raise ConfigError(
                f"model {text!r}: write gpt:LAYERSxHIDDENxHEADS, for example gpt:6x512x8"
            )
        layers, hidden, heads = (int(number) for number in match.groups())
        return GPTSpec(layers=layers, hidden=hidden, heads=heads)
    path = Path(text)
    if path.exists() or path.suffix == ".json":
        return _hugging_face_spec(path)
    try:
        num_parameters = parse_count(text)
    except ConfigError as error:
        raise ConfigError(f"model {text!r}: no such file or name; use {FORMS}") from error
    return nearest_gpt(num_parameters, seq_len=seq_len)


def _hugging_face_spec(path: Path) -> HuggingFaceSpec:
    config_path = path / "config.json" if path.is_dir() else path
    if not config_path.is_file():
        raise ConfigError(f"model {path}: no config.json there")
    spec = HuggingFaceSpec(config_path=config_path.resolve())
    spec.read()
    return spec


def nearest_gpt(num_parameters: int, *, seq_len: int) -> GPTSpec:
    """The GPT of usual proportions whose number of parameters is nearest.

    Raises:
        ConfigError: the smallest or the largest such GPT is off by more than a factor of two.
    """
    best = min(
        _usual_shapes(num_parameters, seq_len=seq_len),
        key=lambda spec: abs(spec.num_parameters(seq_len) - num_parameters),
    )
    found = best.num_parameters(seq_len)
    if not found / 2 <= num_parameters <= found * 2:
        raise ConfigError(
            f"model of {num_parameters} parameters: the nearest GPT, {best}, has {found}; "
            "give its shape as gpt:LAYERSxHIDDENxHEADS"
        )
    return best


def _usual_shapes(num_parameters: int, *, seq_len: int) -> Iterator[GPTSpec]:
    """For every usual width the depth that comes nearest, within the usual proportions."""
    for hidden in (16, 32, *range(HEAD_WIDTH, WIDEST + 1, HEAD_WIDTH)):
        shallowest = max(1, -(-hidden // WIDEST_ASPECT))
        deepest = max(1, hidden // NARROWEST_ASPECT)
        wanted = round(
            (num_parameters - outer_parameters(hidden, seq_len)) / layer_parameters(hidden)
        )
        layers = min(max(wanted, shallowest), deepest)
        yield GPTSpec(layers=layers, hidden=hidden, heads=max(1, hidden // HEAD_WIDTH))
