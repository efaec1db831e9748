"""The compiled reference equals the reference, bit for bit, through the compiler's CPU backend."""

from __future__ import annotations

import os
import shutil

import pytest
import torch
from torch import Tensor

from thinwire.formats import parse_format
from thinwire.wire import Key
from thinwire.wire.kernels.accelerator import accelerated, can_compile
from thinwire.wire.reference.blocked import BlockedReference
from thinwire.wire.reference.casts import CastReference
from thinwire.wire.reference.float8 import Float8Reference
from thinwire.wire.reference.logarithmic import LogReference
from thinwire.wire.reference.sign import SignReference
from thinwire.wire.reference.uniform import uniform_reference
from wire_cases import CPU, KEY, decoded, encoded

# torch's own compiler still uses what torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
needs_compiler = pytest.mark.skipif(
    all(shutil.which(name) is None for name in (os.environ.get("CXX", "g++"), "clang++")),
    reason="torch.compile needs a C++ compiler on a CPU: install g++",
)

# One of each arithmetic; compiling takes seconds apiece. The five stages of +hadamard take this
# backend twenty: benchmarks/kernels/accelerator.py compares them on a real accelerator.
CODECS = {
    "int4/32": uniform_reference,
    "int3/32+asym+bf16scale": uniform_reference,
    "int8/32+stochastic": uniform_reference,
    "int5/32+shift": uniform_reference,
    "e4m3/32": Float8Reference,
    "e5m2/32": Float8Reference,
    "log4/32": LogReference,
    "log4/32+stochastic": LogReference,
    "sign/32": SignReference,
}


def _pair(text: str) -> tuple[BlockedReference, BlockedReference]:
    fmt = parse_format(text)
    plain, fused = CODECS[text](fmt), CODECS[text](fmt)
    assert isinstance(plain, BlockedReference)
    assert isinstance(fused, BlockedReference)
    fused.fuse()
    return plain, fused


def _values(numel: int) -> Tensor:
    generator = torch.Generator().manual_seed(numel)
    values = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()
    values[numel // 2] = torch.nan
    return values


@needs_compiler
@pytest.mark.parametrize("text", CODECS)
def test_the_same_bytes_and_the_same_values(text: str) -> None:
    plain, fused = _pair(text)
    for numel, key in ((32 * 50, KEY), (32 * 70 + 9, Key(seed=123))):
        x = _values(numel)
        payload = encoded(fused, x, key)
        assert torch.equal(payload, encoded(plain, x, key))
        expected = decoded(plain, payload, numel, torch.float32)
        out = decoded(fused, payload, numel, torch.float32)
        assert torch.equal(out.nan_to_num(), expected.nan_to_num())
        assert torch.equal(out.isnan(), expected.isnan())


@needs_compiler
def test_another_size_or_key_compiles_nothing_again() -> None:
    reference, fused = _pair("int8/32+stochastic")
    encoded(fused, _values(32 * 50))
    x, key = _values(32 * 77 + 5), Key(seed=5, step=9)
    with torch.compiler.set_stance("fail_on_recompile"):
        payload = encoded(fused, x, key)
    assert torch.equal(payload, encoded(reference, x, key))


def test_what_is_compiled() -> None:
    assert can_compile(uniform_reference(parse_format("int4")))
    assert not can_compile(uniform_reference(parse_format("int4+clip=99")))
    assert not can_compile(uniform_reference(parse_format("int4+levels")))
    assert not can_compile(CastReference(parse_format("bf16")))


def test_without_the_compilers_backend_the_codec_serves_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    codec = accelerated(uniform_reference(parse_format("int4/32")))
    x = torch.linspace(-1, 1, 100)
    assert encoded(codec, x).numel() == codec.format.wire_bytes(100)
    assert codec.format.wire_bytes(100) < 100
    assert x.device == CPU
