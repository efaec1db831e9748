"""The models: their sizes, what attention may see, how they start, and Hugging Face ones."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from thinwire.errors import ConfigError
from thinwire.planner.models.gpt import GPTShape
from thinwire.train.model_spec import parse_model
from thinwire.train.models import GPT, Block, build_model, count_parameters, next_token_loss

SEQ_LEN = 16
TINY = GPTShape(layers=2, hidden=32, heads=2)

GPT2_CONFIG = {
    "model_type": "gpt2",
    "vocab_size": 300,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "torch_dtype": "float16",
}
LLAMA_CONFIG = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}


def tiny(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build_model(TINY, seq_len=SEQ_LEN)


def config_file(folder: Path, values: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(values))
    return str(folder)


@pytest.mark.parametrize(
    "shape", [TINY, GPTShape(layers=1, hidden=48, heads=3), GPTShape(layers=3, hidden=8, heads=8)]
)
def test_the_count_from_the_shape_is_that_of_the_module(shape: GPTShape) -> None:
    built = sum(p.numel() for p in build_model(shape, seq_len=SEQ_LEN).parameters())
    assert built == shape.num_parameters(SEQ_LEN) == count_parameters(shape, seq_len=SEQ_LEN)


def test_a_tied_head_counts_once() -> None:
    shape = GPTShape(layers=1, hidden=32, heads=2, tied=True)
    model = GPT(shape, SEQ_LEN)
    assert model.head.weight is model.token_embedding.weight
    assert sum(p.numel() for p in model.parameters()) == shape.num_parameters(SEQ_LEN)


def test_no_token_sees_a_later_one() -> None:
    model = tiny()
    tokens = torch.randint(256, (1, SEQ_LEN))
    changed = tokens.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 256
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.equal(before[:, 10:], after[:, 10:])


def test_the_first_loss_is_that_of_a_guess() -> None:
    tokens = torch.randint(256, (8, SEQ_LEN + 1))
    # logits of fresh weights have a deviation near 0.02 * sqrt(32): too small to move ln 256 by 1 %
    assert next_token_loss(tiny(), tokens).item() == pytest.approx(math.log(256), rel=0.01)


def test_the_same_seed_gives_the_same_weights() -> None:
    first, second, other = tiny(), tiny(), tiny(seed=1)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_residual_projections_start_narrower() -> None:
    model = GPT(GPTShape(layers=8, hidden=128, heads=2), SEQ_LEN)
    block = model.blocks[0]
    assert isinstance(block, Block)
    ratio = block.attention_out.weight.std() / block.qkv.weight.std()
    # 16,384 draws: the deviation of the estimated ratio is below 1 %
    assert ratio.item() == pytest.approx(1 / math.sqrt(2 * 8), rel=0.05)
    assert block.qkv.bias.abs().max().item() == 0


def test_the_loss_is_fp32_whatever_the_model_computes_in() -> None:
    model = tiny().to(torch.bfloat16)
    loss = next_token_loss(model, torch.randint(256, (2, SEQ_LEN + 1)))
    assert loss.dtype is torch.float32
    torch.autograd.backward(loss)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("values", [GPT2_CONFIG, LLAMA_CONFIG])
def test_a_hugging_face_model_trains_from_random_fp32_weights(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    spec = parse_model(config_file(tmp_path, values), seq_len=SEQ_LEN)
    torch.manual_seed(0)
    model = build_model(spec, seq_len=SEQ_LEN).train()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert count_parameters(spec, seq_len=SEQ_LEN) == sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(256, (4, SEQ_LEN + 1), generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(20):
        loss = next_token_loss(model, tokens)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(values["vocab_size"]), rel=0.05)
    assert losses[-1] < 0.9 * losses[0]  # one batch, seen twenty times


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": 100}, "vocab_size must be at least 256"),
        ({"n_positions": 8}, "use --seq 8 or shorter"),
        ({"model_type": "no-such-model"}, "transformers cannot build it"),
        ({"model_type": "t5"}, "transformers cannot build it"),
        ({"n_head": 5}, "transformers cannot build it"),
    ],
)
def test_a_config_that_cannot_serve_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    spec = parse_model(config_file(tmp_path, {**GPT2_CONFIG, **changes}), seq_len=SEQ_LEN)
    with pytest.raises(ConfigError, match=said):
        build_model(spec, seq_len=SEQ_LEN)


def test_code_that_a_config_points_to_is_never_run(tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    (tmp_path / "modeling_evil.py").write_text(f"open({str(proof)!r}, 'w').close()\n")
    values = {
        "model_type": "evil",
        "auto_map": {
            "AutoConfig": "modeling_evil.Config",
            "AutoModelForCausalLM": "modeling_evil.Model",
        },
    }
    spec = parse_model(config_file(tmp_path, values), seq_len=SEQ_LEN)
    with pytest.raises(ConfigError):
        build_model(spec, seq_len=SEQ_LEN)
    assert not proof.exists()


def test_without_transformers_it_says_what_to_install(tmp_path: Path) -> None:
    spec = parse_model(config_file(tmp_path, GPT2_CONFIG), seq_len=SEQ_LEN)
    with (
        mock.patch.dict(sys.modules, {"transformers": None}),
        pytest.raises(ConfigError, match=r"pip install 'thinwire\[hf\]'"),
    ):
        build_model(spec, seq_len=SEQ_LEN)
