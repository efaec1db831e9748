"""What every codec can do: encode into given bytes, decode, and decode while summing.

A codec is made for one format and holds no state; `thinwire.wire.registry.codec_for` picks the one
for a device. The public methods here check their arguments once, so that a family or a kernel only
writes the arithmetic, in `_encode`, `_decode` and `_decode_sum`. They allocate no results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from thinwire.errors import ConfigError
from thinwire.formats import WireFormat
from thinwire.wire.key import Key

__all__ = ["FLOAT_DTYPES", "Codec", "mark_written", "require_tensor"]

FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ALIGNMENT_BYTES = 4


class Codec(ABC):
    """Turns flat tensors into payloads of one format and back.

    Laws, for every codec: the payload has exactly ``format.wire_bytes(numel)`` bytes and depends on
    the values, the format and the key alone; a finite value decodes to a finite value; a block that
    holds a NaN or an Inf decodes to NaN in all its elements (a cast: in the element concerned).
    """

    def __init__(self, fmt: WireFormat) -> None:
        self.format = fmt
        # The parameters of a model come again in every step.
        self._wire_bytes = lru_cache(maxsize=4096)(fmt.wire_bytes)

    def encode_into(self, x: Tensor, out: Tensor, key: Key | None = None) -> None:
        """Write the payload of ``x`` into ``out``.

        Args:
            x: values, 1-D and contiguous; float32, bfloat16 or float16.
            out: uint8, 1-D and contiguous, exactly ``format.wire_bytes(x.numel())`` bytes, starting
                at a multiple of four bytes.
            key: names the random numbers; required when ``format.is_stochastic``.

        Raises:
            ConfigError: a tensor is not as described, or the key is missing.
        """
        _check_values("x", x)
        self._check_payload("out", out, x)
        if not isinstance(key, Key | None):
            raise ConfigError(f"a key is a Key(seed, step, parameter, rank), not {key!r}")
        if key is None and self.format.is_stochastic:
            raise ConfigError(
                f"{self.format} rounds at random and needs a key: pass key=Key(seed, step, "
                "parameter, rank)"
            )
        if x.numel():
            self._encode(x, out, key or Key())
            mark_written(out)

    def decode_into(self, payload: Tensor, out: Tensor) -> None:
        """Write the values of ``payload`` into ``out``.

        Args:
            payload: uint8, 1-D, exactly ``format.wire_bytes(out.numel())`` bytes.
            out: 1-D and contiguous; float32, or bfloat16 or float16 rounded to nearest, where a
                finite value beyond the range of the type becomes its largest one.

        Raises:
            ConfigError: a tensor is not as described.
        """
        _check_values("out", out)
        self._check_payload("payload", payload, out)
        if out.numel():
            self._decode(payload, out)
            mark_written(out)

    def decode_sum_into(self, payloads: Sequence[Tensor], out: Tensor) -> None:
        """Write the sum of several payloads into ``out``.

        The sum is ``((p[0] + p[1]) + p[2]) + ...`` in float32, in the order given: with payloads in
        rank order, every rank that sums them holds the same bits.

        Args:
            payloads: at least one, each as for `decode_into`.
            out: float32, 1-D and contiguous.

        Raises:
            ConfigError: a tensor is not as described, or there is no payload.
        """
        _check_values("out", out)
        if out.dtype != torch.float32:
            raise ConfigError(f"sums are kept in torch.float32: out must not be {out.dtype}")
        if not payloads:
            raise ConfigError("a sum needs at least one payload: there is none")
        for index, payload in enumerate(payloads):
            self._check_payload(f"payloads[{index}]", payload, out)
        if out.numel():
            self._decode_sum(payloads, out)
            mark_written(out)

    @abstractmethod
    def _encode(self, x: Tensor, out: Tensor, key: Key) -> None:
        """`encode_into` for at least one element, arguments checked."""

    @abstractmethod
    def _decode(self, payload: Tensor, out: Tensor) -> None:
        """`decode_into` for at least one element, arguments checked."""

    @abstractmethod
    def _decode_sum(self, payloads: Sequence[Tensor], out: Tensor) -> None:
        """`decode_sum_into` for at least one element, arguments checked."""

    def _check_payload(self, name: str, payload: Tensor, values: Tensor) -> None:
        require_tensor(name, payload)
        if payload.dtype != torch.uint8 or payload.dim() != 1 or not payload.is_contiguous():
            raise ConfigError(
                f"{name} must be a contiguous 1-D uint8 tensor, not {payload.dtype} of shape "
                f"{tuple(payload.shape)}"
            )
        needed_bytes = self._wire_bytes(values.numel())
        if payload.numel() != needed_bytes:
            raise ConfigError(
                f"{name} has {payload.numel()} bytes, but {values.numel()} elements in "
                f"{self.format} take {needed_bytes}: use format.wire_bytes(numel)"
            )
        if payload.device != values.device:
            raise ConfigError(
                f"{name} is on {payload.device} and the values are on {values.device}: "
                "move them to the same device"
            )
        if payload.storage_offset() % _ALIGNMENT_BYTES:
            raise ConfigError(
                f"{name} starts {payload.storage_offset()} bytes into its storage: payloads start "
                f"at multiples of {_ALIGNMENT_BYTES} bytes, which wire_bytes keeps when they are "
                "laid one after another"
            )


def mark_written(out: Tensor) -> None:
    """Tell autograd that a kernel, which it does not see, has written into a tensor.

    Where the old numbers were saved for a backward, it then says so instead of using the new ones.
    """
    if not out.is_inference():  # of such a tensor nothing is ever saved
        increment_version(out)


def require_tensor(name: str, values: object) -> None:
    """Refuse what is no dense tensor."""
    if not isinstance(values, Tensor):
        raise ConfigError(
            f"{name} must be a torch.Tensor, not {type(values).__name__}: convert it with "
            "torch.as_tensor"
        )
    if values.is_nested:
        raise ConfigError(f"{name} is a nested tensor: pass one of {name}.unbind() at a time")
    if values.layout != torch.strided:
        kind = "a sparse tensor" if "sparse" in str(values.layout) else f"of {values.layout}"
        raise ConfigError(f"{name} is {kind}: pass {name}.to_dense()")


def _check_values(name: str, values: Tensor) -> None:
    require_tensor(name, values)
    if values.dtype not in FLOAT_DTYPES:
        accepted = ", ".join(str(dtype) for dtype in FLOAT_DTYPES)
        raise ConfigError(f"{name} has dtype {values.dtype}: convert it to one of {accepted}")
    if values.dim() != 1 or not values.is_contiguous():
        raise ConfigError(
            f"{name} must be 1-D and contiguous, not of shape {tuple(values.shape)} with strides "
            f"{values.stride()}: pass {name}.contiguous().view(-1)"
        )
    if values.is_neg():  # its memory holds the numbers before their signs were changed
        raise ConfigError(f"{name} is a view that negates: pass {name}.resolve_neg()")
