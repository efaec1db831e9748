"""GPT-2 and GPT-NeoX: LayerNorm, one fused qkv projection, a GELU MLP."""

from __future__ import annotations

from thinwire.planner.models.builder import Attention, LayerBuilder
from thinwire.planner.models.config import ModelConfig
from thinwire.planner.models.gpt import embedding, language_head
from thinwire.planner.models.positions import num_positions
from thinwire.planner.workload import Workload

__all__ = ["gpt2_workload", "neox_workload"]


def gpt2_workload(config: ModelConfig, *, tokens: int, fused: bool) -> Workload:
    """The workload of a GPT-2; its weights are stored as ``[inputs, outputs]``.

    Args:
        config: with ``n_embd``, ``n_layer``, ``n_head``, ``n_positions`` and ``vocab_size``.
        tokens: sequence length.
        fused: attention as one kernel, or with its square of scores in memory.

    Raises:
        ConfigError: a size is missing or cannot be.
    """
    hidden, vocabulary = config.integer("n_embd"), config.integer("vocab_size")
    inner = config.integer("n_inner", 4 * hidden)
    dropout = config.dropout("attn_pdrop", "resid_pdrop")
    config.dropout("embd_pdrop")  # looked at only: what is outside all layers keeps no mask here
    attention = _attention(config, "n_embd", "n_head", tokens, fused, dropout)
    block = LayerBuilder(hidden, dropout=dropout)
    block.norm("ln_1", bias=True)
    block.column("attn.c_attn", hidden, 3 * hidden, bias=True, transposed=True)
    block.attention(attention)
    block.row("attn.c_proj", hidden, hidden, bias=True, transposed=True)
    block.residual()
    block.norm("ln_2", bias=True)
    block.column("mlp.c_fc", hidden, inner, bias=True, transposed=True)
    block.activation(inner)
    block.row("mlp.c_proj", inner, hidden, bias=True, transposed=True)
    block.residual()

    stem = LayerBuilder(hidden)
    stem.parameter("transformer.wte.weight", vocabulary, hidden, split=0)
    stem.parameter("transformer.wpe.weight", num_positions(config), hidden)
    stem.norm("transformer.ln_f", bias=True, computed=False)
    if not config.flag("tie_word_embeddings", default=True):
        stem.parameter("lm_head.weight", vocabulary, hidden, split=0)
    stem.operation(embedding(hidden))
    return Workload(
        name=config.name,
        tokens=tokens,
        root=stem.build(""),
        layers=(block.build("transformer.h.{}", count=config.depth("n_layer")),),
        head=language_head(hidden, vocabulary),
        dtype=config.dtype,
    )


def neox_workload(config: ModelConfig, *, tokens: int, fused: bool) -> Workload:
    """The workload of a GPT-NeoX; rotary positions, attention and MLP side by side.

    Args:
        config: with the sizes of a ``gpt_neox`` model.
        tokens: sequence length.
        fused: attention as one kernel, or with its square of scores in memory.

    Raises:
        ConfigError: a size is missing or cannot be.
    """
    hidden, vocabulary = config.integer("hidden_size"), config.integer("vocab_size")
    inner = config.integer("intermediate_size")
    dropout = config.dropout("attention_dropout", "hidden_dropout")
    bias = config.flag("attention_bias", default=True)
    attention = _attention(config, "hidden_size", "num_attention_heads", tokens, fused, dropout)
    block = LayerBuilder(hidden, dropout=dropout)
    block.norm("input_layernorm", bias=True)
    block.norm("post_attention_layernorm", bias=True)
    block.column("attention.query_key_value", hidden, 3 * hidden, bias=bias)
    block.rotary(attention)
    block.attention(attention)
    block.row("attention.dense", hidden, hidden, bias=bias)
    block.column("mlp.dense_h_to_4h", hidden, inner, bias=True)
    block.activation(inner)
    block.row("mlp.dense_4h_to_h", inner, hidden, bias=True)
    block.residual()
    block.residual()

    stem = LayerBuilder(hidden)
    stem.parameter("gpt_neox.embed_in.weight", vocabulary, hidden, split=0)
    stem.norm("gpt_neox.final_layer_norm", bias=True, computed=False)
    if not config.flag("tie_word_embeddings", default=False):
        stem.parameter("lm_head.weight", vocabulary, hidden, split=0)
    stem.operation(embedding(hidden))
    return Workload(
        name=config.name,
        tokens=tokens,
        root=stem.build(""),
        layers=(block.build("gpt_neox.layers.{}", count=config.depth("num_hidden_layers")),),
        head=language_head(hidden, vocabulary),
        dtype=config.dtype,
    )


def _attention(
    config: ModelConfig, width_key: str, heads_key: str, tokens: int, fused: bool, dropout: bool
) -> Attention:
    heads = config.integer(heads_key)
    return Attention(
        heads=heads,
        kv_heads=heads,
        width=config.divided(width_key, heads_key),
        context=tokens,
        fused=fused,
        dropout=dropout,
    )
