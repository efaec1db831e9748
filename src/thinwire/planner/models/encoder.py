"""Encoders: BERT, which normalises after each sum, and ViT, which reads patches of an image."""

from __future__ import annotations

from thinwire.errors import ConfigError
from thinwire.planner.models.builder import Attention, LayerBuilder
from thinwire.planner.models.config import ModelConfig
from thinwire.planner.models.gpt import embedding, language_head
from thinwire.planner.models.positions import check_positions, num_positions
from thinwire.planner.operation import Operation
from thinwire.planner.value_form import check_at_most
from thinwire.planner.workload import Workload
from thinwire.quantities import format_numbered

__all__ = ["bert_workload", "vit_workload"]

MIN_CLASSES = 2  # what transformers assumes when a config names no labels


def bert_workload(config: ModelConfig, *, tokens: int, fused: bool) -> Workload:
    """The workload of a BERT with its masked-language head, tied to the embedding.

    Args:
        config: with the sizes of a ``bert`` model.
        tokens: sequence length.
        fused: attention as one kernel, or with its square of scores in memory.

    Raises:
        ConfigError: a size is missing or cannot be.
    """
    hidden, vocabulary = config.integer("hidden_size"), config.integer("vocab_size")
    inner = config.integer("intermediate_size")
    dropout = config.dropout("attention_probs_dropout_prob", "hidden_dropout_prob")
    block = LayerBuilder(hidden, dropout=dropout)
    for part in ("query", "key", "value"):
        block.column(
            f"attention.self.{part}", hidden, hidden, bias=True, keeps_input=part == "query"
        )
    block.attention(_bidirectional(config, tokens, fused, dropout))
    block.row("attention.output.dense", hidden, hidden, bias=True)
    block.residual()
    block.norm("attention.output.LayerNorm", bias=True)
    block.column("intermediate.dense", hidden, inner, bias=True)
    block.activation(inner)
    block.row("output.dense", inner, hidden, bias=True)
    block.residual()
    block.norm("output.LayerNorm", bias=True)

    stem = LayerBuilder(hidden)
    stem.parameter("bert.embeddings.word_embeddings.weight", vocabulary, hidden, split=0)
    stem.parameter("bert.embeddings.position_embeddings.weight", num_positions(config), hidden)
    stem.parameter(
        "bert.embeddings.token_type_embeddings.weight", config.integer("type_vocab_size", 2), hidden
    )
    stem.operation(embedding(hidden))
    stem.norm("bert.embeddings.LayerNorm", bias=True)
    stem.parameter("cls.predictions.bias", vocabulary, split=0)
    if not config.flag("tie_word_embeddings", default=True):
        stem.parameter("cls.predictions.decoder.weight", vocabulary, hidden, split=0)
    head = LayerBuilder(hidden)
    head.column("cls.predictions.transform.dense", hidden, hidden, bias=True)
    head.activation(hidden)
    stem.parameter("cls.predictions.transform.dense.weight", hidden, hidden)
    stem.parameter("cls.predictions.transform.dense.bias", hidden)
    stem.norm("cls.predictions.transform.LayerNorm", bias=True, computed=False)
    return Workload(
        name=config.name,
        tokens=tokens,
        root=stem.build(""),
        layers=(block.build("bert.encoder.layer.{}", count=config.depth("num_hidden_layers")),),
        head=(*head.operations, *language_head(hidden, vocabulary)),
        dtype=config.dtype,
    )


def vit_workload(config: ModelConfig, *, tokens: int | None, fused: bool) -> Workload:
    """The workload of a ViT image classifier; its sequence is the patches and one class token.

    Args:
        config: with the sizes of a ``vit`` model.
        tokens: sequence length that was asked for, which decides nothing; ``None``: none was.
        fused: attention as one kernel, or with its square of scores in memory.

    Raises:
        ConfigError: a size is missing or cannot be, or the sequence is longer than the positions.
    """
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    patch, channels = config.integer("patch_size", 16), config.integer("num_channels", 3)
    length, pixels = _image_tokens(config, patch), channels * patch**2
    if tokens is not None:
        check_positions(config, tokens, length)
    dropout = config.dropout("attention_probs_dropout_prob", "hidden_dropout_prob")
    bias = config.flag("qkv_bias", default=True)
    block = LayerBuilder(hidden, dropout=dropout)
    block.norm("layernorm_before", bias=True)
    for part in ("q", "k", "v"):
        block.column(f"attention.{part}_proj", hidden, hidden, bias=bias, keeps_input=part == "q")
    block.attention(_bidirectional(config, length, fused, dropout))
    block.row("attention.o_proj", hidden, hidden, bias=True)
    block.residual()
    block.norm("layernorm_after", bias=True)
    block.column("mlp.fc1", hidden, inner, bias=True)
    block.activation(inner)
    block.row("mlp.fc2", inner, hidden, bias=True)
    block.residual()

    labels = config.values.get("id2label")
    classes = config.integer("num_labels", MIN_CLASSES)
    if isinstance(labels, dict) and labels:
        classes = len(labels)
    stem = LayerBuilder(hidden)
    stem.parameter("vit.embeddings.cls_token", 1, 1, hidden)
    stem.parameter("vit.embeddings.position_embeddings", 1, length, hidden)
    stem.parameter(
        "vit.embeddings.patch_embeddings.projection.weight", hidden, channels, patch, patch
    )
    stem.parameter("vit.embeddings.patch_embeddings.projection.bias", hidden)
    stem.operation(Operation(name="patches", flops=2.0 * pixels * hidden, saved=pixels))
    stem.norm("vit.layernorm", bias=True, computed=False)
    stem.parameter("classifier.weight", classes, hidden)
    stem.parameter("classifier.bias", classes)
    last_norm = Operation(name="last norm", moved=2 * hidden, saved=hidden, saved_bytes=8)
    return Workload(
        name=config.name,
        tokens=length,
        root=stem.build(""),
        layers=(block.build("vit.layers.{}", count=config.depth("num_hidden_layers")),),
        head=(last_norm, Operation(name="classifier", flops=2.0 * hidden * classes / length)),
        dtype=config.dtype,
        assumptions=() if tokens in (None, length) else (_ignored(tokens, length),),
    )


def _image_tokens(config: ModelConfig, patch: int) -> int:
    """The patches of an image, without what is left at its edges, and one class token."""
    side = config.integer("image_size", 224)
    if patch > side:
        raise ConfigError(
            f"{config.label}: patch_size = {patch} is larger than image_size = {side}, so there is "
            "no patch; correct one of the two"
        )
    length = (side // patch) ** 2 + 1
    check_at_most(f"{config.label}: tokens of image_size = {side} in patches of {patch}", length)
    return length


def _ignored(tokens: int | None, length: int) -> str:
    made = format_numbered(length, "token")
    return f"Sequences of {made}, as the image and its patches say, and not of {tokens}."


def _bidirectional(config: ModelConfig, tokens: int, fused: bool, dropout: bool) -> Attention:
    heads = config.integer("num_attention_heads")
    return Attention(
        heads=heads,
        kv_heads=heads,
        width=config.divided("hidden_size", "num_attention_heads"),
        context=tokens,
        causal=False,
        fused=fused,
        dropout=dropout,
    )
