"""When DDP reduces: not layer by layer, but whenever a bucket of gradients is full.

    backward     wire     [   bucket 1   ][ bucket 2 ]    [ the last one ]
                 compute  [b5   ][b4   ][b3   ][b2   ][b1   ]

Gradients enter a bucket in the order in which backward makes them, and one that it overfills
belongs to it still. The first bucket is small, so that the wire starts early (arXiv 2006.15704,
section 3.2). A model of one bucket is reduced after backward. A bucket is one call, which starts
once, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from thinwire.planner.timeline import LayerTimes
from thinwire.planner.workload import Layer

__all__ = ["BUCKET_BYTES", "in_buckets"]

# DDP's own defaults
FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


@dataclass(slots=True)
class _Bucket:
    """The bucket that is being filled.

    Attributes:
        limit_bytes: when it is full.
        filled_bytes: so far.
        moving_s: wire of the gradients in it, that their bytes take.
        start_s: wire that its one reduction takes besides.
    """

    limit_bytes: int = FIRST_BUCKET_BYTES
    filled_bytes: float = 0.0
    moving_s: float = 0.0
    start_s: float = 0.0

    def is_full_after(self, size_bytes: float, share: float, times: LayerTimes) -> bool:
        """Put a gradient in, which is a share of a layer's."""
        self.filled_bytes += size_bytes
        self.moving_s += share * (times.reduce_s - times.reduce_start_s)
        self.start_s = max(self.start_s, times.reduce_start_s)
        return self.filled_bytes >= self.limit_bytes

    def empty(self) -> tuple[float, float]:
        """Start the next bucket; returns the wire of this one, and what of it is its start."""
        moving_s, start_s = self.moving_s, self.start_s
        self.limit_bytes, self.filled_bytes = BUCKET_BYTES, 0.0
        self.moving_s = self.start_s = 0.0
        return moving_s + start_s, start_s


def in_buckets(
    root: LayerTimes, runs: Sequence[tuple[LayerTimes, Layer]], *, element_bytes: int
) -> tuple[LayerTimes, list[LayerTimes]]:
    """Times whose reductions are those of buckets; layers come in as many parts as needed.

    Args:
        root: the gradients of the root come last.
        runs: the layers in the order of forward.
        element_bytes: of a gradient.

    Returns:
        The root, with the last bucket, and the parts of layers in the order of forward.
    """
    bucket = _Bucket()
    parts: list[LayerTimes] = []
    for times, layer in reversed(runs):
        if element_bytes * layer.numel >= BUCKET_BYTES:
            # buckets as fine as layers: a run stays a run, however many layers it has
            parts.append(times)
            continue
        for _ in range(times.count):
            parts += _parts(replace(times, count=1), layer, element_bytes, bucket)
    start_s = max(root.reduce_start_s, bucket.start_s)
    moving_s = root.reduce_s - root.reduce_start_s + bucket.moving_s
    root = replace(root, reduce_s=moving_s + start_s, reduce_start_s=start_s)
    return root, parts[::-1]


def _parts(
    times: LayerTimes, layer: Layer, element_bytes: int, bucket: _Bucket
) -> Iterator[LayerTimes]:
    """One layer in the order of backward, cut where a bucket is full."""
    whole = layer.numel
    if not whole:  # nothing to reduce, yet it computes
        yield replace(times, reduce_s=0.0, reduce_start_s=0.0)
        return
    share = 0.0
    for parameter in reversed(layer.parameters):
        part = parameter.numel / whole
        share += part
        if bucket.is_full_after(element_bytes * parameter.numel, part, times):
            yield _scaled(times, share, *bucket.empty())
            share = 0.0
    if share:
        yield _scaled(times, share, 0.0, 0.0)


def _scaled(times: LayerTimes, share: float, reduce_s: float, reduce_start_s: float) -> LayerTimes:
    return replace(
        times,
        forward_s=share * times.forward_s,
        backward_s=share * times.backward_s,
        reduce_s=reduce_s,
        reduce_start_s=reduce_start_s,
    )
