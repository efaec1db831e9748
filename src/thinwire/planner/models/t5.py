"""T5: an encoder and a decoder that share one embedding, with relative positions."""

from __future__ import annotations

from thinwire.errors import ConfigError
from thinwire.planner.models.builder import Attention, LayerBuilder
from thinwire.planner.models.config import ModelConfig
from thinwire.planner.models.gpt import embedding, language_head
from thinwire.planner.workload import Layer, Workload
from thinwire.quoting import quoted

__all__ = ["t5_workload"]

# those of transformers' ACT2FN: what they cost is taken as the same
ACTIVATIONS = (
    "gelu",
    "gelu_10",
    "gelu_accurate",
    "gelu_fast",
    "gelu_new",
    "gelu_python",
    "gelu_python_tanh",
    "gelu_pytorch_tanh",
    "hardswish",
    "laplace",
    "leaky_relu",
    "linear",
    "mish",
    "prelu",
    "quick_gelu",
    "relu",
    "relu2",
    "relu6",
    "sigmoid",
    "silu",
    "sqrtsoftplus",
    "swish",
    "tanh",
    "xielu",
)


def t5_workload(config: ModelConfig, *, tokens: int, fused: bool) -> Workload:
    """The workload of a T5; one sequence is ``tokens`` encoder and ``tokens`` decoder tokens.

    Args:
        config: with the sizes of a ``t5`` model.
        tokens: length of the encoder's sequence, and of the decoder's.
        fused: attention as one kernel, or with its square of scores in memory.

    Raises:
        ConfigError: a size is missing or cannot be.
    """
    hidden, vocabulary = config.integer("d_model"), config.integer("vocab_size")
    depth = config.depth("num_layers")
    stem = LayerBuilder(hidden)
    stem.parameter("shared.weight", vocabulary, hidden, split=0)
    stem.operation(embedding(hidden))
    stem.norm("encoder.final_layer_norm", bias=False)
    stem.norm("decoder.final_layer_norm", bias=False, computed=False)
    if not config.flag("tie_word_embeddings", default=True):
        stem.parameter("lm_head.weight", vocabulary, hidden, split=0)
    return Workload(
        name=config.name,
        tokens=tokens,
        root=stem.build(""),
        layers=(
            *_stack(config, "encoder", depth, tokens, fused),
            *_stack(config, "decoder", config.depth("num_decoder_layers", depth), tokens, fused),
        ),
        head=language_head(hidden, vocabulary),
        dtype=config.dtype,
    )


def _stack(
    config: ModelConfig, side: str, depth: int, tokens: int, fused: bool
) -> tuple[Layer, ...]:
    """The layers of one side; only the first holds the table of relative positions."""
    name = f"{side}.block.{{}}"
    first = _block(config, side, tokens, fused, holds_positions=True).build(name)
    if depth == 1:
        return (first,)
    rest = _block(config, side, tokens, fused, holds_positions=False)
    return first, rest.build(name, count=depth - 1, start=1)


def _block(
    config: ModelConfig, side: str, tokens: int, fused: bool, *, holds_positions: bool
) -> LayerBuilder:
    is_decoder = side == "decoder"
    dropout = config.dropout("dropout_rate")
    block = LayerBuilder(config.integer("d_model"), dropout=dropout)
    heads = config.integer("num_heads")
    width = config.integer("d_kv")

    def attend(prefix: str, *, causal: bool) -> None:
        shape = Attention(
            heads=heads,
            kv_heads=heads,
            width=width,
            context=tokens,
            causal=causal,
            fused=fused,
            dropout=dropout,
        )
        for part in ("q", "k", "v"):
            block.column(
                f"{prefix}.{part}",
                block.hidden,
                shape.query_width,
                bias=False,
                keeps_input=part == "q",
            )
        block.attention(shape)
        block.row(f"{prefix}.o", shape.query_width, block.hidden, bias=False)
        block.residual()

    block.norm("layer.0.layer_norm", bias=False)
    if holds_positions:
        buckets = config.integer("relative_attention_num_buckets", 32)
        block.parameter(
            "layer.0.SelfAttention.relative_attention_bias.weight", buckets, heads, split=1
        )
    attend("layer.0.SelfAttention", causal=is_decoder)
    if is_decoder:
        block.norm("layer.1.layer_norm", bias=False)
        attend("layer.1.EncDecAttention", causal=False)
    _mlp(block, config, "layer.2" if is_decoder else "layer.1")
    return block


def _is_gated(config: ModelConfig) -> bool:
    """Whether a second projection gates the first.

    Raises:
        ConfigError: ``feed_forward_proj`` is no activation, or one after ``gated-``.
    """
    text = config.text("feed_forward_proj", "relu")
    if text.removeprefix("gated-") not in ACTIVATIONS:
        raise ConfigError(
            f"{config.label}: feed_forward_proj = {quoted(text)} is not known; use relu, "
            "gated-gelu, or another activation of transformers, which gated- may stand before"
        )
    return text.startswith("gated-")


def _mlp(block: LayerBuilder, config: ModelConfig, prefix: str) -> None:
    hidden, width = block.hidden, config.integer("d_ff")
    block.norm(f"{prefix}.layer_norm", bias=False)
    dense = f"{prefix}.DenseReluDense"
    if _is_gated(config):
        block.column(f"{dense}.wi_0", hidden, width, bias=False)
        block.column(f"{dense}.wi_1", hidden, width, bias=False, keeps_input=False)
        block.gate(width)
    else:
        block.column(f"{dense}.wi", hidden, width, bias=False)
        block.activation(width)
    block.row(f"{dense}.wo", width, hidden, bias=False)
    block.residual()
