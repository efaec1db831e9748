"""The run: every layer of every file, read once, sent in every format."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from thinwire.errors import ConfigError, InputError
from thinwire.inspection.distortion import distort
from thinwire.inspection.histogram import Histogram, spread
from thinwire.inspection.profile import profile
from thinwire.inspection.report import FileReport, Inspection, Layer
from thinwire.inspection.request import InspectRequest
from thinwire.inspection.stored import Source, StoredTensor

__all__ = ["NoProgress", "Progress", "inspect"]


class Progress(Protocol):
    """Is told what happens, in order."""

    def begin_file(self, label: str, elements: int) -> None:
        """A file of so many elements to be inspected."""

    def advance(self, elements: int) -> None:
        """So many more of them are done."""

    def end_file(self) -> None:
        """All of them are done."""


class NoProgress:
    """Shows nothing."""

    def begin_file(self, label: str, elements: int) -> None:
        """See :class:`Progress`."""

    def advance(self, elements: int) -> None:
        """See :class:`Progress`."""

    def end_file(self) -> None:
        """See :class:`Progress`."""


def inspect(
    sources: Sequence[Source], request: InspectRequest, progress: Progress | None = None
) -> Inspection:
    """Send every layer in every format and look at what arrives.

    Tensors are read one at a time; beside the largest one this takes a float32 copy of it and its
    payload.

    Args:
        sources: as `open_source` gives them.
        request: what to look at.
        progress: is told how far the work is.

    Raises:
        ConfigError: no layer of a file has a name that was asked for, or a pattern matches none.
        FormatError: a format cannot carry a layer of that shape.
        InputError: a source holds nothing that can be encoded.
    """
    chosen = [_choose(source, request) for source in sources]  # all before the long work begins
    request.check_matches([tensor for source in sources for tensor in source.tensors])
    return Inspection(
        formats=request.formats,
        ranking=request.ranking,
        files=tuple(
            _inspect_file(source, tensors, request, progress or NoProgress())
            for source, tensors in zip(sources, chosen, strict=True)
        ),
    )


def _choose(source: Source, request: InspectRequest) -> list[StoredTensor]:
    """The tensors to be inspected."""
    possible = [tensor for tensor in source.tensors if tensor.obstacle is None]
    if not possible:
        obstacles = sorted({tensor.obstacle or "" for tensor in source.tensors})
        raise InputError(
            f"{source.label}: holds no tensor that travels"
            f"{f' ({obstacles[0]})' if obstacles else ''}; give a checkpoint or a dump of gradients"
        )
    chosen = [tensor for tensor in possible if request.is_chosen(tensor.name)]
    if not chosen:
        raise ConfigError(
            f"{source.label}: no layer is called {' or '.join(request.patterns)}; there are for "
            f"example {', '.join(tensor.name for tensor in possible[:3])}"
        )
    for tensor in chosen:
        request.check_carries(tensor)
    return chosen


def _inspect_file(
    source: Source, tensors: list[StoredTensor], request: InspectRequest, progress: Progress
) -> FileReport:
    progress.begin_file(source.label, sum(tensor.numel for tensor in tensors))
    layers = []
    for tensor in tensors:
        layers.append(_inspect_layer(source, tensor, request))
        progress.advance(tensor.numel)
    report = FileReport(
        label=source.label,
        layers=tuple(layers),
        left_out=tuple(tensor for tensor in source.tensors if tensor.obstacle is not None),
        histograms=(),
    )
    worst = report.ranked(request.ranking)[: request.top]
    histograms = tuple(_spread(source, layer, request) for layer in worst)
    progress.end_file()
    return dataclasses.replace(report, histograms=histograms)


def _inspect_layer(source: Source, tensor: StoredTensor, request: InspectRequest) -> Layer:
    values = _read(source, tensor.name)
    before = profile(values)
    is_exact = request.is_exact(tensor)
    is_measured = not is_exact and not before.num_nonfinite
    return Layer(
        tensor=tensor,
        profile=before,
        is_exact=is_exact,
        distortions=tuple(
            distort(values, fmt, tensor.name, before) for fmt in request.formats if is_measured
        ),
    )


def _spread(source: Source, layer: Layer, request: InspectRequest) -> Histogram:
    """Reads the layer again: to keep all layers until the worst are known would take the memory."""
    return spread(_read(source, layer.name), request.ranking, layer.name, layer.profile)


def _read(source: Source, name: str) -> Tensor:
    """A tensor in a dtype that codecs take."""
    values = source.read(name).detach()
    return values.float() if values.dtype == torch.float64 else values
