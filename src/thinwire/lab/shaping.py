"""The token bucket filter (`tc tbf`) that makes a link slow, and its sizes for a rate.

A filter sends while its bucket has tokens, and tokens flow in at the rate. So a link that has
rested passes one bucket at once, and a timer that comes late is made up for by as much.
"""

from __future__ import annotations

import math

__all__ = ["bucket_bytes", "shaping"]

# The largest buffer that segmentation offload hands to the queue. A bucket that holds less makes
# the filter cut every buffer into frames: more work, and drops where a queue takes half a buffer.
_SMALLEST_BUCKET_BYTES = 65536 + 66
_LARGEST_BUCKET_BYTES = 4 << 20
# What a timer that comes late needs, twice over. The steps of models so small that they send no
# more than this pass at once, as over no real link: measure what takes many times as long.
_BUCKET_S = 0.005

# How long a frame may wait before it is dropped. A slow link's queue is longer: with less room TCP
# loses frames in slow start, and the holes make what a receiver sees come in jumps of 10 %.
_QUEUE_S = 0.05
_SMALLEST_QUEUE_BYTES = 1_000_000
_LARGEST_QUEUE_BYTES = 1 << 28  # the kernel counts it in 32 bits


def bucket_bytes(rate_bit_per_s: float) -> int:
    """Return what the bucket of a filter of that rate holds, in bytes of Ethernet frames."""
    wanted_bytes = math.ceil(rate_bit_per_s / 8 * _BUCKET_S)
    return min(max(wanted_bytes, _SMALLEST_BUCKET_BYTES), _LARGEST_BUCKET_BYTES)


def shaping(rate_bit_per_s: float) -> str:
    """Return the `tc` words of a filter of the rate, in bit/s of Ethernet frames."""
    bucket = bucket_bytes(rate_bit_per_s)
    wanted_bytes = bucket + max(math.ceil(rate_bit_per_s / 8 * _QUEUE_S), _SMALLEST_QUEUE_BYTES)
    queue = min(wanted_bytes, _LARGEST_QUEUE_BYTES)
    return f"tbf rate {math.ceil(rate_bit_per_s)}bit burst {bucket}b limit {queue}b"
