"""What an inspection found: layers, files, and all of them together."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

from thinwire.formats import WireFormat
from thinwire.inspection.distortion import HURT_ERROR, Distortion, snr_db
from thinwire.inspection.histogram import Histogram
from thinwire.inspection.profile import Profile
from thinwire.inspection.stored import StoredTensor

__all__ = ["FileReport", "FormatTotal", "Inspection", "Layer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One tensor.

    Attributes:
        tensor: its name, shape and dtype.
        profile: what it is like.
        is_exact: whether it travels uncompressed; then nothing was measured.
        distortions: what each format does to it, in the order of the formats; empty if it travels
            exactly, or holds NaN or Inf.
    """

    tensor: StoredTensor
    profile: Profile
    is_exact: bool
    distortions: tuple[Distortion, ...]

    @property
    def name(self) -> str:
        """Its name in the file."""
        return self.tensor.name

    def under(self, fmt: WireFormat) -> Distortion:
        """What a format does to it; the layer was measured."""
        (found,) = (item for item in self.distortions if item.format == fmt)
        return found

    def to_json(self) -> dict[str, Any]:
        """The row of the JSON document."""
        return {
            "name": self.name,
            "shape": list(self.tensor.shape),
            "dtype": self.tensor.dtype,
            "elements": self.tensor.numel,
            "stored_bytes": self.tensor.stored_bytes,
            "exact": self.is_exact,
            "nonfinite": self.profile.num_nonfinite,
            "rms": self.profile.rms,
            "largest": self.profile.largest,
            "zeros": self.profile.zeros,
            "formats": [item.to_json() for item in self.distortions],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatTotal:
    """What a format does to all measured layers of a file.

    Attributes:
        format: the format.
        wire_bytes: all payloads.
        bits_per_element: the same per element.
        relative_error: of all elements as one long vector.
        median_error: the median of the layers' relative errors.
        zeros_before: the share of zeros in the file.
        zeros_after: the share of elements that arrive as zero.
        largest_bias: the mean bias of the layer where its magnitude is largest.
        hurt: names of the layers that the format hurts, worst first.
    """

    format: WireFormat
    wire_bytes: int
    bits_per_element: float
    relative_error: float
    median_error: float
    zeros_before: float
    zeros_after: float
    largest_bias: float
    hurt: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The row of the JSON document."""
        return {
            "format": str(self.format),
            "wire_bytes": self.wire_bytes,
            "bits_per_element": self.bits_per_element,
            "relative_error": self.relative_error,
            "median_relative_error": self.median_error,
            "snr_db": snr_db(self.relative_error),
            "zeros_before": self.zeros_before,
            "zeros_after": self.zeros_after,
            "largest_mean_bias": self.largest_bias,
            "hurt": list(self.hurt),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """One file, or the files of one checkpoint.

    Attributes:
        label: what the user called it.
        layers: what was inspected, in the file's order.
        left_out: what was not, with the obstacle that each has.
        histograms: of the worst layers, worst first.
    """

    label: str
    layers: tuple[Layer, ...]
    left_out: tuple[StoredTensor, ...]
    histograms: tuple[Histogram, ...]

    @property
    def measured(self) -> tuple[Layer, ...]:
        """The layers that were sent in every format."""
        return tuple(layer for layer in self.layers if layer.distortions)

    @property
    def exact(self) -> tuple[Layer, ...]:
        """The layers that travel uncompressed."""
        return tuple(layer for layer in self.layers if layer.is_exact)

    @property
    def nonfinite(self) -> tuple[Layer, ...]:
        """The layers that hold NaN or Inf."""
        return tuple(layer for layer in self.layers if layer.profile.num_nonfinite)

    def ranked(self, fmt: WireFormat) -> tuple[Layer, ...]:
        """The measured layers, the one that loses most first."""
        return tuple(
            sorted(self.measured, key=lambda layer: layer.under(fmt).relative_error, reverse=True)
        )

    def total(self, fmt: WireFormat) -> FormatTotal:
        """What a format does to all of them; at least one was measured."""
        ranked = self.ranked(fmt)
        pairs = [(layer.profile, layer.under(fmt)) for layer in ranked]
        numel = sum(profile.numel for profile, _ in pairs)
        energy = sum(profile.energy for profile, _ in pairs)
        lost = sum(profile.energy * item.relative_error**2 for profile, item in pairs)
        wire_bytes = sum(item.wire_bytes for _, item in pairs)
        return FormatTotal(
            format=fmt,
            wire_bytes=wire_bytes,
            bits_per_element=8 * wire_bytes / numel,
            relative_error=math.sqrt(lost / energy) if energy else 0.0,
            median_error=statistics.median(item.relative_error for _, item in pairs),
            zeros_before=sum(profile.num_zeros for profile, _ in pairs) / numel,
            zeros_after=sum(profile.numel * item.zeros for profile, item in pairs) / numel,
            largest_bias=max((item.mean_bias for _, item in pairs), key=abs),
            hurt=tuple(layer.name for layer in ranked if layer.under(fmt).hurts),
        )

    def to_json(self, formats: tuple[WireFormat, ...]) -> dict[str, Any]:
        """The file's part of the JSON document."""
        return {
            "file": self.label,
            "elements": sum(layer.tensor.numel for layer in self.layers),
            "stored_bytes": sum(layer.tensor.stored_bytes for layer in self.layers),
            "exact_bytes": sum(layer.tensor.stored_bytes for layer in self.exact),
            "formats": [self.total(fmt).to_json() for fmt in formats] if self.measured else [],
            "layers": [layer.to_json() for layer in self.layers],
            "histograms": [histogram.to_json() for histogram in self.histograms],
            "left_out": [
                {
                    "name": tensor.name,
                    "shape": list(tensor.shape),
                    "dtype": tensor.dtype,
                    "reason": tensor.obstacle,
                }
                for tensor in self.left_out
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """All files.

    Attributes:
        formats: what every layer was sent in.
        ranking: the format by which layers are ranked.
        files: at least one.
    """

    formats: tuple[WireFormat, ...]
    ranking: WireFormat
    files: tuple[FileReport, ...]

    def to_json(self) -> dict[str, Any]:
        """The document that ``--json`` prints; all numbers are finite."""
        return {
            "formats": [str(fmt) for fmt in self.formats],
            "ranked_by": str(self.ranking),
            "hurt_above": HURT_ERROR,
            "files": [file.to_json(self.formats) for file in self.files],
        }
