"""Decoders of the Llama kind: llama, mistral, qwen2, qwen3, gemma, mixtral.

RMSNorm, separate query, key and value with grouped heads, a gated MLP, rotary positions. They
differ in biases, in norms on queries and keys, in whether the head is tied, and in experts.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.errors import ConfigError
from thinwire.planner.models.builder import Attention, LayerBuilder
from thinwire.planner.models.config import ModelConfig
from thinwire.planner.models.gpt import embedding, language_head
from thinwire.planner.workload import Workload

__all__ = ["FAMILIES", "Traits", "decoder_workload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What tells one family from another.

    Attributes:
        tied: whether the head is the embedding when the config does not say.
        qkv_bias: whether query, key and value have biases; ``None``: the config says.
        head_norm: whether queries and keys are normalised per head.
        experts: whether the MLP is a mixture.
    """

    tied: bool = False
    qkv_bias: bool | None = False
    head_norm: bool = False
    experts: bool = False


FAMILIES = {
    "llama": Traits(qkv_bias=None),
    "mistral": Traits(),
    "qwen2": Traits(qkv_bias=True),
    "qwen3": Traits(qkv_bias=None, head_norm=True),
    "gemma": Traits(qkv_bias=None, tied=True),
    "mixtral": Traits(experts=True),
}


def decoder_workload(config: ModelConfig, *, tokens: int, fused: bool) -> Workload:
    """The workload of a decoder of the Llama kind.

    Args:
        config: of one of ``FAMILIES``.
        tokens: sequence length.
        fused: attention as one kernel, or with its square of scores in memory.

    Raises:
        ConfigError: a size is missing or cannot be.
    """
    traits = FAMILIES[config.family]
    hidden, vocabulary = config.integer("hidden_size"), config.integer("vocab_size")
    block = LayerBuilder(hidden)
    block.norm("input_layernorm", bias=False)
    _self_attention(block, config, traits, _attention(config, tokens, fused))
    block.residual()
    block.norm("post_attention_layernorm", bias=False)
    if traits.experts:
        _experts(block, config)
    else:
        _gated_mlp(block, config)
    block.residual()

    stem = LayerBuilder(hidden)
    stem.parameter("model.embed_tokens.weight", vocabulary, hidden, split=0)
    stem.norm("model.norm", bias=False, computed=False)
    if not config.flag("tie_word_embeddings", traits.tied):
        stem.parameter("lm_head.weight", vocabulary, hidden, split=0)
    stem.operation(embedding(hidden))
    return Workload(
        name=config.name,
        tokens=tokens,
        root=stem.build(""),
        layers=(block.build("model.layers.{}", count=config.depth("num_hidden_layers")),),
        head=language_head(hidden, vocabulary),
        dtype=config.dtype,
    )


def _attention(config: ModelConfig, tokens: int, fused: bool) -> Attention:
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    has_width = config.values.get("head_dim") is not None
    pairs = [("num_attention_heads", "num_key_value_heads")] if kv_heads != heads else []
    if not has_width:
        pairs.append(("hidden_size", "num_attention_heads"))
    config.check_divides(*pairs)
    width = (
        config.integer("head_dim")
        if has_width
        else config.divided("hidden_size", "num_attention_heads")
    )
    dropout = config.dropout("attention_dropout")
    # a sliding window, where there is one, bounds what a token attends to
    window = config.integer("sliding_window", tokens)
    windowed = config.flag("use_sliding_window", default=True)
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        width=width,
        context=min(tokens, window) if windowed else tokens,
        fused=fused,
        dropout=dropout,
    )


def _self_attention(
    block: LayerBuilder, config: ModelConfig, traits: Traits, shape: Attention
) -> None:
    hidden = block.hidden
    from_config = config.flag("attention_bias", default=False)
    bias = from_config if traits.qkv_bias is None else traits.qkv_bias
    block.column("self_attn.q_proj", hidden, shape.query_width, bias=bias)
    block.column("self_attn.k_proj", hidden, shape.kv_width, bias=bias, keeps_input=False)
    block.column("self_attn.v_proj", hidden, shape.kv_width, bias=bias, keeps_input=False)
    if traits.head_norm:
        block.head_norms("self_attn", shape)
    block.rotary(shape)
    block.attention(shape)
    output_bias = from_config if traits.qkv_bias is None else False
    block.row("self_attn.o_proj", shape.query_width, hidden, bias=output_bias)


def _experts(block: LayerBuilder, config: ModelConfig) -> None:
    experts = config.integer("num_local_experts")
    chosen = config.integer("num_experts_per_tok")
    if chosen > experts:
        raise ConfigError(
            f"{config.label}: num_experts_per_tok = {chosen} is more than the "
            f"{experts} of num_local_experts; correct one of the two"
        )
    width = config.integer("intermediate_size")
    block.experts("mlp", width, experts=experts, chosen=chosen)


def _gated_mlp(block: LayerBuilder, config: ModelConfig) -> None:
    hidden, width = block.hidden, config.integer("intermediate_size")
    bias = config.flag("mlp_bias", default=False)
    block.column("mlp.gate_proj", hidden, width, bias=bias)
    block.column("mlp.up_proj", hidden, width, bias=bias, keeps_input=False)
    block.gate(width)
    block.row("mlp.down_proj", width, hidden, bias=bias)
