"""The module that a :class:`~thinwire.train.model_spec.ModelSpec` describes.

Every model here is called with tokens and answers with logits, and stays the root module that
``tw.shard`` wraps: FSDP2 and DDP act on the module's own ``__call__``, so the loss is a function
beside the model, not a method around it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.planner.models.gpt import GPTShape
from thinwire.train.model_spec import ModelSpec

__all__ = ["GPT", "build_model", "count_parameters", "next_token_loss"]

INIT_STD = 0.02  # GPT-2's


class Block(nn.Module):
    """One pre-norm transformer layer: attention and MLP, each added to its input."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.attention_out = nn.Linear(hidden, hidden)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.mlp_in = nn.Linear(hidden, 4 * hidden)
        self.mlp_out = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, length, hidden]`` to the same shape."""
        batch, length, hidden = x.shape
        heads = (batch, length, 3, self.heads, hidden // self.heads)
        query, key, value = self.qkv(self.attention_norm(x)).view(heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        activated: Tensor = self.mlp_out(functional.gelu(self.mlp_in(self.mlp_norm(x))))
        return x + activated


class GPT(nn.Module):
    """A pre-norm GPT with learned positions, initialised as GPT-2."""

    def __init__(self, shape: GPTShape, seq_len: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.position_embedding = nn.Embedding(seq_len, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape.hidden, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.token_embedding.weight
        self._initialise(shape.layers)

    def _initialise(self, layers: int) -> None:
        """Draw weights from N(0, 0.02^2), of residual projections narrower (GPT-2, section 2.3)."""
        residual_std = INIT_STD / math.sqrt(2 * layers)
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                is_residual = name.endswith(("attention_out", "mlp_out"))
                nn.init.normal_(module.weight, std=residual_std if is_residual else INIT_STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (int64, ``[batch, length]``) to logits (``[batch, length, vocabulary]``)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def build_model(spec: ModelSpec, *, seq_len: int) -> nn.Module:
    """The module of a spec with fresh fp32 weights, drawn from torch's current random state.

    Args:
        spec: what to build.
        seq_len: tokens that the model will see at once.

    Returns:
        A module whose call maps tokens (int64, ``[batch, length <= seq_len]``) to logits
        (``[batch, length, vocabulary]``), or to an object that holds them as ``logits``.

    Raises:
        ConfigError: transformers is missing, or the config cannot serve bytes of this length.
    """
    if isinstance(spec, GPTShape):
        return GPT(spec, seq_len)
    from thinwire.train import hugging_face  # transformers is optional and slow to import

    return hugging_face.build(spec, seq_len=seq_len)


def count_parameters(spec: ModelSpec, *, seq_len: int) -> int:
    """How many parameters a spec's model has; shared ones count once. Allocates no weights.

    Raises:
        ConfigError: as :func:`build_model`.
    """
    with torch.device("meta"):
        return sum(
            parameter.numel() for parameter in build_model(spec, seq_len=seq_len).parameters()
        )


def next_token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """The mean cross-entropy, in nats, of every token given those before it.

    Args:
        model: from :func:`build_model`, wrapped or not.
        tokens: int64, ``[batch, length + 1]``: the model sees ``length``, and predicts the next.

    Returns:
        A scalar in fp32: the logits are widened first, whatever dtype the model computes in.
    """
    output = model(tokens[:, :-1])
    logits = output if isinstance(output, Tensor) else output.logits
    return functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
