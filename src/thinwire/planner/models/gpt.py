"""GPT of a given shape: the model that the trainer builds for ``gpt:LAYERSxHIDDENxHEADS``.

Pre-norm, fused qkv, GELU four times as wide, learned positions, a vocabulary of the 256 bytes, a
head without bias that is not tied to the embedding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from thinwire.errors import ConfigError
from thinwire.planner.models.builder import Attention, LayerBuilder
from thinwire.planner.operation import Operation
from thinwire.planner.value_form import LARGEST, MOST_LAYERS, check_at_most
from thinwire.planner.workload import Workload
from thinwire.quantities import parse_count
from thinwire.quoting import quoted

__all__ = [
    "BYTE_VOCABULARY",
    "GPTShape",
    "gpt_workload",
    "is_shape",
    "nearest_shape",
    "parse_shape",
    "parse_size",
]

BYTE_VOCABULARY = 256
HEAD_WIDTH = 64  # of GPT-2 and of GPT-3 up to 2.7B (arXiv 2005.14165, table 2.1)
WIDEST = 32768
# hidden / layers of published GPTs lies between 32 (GPT-2 XL: 1600/48) and 128 (GPT-3: 12288/96)
NARROWEST_ASPECT, WIDEST_ASPECT = 32, 128
FLOAT32_BYTES = 4
PREFIX, THREE_SIZES = "gpt:", r"(\d+)x(\d+)x(\d+)"
MOST_DIGITS = 12  # of a size that is read at all; whatever is larger gets a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTShape:
    """The sizes of a GPT.

    Raises:
        ConfigError: a size below 1 or too large, or heads that do not divide the hidden size.
    """

    layers: int
    hidden: int
    heads: int
    vocabulary: int = BYTE_VOCABULARY
    tied: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "vocabulary"):
            if getattr(self, name) < 1:
                raise ConfigError(f"model {self}: {name} must be at least 1")
            most = MOST_LAYERS if name == "layers" else LARGEST
            check_at_most(f"model {self}: {name}", getattr(self, name), most)
        if self.hidden % self.heads:
            nearest = max(1, round(self.hidden / self.heads)) * self.heads
            raise ConfigError(
                f"model {self}: {self.heads} heads do not divide a hidden size of {self.hidden}; "
                f"take another, such as {nearest}"
            )

    def __str__(self) -> str:
        return f"gpt:{self.layers}x{self.hidden}x{self.heads}"

    def num_parameters(self, tokens: int) -> int:
        """How many parameters the model has for sequences of ``tokens`` tokens."""
        embeddings = (1 if self.tied else 2) * self.vocabulary + tokens + 2
        return self.layers * (12 * self.hidden**2 + 13 * self.hidden) + embeddings * self.hidden


def parse_shape(text: str) -> GPTShape:
    """The shape that ``gpt:LAYERSxHIDDENxHEADS`` says, or the three numbers by themselves.

    Raises:
        ConfigError: another form, or sizes that cannot be.
    """
    match = re.fullmatch(rf"(?:{PREFIX})?{THREE_SIZES}", text, flags=re.ASCII)
    if match is None:
        raise ConfigError(
            f"model {quoted(text)}: write gpt:LAYERSxHIDDENxHEADS in whole numbers, for example "
            "gpt:24x2048x16"
        )
    if max(map(len, match.groups())) > MOST_DIGITS:
        raise ConfigError(
            f"model {quoted(text)}: a number in it is too large: give {MOST_LAYERS:,} layers or "
            f"less, and {LARGEST:,} or less of all else"
        )
    layers, hidden, heads = (int(number) for number in match.groups())
    return GPTShape(layers=layers, hidden=hidden, heads=heads)


def is_shape(text: str) -> bool:
    """Whether a text is meant as a shape: it begins with ``gpt:``, or is three numbers."""
    has_prefix = text.startswith(PREFIX)
    return has_prefix or re.fullmatch(THREE_SIZES, text, flags=re.ASCII) is not None


def parse_size(text: str) -> int | None:
    """The number of parameters that a text gives; ``None`` where it does not look like a number.

    Raises:
        ConfigError: a number that is not above zero, not whole, or too large.
    """
    if re.fullmatch(r"\.?\d[\d.]*(e[+-]?\d*)? ?[a-z]{0,2}", text, re.ASCII | re.IGNORECASE) is None:
        return None
    return parse_count(text, noun="model")


def gpt_workload(
    shape: GPTShape, *, tokens: int, fused: bool = True, dropout: bool = False
) -> Workload:
    """The workload of a GPT.

    Args:
        shape: its sizes.
        tokens: sequence length; the model has as many positions.
        fused: attention as one kernel, or with its square of scores in memory.
        dropout: whether attention and residuals are dropped out, as GPT-3's published runs do.
    """
    hidden = shape.hidden
    attention = Attention(
        heads=shape.heads,
        kv_heads=shape.heads,
        width=hidden // shape.heads,
        context=tokens,
        fused=fused,
        dropout=dropout,
    )
    block = LayerBuilder(hidden, dropout=dropout)
    block.norm("attention_norm", bias=True)
    block.column("qkv", hidden, 3 * hidden, bias=True)
    block.attention(attention)
    block.row("attention_out", hidden, hidden, bias=True)
    block.residual()
    block.norm("mlp_norm", bias=True)
    block.column("mlp_in", hidden, 4 * hidden, bias=True)
    block.activation(4 * hidden)
    block.row("mlp_out", 4 * hidden, hidden, bias=True)
    block.residual()

    stem = LayerBuilder(hidden)
    stem.parameter("token_embedding.weight", shape.vocabulary, hidden, split=0)
    stem.parameter("position_embedding.weight", tokens, hidden)
    stem.norm("norm", bias=True, computed=False)
    if not shape.tied:
        stem.parameter("head.weight", shape.vocabulary, hidden, split=0)
    stem.operation(embedding(hidden))
    return Workload(
        name=str(shape),
        tokens=tokens,
        root=stem.build(""),
        layers=(block.build("blocks.{}", count=shape.layers),),
        head=language_head(hidden, shape.vocabulary),
    )


def embedding(hidden: int) -> Operation:
    """Rows looked up and written; backward needs the indices, of 8 bytes."""
    return Operation(name="embedding", moved=2 * hidden, saved_bytes=8)


def language_head(hidden: int, vocabulary: int) -> tuple[Operation, ...]:
    """The last norm, the projection to logits, and the cross-entropy in fp32 over them."""
    return (
        Operation(name="last norm", moved=2 * hidden, saved=hidden, saved_bytes=8),
        Operation(name="head", flops=2.0 * hidden * vocabulary, saved=hidden, split=True),
        # logits widened, log-softmax read and written: backward keeps its output in fp32
        Operation(
            name="loss",
            moved=vocabulary,
            moved_bytes=3 * FLOAT32_BYTES * vocabulary,
            saved_bytes=FLOAT32_BYTES * vocabulary + 8,
            kernels=3,
            split=True,
        ),
    )


def nearest_shape(num_parameters: int, *, tokens: int) -> GPTShape:
    """The GPT of usual proportions whose number of parameters is nearest.

    Raises:
        ConfigError: even the nearest is off by more than a factor of two.
    """
    best = min(
        _usual_shapes(num_parameters, tokens),
        key=lambda shape: abs(shape.num_parameters(tokens) - num_parameters),
    )
    found = best.num_parameters(tokens)
    if not found / 2 <= num_parameters <= found * 2:
        raise ConfigError(
            f"model of {num_parameters} parameters: the nearest GPT, {best}, has {found}; "
            "give its shape as gpt:LAYERSxHIDDENxHEADS"
        )
    return best


def _usual_shapes(num_parameters: int, tokens: int) -> Iterator[GPTShape]:
    """For every usual width the depth that comes nearest, within the usual proportions."""
    for hidden in (16, 32, *range(HEAD_WIDTH, WIDEST + 1, HEAD_WIDTH)):
        outside = (2 * BYTE_VOCABULARY + tokens + 2) * hidden
        wanted = round((num_parameters - outside) / (12 * hidden**2 + 13 * hidden))
        shallowest = max(1, -(-hidden // WIDEST_ASPECT))
        deepest = max(1, hidden // NARROWEST_ASPECT)
        yield GPTShape(
            layers=min(max(wanted, shallowest), deepest),
            hidden=hidden,
            heads=max(1, hidden // HEAD_WIDTH),
        )
