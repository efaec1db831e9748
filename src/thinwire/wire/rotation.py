"""The number that makes a Hadamard matrix of 32 rows orthonormal, as reference and kernels use it.

Multiplying first and adding in five stages afterwards, distances 1, 2, 4, 8 and 16, is part of the
format: another order would round differently.
"""

from __future__ import annotations

import struct

__all__ = ["ROTATION_FACTOR"]

# 32 ** -0.5 as a float32.
ROTATION_FACTOR: float = struct.unpack("<f", struct.pack("<f", 32**-0.5))[0]
