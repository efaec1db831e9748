"""The machines on which a hardware file was calibrated: how far its numbers carry."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Scope"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a calibration measured.

    Attributes:
        hosts: how many.
        ranks_per_host: on each.
        bit_per_s: of the link; ``None``: there was none, or it was not measured.
        is_shaped: whether something held the link to that rate; ``None``: the file does not say.
    """

    hosts: int
    ranks_per_host: int
    bit_per_s: float | None
    is_shaped: bool | None
