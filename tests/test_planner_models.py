"""Models: the same parameters, name by name, as the modules they stand for, and the same FLOPs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from planner_settings import accelerators
from thinwire.errors import ConfigError
from thinwire.planner.models import config_workload, parse_model, preset_names
from thinwire.planner.models.config import ModelConfig
from thinwire.planner.models.gpt import GPTShape, gpt_workload, nearest_shape
from thinwire.planner.models.t5 import ACTIVATIONS
from thinwire.planner.models.traced import trace_module
from thinwire.planner.prediction import predict
from thinwire.planner.workload import Workload
from thinwire.recipes import parse_recipe
from thinwire.train.model_spec import PRESETS
from thinwire.train.model_spec import parse_model as parse_spec
from thinwire.train.models import build_model

TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 100}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 32}
ENCODER = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
ENCODER |= {"num_attention_heads": 4}
T5 = {"d_model": 64, "d_kv": 8, "d_ff": 96, "num_layers": 3, "num_heads": 4, "vocab_size": 100}

CONFIGS: list[dict[str, Any]] = [
    {"model_type": "llama", **TINY},
    {"model_type": "llama", **TINY, "attention_bias": True, "mlp_bias": True},
    {"model_type": "llama", **TINY, "tie_word_embeddings": True, "head_dim": 24},
    {"model_type": "mistral", **TINY},
    {"model_type": "qwen2", **TINY},
    {"model_type": "qwen3", **TINY, "head_dim": 32},
    {"model_type": "gemma", **TINY, "head_dim": 32},
    {"model_type": "mixtral", **TINY, "num_local_experts": 4, "num_experts_per_tok": 2},
    {"model_type": "gpt2", **GPT2},
    {"model_type": "gpt2", **GPT2, "n_inner": 100, "tie_word_embeddings": False},
    {"model_type": "gpt_neox", **ENCODER, "vocab_size": 100},
    {"model_type": "bert", **ENCODER, "vocab_size": 100},
    {"model_type": "t5", **T5},
    {"model_type": "t5", **T5, "num_decoder_layers": 1, "feed_forward_proj": "gated-gelu"},
    {"model_type": "vit", **ENCODER, "image_size": 32, "patch_size": 8},
]

# published sizes of the presets, in parameters
REAL = {
    "gpt2": 124_439_808,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2-7b": 7_615_616_512,
}


def shapes_of(workload: Workload) -> dict[str, tuple[int, ...]]:
    return {
        name: parameter.shape
        for layer in (workload.root, *workload.layers)
        for index in range(layer.start, layer.start + layer.count)
        for name, parameter in zip(layer.parameter_names(index), layer.parameters, strict=True)
    }


def build_on_meta(config: dict[str, Any]) -> torch.nn.Module:
    transformers = pytest.importorskip("transformers", reason="the optional extra hf is missing")
    special = {
        "bert": transformers.AutoModelForMaskedLM,
        "t5": transformers.AutoModelForSeq2SeqLM,
        "vit": transformers.AutoModelForImageClassification,
    }
    kind = special.get(config["model_type"], transformers.AutoModelForCausalLM)
    values = {key: value for key, value in config.items() if key != "model_type"}
    values |= {"bos_token_id": 0, "eos_token_id": 0}  # gpt2's defaults lie outside 100 tokens
    with torch.device("meta"):
        module: torch.nn.Module = kind.from_config(
            transformers.AutoConfig.for_model(config["model_type"], **values)
        )
    return module


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["model_type"])
def test_parameters_are_those_of_transformers(config: dict[str, Any]) -> None:
    workload = config_workload(ModelConfig("model", config), tokens=16)
    built = {name: tuple(p.shape) for name, p in build_on_meta(config).named_parameters()}
    assert shapes_of(workload) == built
    assert workload.num_parameters == sum(torch.Size(shape).numel() for shape in built.values())


@pytest.mark.parametrize("preset", REAL)
def test_presets_have_their_published_size(preset: str) -> None:
    assert parse_model(preset, tokens=1024).num_parameters == REAL[preset]


@pytest.mark.parametrize("preset", ["llama-2-7b", "mixtral-8x7b"])
def test_real_sizes_are_those_of_transformers(preset: str) -> None:
    import tomllib

    from thinwire.planner import models

    path = Path(models.__file__).parent / "presets.toml"
    config = tomllib.loads(path.read_text())["configs"][preset]
    built = sum(p.numel() for p in build_on_meta(config).parameters())
    assert parse_model(preset, tokens=16).num_parameters == built


@pytest.mark.parametrize("text", ["gpt:2x64x2", "gpt:3x96x4", *PRESETS, "25M"])
def test_gpt_is_the_trainers(text: str) -> None:
    with torch.device("meta"):
        module = build_model(parse_spec(text, seq_len=48), seq_len=48)
    workload = parse_model(text, tokens=48)
    assert shapes_of(workload) == {n: tuple(p.shape) for n, p in module.named_parameters()}


@pytest.mark.parametrize("size", [3_000_000, 25_000_000, 1_300_000_000])
def test_a_number_means_a_gpt_of_about_that_size(size: int) -> None:
    shape = nearest_shape(size, tokens=128)
    # widths go in steps of a head: at 25M that is 1/6 of a width of 384, so the nearest of all
    # depths is within a few per cent
    assert shape.num_parameters(128) == pytest.approx(size, rel=0.08)
    assert parse_model(str(size), tokens=128).num_parameters == shape.num_parameters(128)


@pytest.mark.parametrize("text", ["2x64x2", " 3x96x4 "])
def test_a_shape_needs_no_prefix(text: str) -> None:
    named = f"gpt:{text.strip()}"
    assert parse_model(text, tokens=48) == parse_model(named, tokens=48)
    assert parse_spec(text.strip(), seq_len=48) == parse_spec(named, seq_len=48)


@pytest.mark.parametrize("text", ["25M", "1.3B", "1e9"])
def test_a_shape_that_is_assumed_is_told(text: str) -> None:
    workload = parse_model(text, tokens=128)
    (told,) = workload.assumptions
    assert f"{workload.name} is assumed" in told
    assert f"nearest to {text} parameters" in told
    assert parse_model(workload.name, tokens=128).assumptions == ()


def test_a_trillion_parameters_are_within_a_percent() -> None:
    workload = parse_model("1T", tokens=2048)
    assert workload.num_parameters == pytest.approx(1e12, rel=0.01)


def test_flops_are_the_published_formula() -> None:
    """Forward and backward are 72 s l h^2 (1 + s/(6h) + V/(12 l h)) FLOPs (arXiv 2104.04473)."""
    layers, hidden, tokens, vocabulary = 24, 2048, 2048, 50304
    shape = GPTShape(layers=layers, hidden=hidden, heads=16, vocabulary=vocabulary, tied=True)
    workload = gpt_workload(shape, tokens=tokens)
    published = 1 + tokens / (6 * hidden) + vocabulary / (12 * layers * hidden)
    published *= 72 * tokens * layers * hidden**2
    assert 3 * workload.forward_flops == pytest.approx(published, rel=1e-12)


def test_flops_are_those_that_torch_counts() -> None:
    """Counted on the meta device; torch counts attention's whole square, as we do."""
    with torch.device("meta"):
        module = build_model(parse_spec("gpt:2x64x2", seq_len=32), seq_len=32)
        traced = trace_module(module, torch.zeros(1, 32, dtype=torch.int64))
    workload = parse_model("gpt:2x64x2", tokens=32)
    # the trace ends at the logits, and so does the formula: the loss has no matrix product
    assert traced.forward_flops == workload.forward_flops
    assert shapes_of(traced) == shapes_of(workload)


def test_traced_activations_are_those_of_the_operations() -> None:
    """To the byte, but that attention on the meta device is plain: no kernel is chosen there.

    Plain, it keeps the square of scores twice, before and after the softmax, and no log-sum-exp.
    """
    heads, tokens = 4, 64
    with torch.device("meta"):
        module = build_model(parse_spec(f"gpt:2x128x{heads}", seq_len=tokens), seq_len=tokens)
        traced = trace_module(module, torch.zeros(1, tokens, dtype=torch.int64))
    workload = parse_model(f"gpt:2x128x{heads}", tokens=tokens)
    fused = sum(operation.saved_in_bytes(4) for operation in workload.layers[0].operations)
    plain = fused - 4 * heads + 2 * 4 * heads * tokens
    assert traced.layers[-1].operations[0].saved_in_bytes(4) == plain


def test_active_parameters_leave_idle_experts_out() -> None:
    dense = parse_model("mistral-7b", tokens=16)
    mixture = parse_model("mixtral-8x7b", tokens=16)
    assert dense.active_parameters == dense.num_parameters
    # published: 12.9B of 46.7B active
    assert mixture.active_parameters == pytest.approx(12.9e9, rel=0.01)


def test_the_checkpoints_dtype_is_honoured() -> None:
    config = {"model_type": "llama", **TINY}
    for text, dtype in (("bfloat16", "bf16"), ("torch.float16", "fp16"), ("float32", "fp32")):
        found = config_workload(ModelConfig("m", {**config, "torch_dtype": text}), tokens=8)
        assert found.dtype == dtype
    with pytest.raises(ConfigError, match="dtype 'int8' is not one of float32"):
        config_workload(ModelConfig("m", {**config, "dtype": "int8"}), tokens=8)


def test_a_folder_and_a_file_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **TINY}))
    from_folder = parse_model(str(tmp_path), tokens=8)
    assert from_folder == parse_model(str(tmp_path / "config.json"), tokens=8)
    assert from_folder.name == tmp_path.name


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hidden_size": None}, "needs 'hidden_size'; add it"),
        ({"hidden_size": 0}, "hidden_size = 0 is not a whole number above zero"),
        ({"hidden_size": 65}, "does not divide hidden_size = 65"),
        ({"num_key_value_heads": 3}, "does not divide num_attention_heads = 4"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers = 'two' is not a whole number"),
        ({"model_type": "mamba"}, "model_type 'mamba' is not known; known are llama"),
        ({"model_type": None}, "names no model_type"),
        ({"attention_bias": 3}, "attention_bias = 3 is neither true nor false"),
        ({"model_type": ["llama"]}, r"model_type = \['llama'\] is not a text, such as 'llama'"),
        ({"num_hidden_layers": 2001}, "num_hidden_layers = 2001 is too large: give 2,000 or less"),
        ({"torch_dtype": ["float32"]}, r"torch_dtype \['float32'\] is not one of float32"),
        (
            {"num_attention_heads": 3, "num_key_value_heads": 8},
            "num_key_value_heads = 8 does not divide num_attention_heads = 3, and "
            "num_attention_heads = 3 does not divide hidden_size = 64; correct",
        ),
    ],
)
def test_a_wrong_config_says_what_is_wrong(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        config_workload(ModelConfig("m", {"model_type": "llama", **TINY, **change}), tokens=8)


RATES = {
    "llama": ["attention_dropout"],
    "mistral": ["attention_dropout"],
    "qwen2": ["attention_dropout"],
    "qwen3": ["attention_dropout"],
    "gemma": ["attention_dropout"],
    "mixtral": ["attention_dropout"],
    "gpt2": ["attn_pdrop", "resid_pdrop", "embd_pdrop"],
    "gpt_neox": ["attention_dropout", "hidden_dropout"],
    "bert": ["attention_probs_dropout_prob", "hidden_dropout_prob"],
    "t5": ["dropout_rate"],
    "vit": ["attention_probs_dropout_prob", "hidden_dropout_prob"],
}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["model_type"])
@pytest.mark.parametrize("rate", [2.0, -1, 1.01, float("nan"), float("inf"), True, "0.1", [0.1]])
def test_every_rate_of_dropout_lies_between_0_and_1(config: dict[str, Any], rate: Any) -> None:
    for key in RATES[config["model_type"]]:
        with pytest.raises(ConfigError, match=f"{key} = .* is not a number from 0 to 1"):
            config_workload(ModelConfig("m", {**config, key: rate}))
        for fine in (None, 0, 0.1, 1):
            config_workload(ModelConfig("m", {**config, key: fine}))


def test_the_activations_of_t5_are_those_of_transformers() -> None:
    activations = pytest.importorskip("transformers.activations", reason="the extra hf is missing")
    assert set(ACTIVATIONS) <= set(activations.ACT2FN)
    for text in ("banana", "gated-banana", "gated", "gated-", "", "relu-gated", "gated-gelu-x"):
        with pytest.raises(ConfigError, match=r"feed_forward_proj = '.*' is not known; use relu"):
            config_workload(ModelConfig("m", {"model_type": "t5", **T5, "feed_forward_proj": text}))
    for text in ("relu", "gated-silu", "gelu_new", "gated-gelu"):
        config = {"model_type": "t5", **T5, "feed_forward_proj": text}
        assert config_workload(ModelConfig("m", config)).num_parameters


@pytest.mark.parametrize(("image", "patch", "patches"), [(32, 8, 16), (35, 8, 16), (8, 8, 1)])
def test_the_edges_of_an_image_that_fill_no_patch_are_left_out(
    image: int, patch: int, patches: int
) -> None:
    config = {"model_type": "vit", **ENCODER, "image_size": image, "patch_size": patch}
    assert config_workload(ModelConfig("m", config)).tokens == patches + 1


LEARNED = [
    ({"model_type": "gpt2", **GPT2}, 32),
    ({"model_type": "gpt2", **GPT2, "n_positions": 4096}, 4096),
    ({"model_type": "bert", **ENCODER, "vocab_size": 100}, 512),
    ({"model_type": "bert", **ENCODER, "vocab_size": 100, "max_position_embeddings": 20}, 20),
    ({"model_type": "vit", **ENCODER, "image_size": 32, "patch_size": 8}, 17),
]


@pytest.mark.parametrize(("config", "positions"), LEARNED)
def test_no_sequence_is_longer_than_learned_positions(
    config: dict[str, Any], positions: int
) -> None:
    made = ModelConfig("m", config)
    assert config_workload(made, tokens=positions).tokens == positions
    told = f"m: has {positions} positions; use --seq {positions} or shorter"
    with pytest.raises(ConfigError, match=told):
        config_workload(made, tokens=positions + 1)
    assert config_workload(made).tokens == min(2048, positions)


def test_every_family_with_a_table_of_positions_is_among_them() -> None:
    families = {config["model_type"] for config, _ in LEARNED}
    for config in CONFIGS:
        shapes = shapes_of(config_workload(ModelConfig("m", config)))
        has_table = any(re.search(r"wpe|position_embedding", name) for name in shapes)
        assert has_table == (config["model_type"] in families), config
        if not has_table:
            assert config_workload(ModelConfig("m", config)).tokens == 2048


def test_a_sequence_that_was_not_asked_for_is_told() -> None:
    told = parse_model("gpt2").assumptions
    assert told == ("Sequences of 1024 tokens, all positions that the model has.",)
    assert parse_model("gpt2", tokens=1024).assumptions == ()
    assert parse_model("llama-2-7b").assumptions == ()
    vit = ModelConfig("m", {"model_type": "vit", **ENCODER, "image_size": 32, "patch_size": 8})
    (told_of_image,) = config_workload(vit, tokens=8).assumptions
    assert "17 tokens, as the image" in told_of_image
    assert config_workload(vit).assumptions == ()


@pytest.mark.parametrize(("image", "patch"), [(10**9, 1), (10**9, 8), (31_623, 1)])
def test_an_image_of_more_tokens_than_are_planned_is_refused(image: int, patch: int) -> None:
    config = {"model_type": "vit", **ENCODER, "image_size": image, "patch_size": patch}
    told = f"m: tokens of image_size = {image} in patches of {patch} = .* is too large"
    with pytest.raises(ConfigError, match=told):
        config_workload(ModelConfig("m", config))
    near = {**config, "image_size": 31_622 * patch}  # the largest square below 1e9
    assert config_workload(ModelConfig("m", near)).tokens == 31_622**2 + 1


def test_a_patch_larger_than_the_image_is_refused() -> None:
    config = {"model_type": "vit", **ENCODER, "image_size": 8, "patch_size": 9}
    with pytest.raises(ConfigError, match="patch_size = 9 is larger than image_size = 8"):
        config_workload(ModelConfig("m", config), tokens=8)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gpt:2x64", "write gpt:LAYERSxHIDDENxHEADS"),
        ("gpt:2x65x4", "4 heads do not divide a hidden size of 65; take another, such as 64"),
        ("gpt:2.5x64x4", "write gpt:LAYERSxHIDDENxHEADS in whole numbers"),
        ("gpt:2001x64x4", "layers = 2001 is too large: give 2,000 or less"),
        ("2x65x4", "4 heads do not divide a hidden size of 65"),
        ("2x64", "not known; use gpt:LAYERSxHIDDENxHEADS"),
        ("gpt:0x64x4", "layers must be at least 1"),
        ("no-such-model", "not known; use gpt:LAYERSxHIDDENxHEADS, a preset"),
        ("no/such/config.json", "cannot be read"),
        ("1", "the nearest GPT"),
    ],
)
def test_a_wrong_model_says_what_to_write(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_model(text, tokens=64)


def test_broken_files_are_refused(tmp_path: Path) -> None:
    for content, told in (("{", "not a JSON file"), ("[1]", "holds no JSON object")):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ConfigError, match=told):
            parse_model(str(tmp_path), tokens=8)


def test_a_module_without_blocks_is_planned_as_one_unit() -> None:
    with torch.device("meta"):
        module = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
        workload = trace_module(module, torch.zeros(1, 32, 64))
    assert workload.num_layers == 0
    assert workload.num_parameters == sum(p.numel() for p in module.parameters())
    prediction = predict(replace(accelerators(), workload=workload), parse_recipe("zero3"))
    assert prediction.step_s > 0
    assert prediction.memory.device.activations > 0


def test_tracing_refuses_real_tensors() -> None:
    with pytest.raises(ConfigError, match="traced on the meta device"):
        trace_module(torch.nn.Linear(2, 2), torch.zeros(1, 2))


def test_presets_do_not_hide_each_other() -> None:
    assert len(set(preset_names())) == len(preset_names())
    assert set(PRESETS) <= set(preset_names())
