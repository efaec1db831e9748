"""Good files of each kind that the planner reads, for tests to spoil."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["CELLS", "CLUSTER", "CONFIG", "CONFIGS", "toml"]

CLUSTER = """
[cluster]
hosts = 2
ranks_per_host = 1
shaped = true
[device]
preset = "cpu"
flop_per_s = { fp32 = 1e11, bf16 = 2e11 }
matmul_efficiency = [[1e6, 0.5], [1e8, 0.9]]
codec = { encode_copies = { int = 0.5 }, sum_copies = { cast = 0.4, fp8 = 0.3 } }
unit_s = { replicated = 0.0, hooked = 0.0, stock = 0.002, compressed = 0.003, resident = 0.004 }
parameter_s = { replicated = 0.0, hooked = 0.0, stock = 0.0, compressed = 1e-9, resident = 0.0 }
step_s = { replicated = 0.0, hooked = 0.0, stock = 0.0, compressed = 0.0, resident = 0.001 }
source = "calibrated: two cores"
[host]
memory_bytes = 24e9
disk_bytes_per_s = 1e9
source = "given"
[backend]
preset = "gloo"
call_s = 0.0
has_tree = false
reduce_scatter_passes = 2
shares = { all_gather = [[1e4, 1.0], [1e6, 0.7]], rounds = [[1e4, 0.9]] }
calls_s = { all_gather = 1e-3, rounds = 1e-4 }
source = "calibrated"
[link]
bit_per_s = 2e8
latency_s = 1e-4
loss = 0.001
protocol = "tcp"
efficiency = [[1e4, 0.9]]
source = "calibrated"
"""

CONFIG: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "vocab_size": 100,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

CONFIGS: dict[str, dict[str, Any]] = {
    "mixtral": CONFIG,
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_inner": 96,
        "n_positions": 32,
        "vocab_size": 100,
        "attn_pdrop": 0.1,
    },
    "gpt_neox": {
        "model_type": "gpt_neox",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "attention_bias": True,
    },
    "bert": {
        "model_type": "bert",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "type_vocab_size": 2,
        "max_position_embeddings": 64,
        "hidden_dropout_prob": 0.1,
    },
    "t5": {
        "model_type": "t5",
        "d_model": 64,
        "d_kv": 8,
        "d_ff": 96,
        "num_layers": 3,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "vocab_size": 100,
        "relative_attention_num_buckets": 16,
        "feed_forward_proj": "relu",
    },
    "vit": {
        "model_type": "vit",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
        "num_channels": 3,
        "num_labels": 10,
        "qkv_bias": True,
    },
}

CELLS = {
    "hosts": 2,
    "ranks_per_host": 1,
    "model": "gpt:2x64x2",
    "seq": 32,
    "micro_batch": 1,
    "hardware": "lab.toml",
    "link": {"measured_bit_per_s": 2e8},
    "runs": [{"recipe": "zero3", "step_s": {"median": 0.1}}],
}


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value) if isinstance(value, (bool, str)) else str(value)
