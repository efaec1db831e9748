"""Where a number comes from: what decides how far it may be trusted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from thinwire.errors import ConfigError

__all__ = ["SOURCES", "check_sources", "least_sure"]

# from the surest to the least sure
SOURCES = ("calibrated", "published", "datasheet", "given", "assumed")


def check_sources(owner: str, numbers: Iterable[str], sources: Mapping[str, str]) -> None:
    """Raise unless every number has a source, spelled ``kind`` or ``kind: where``.

    Raises:
        ConfigError: names the number, or the kind that is not known.
    """
    for number in numbers:
        text = sources.get(number)
        if text is None:
            raise ConfigError(
                f"{owner}: {number} has no source; add one to its table of sources, such as "
                f'{number} = "datasheet: ..."'
            )
        if kind_of(text) not in SOURCES:
            raise ConfigError(
                f"{owner}: the source of {number} must begin with one of {', '.join(SOURCES)}, "
                f"not {text!r}"
            )


def kind_of(text: str) -> str:
    """The first word of a source."""
    return text.partition(":")[0].strip()


def least_sure(texts: Iterable[str]) -> str:
    """The least sure kind among some sources; ``"assumed"`` where there is none."""
    kinds = [kind_of(text) for text in texts]
    return max(kinds, key=SOURCES.index, default="assumed")
