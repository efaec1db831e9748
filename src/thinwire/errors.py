"""The exceptions that thinwire raises, as one tree.

    ThinwireError
    ├── ConfigError (also ValueError)   an option, recipe, format or file says something impossible
    │   └── FormatError                 a format that does not parse, or an option its family lacks
    ├── InputError                      a file or a text that cannot be read
    ├── LabError                        the lab could not be built, or its link is not as requested
    ├── RankError                       a rank died, hung, or disagreed with the others
    └── StateError                      a call at a moment when it cannot be served

Every message says what is wrong and what to do instead; the command line prints it as it is.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "FormatError",
    "InputError",
    "LabError",
    "RankError",
    "StateError",
    "ThinwireError",
]


class ThinwireError(Exception):
    """The base of every error that thinwire raises on purpose."""


class ConfigError(ThinwireError, ValueError):
    """An option, a recipe or a file asks for something impossible."""


class FormatError(ConfigError):
    """A wire format that does not parse, or an option that its family cannot have."""


class InputError(ThinwireError):
    """A file or a text that cannot be read, or is not what it should be."""


class LabError(ThinwireError):
    """The lab could not be built, or its link does not have the requested rate."""


class RankError(ThinwireError):
    """A rank died, did not answer in time, or disagrees with the other ranks."""


class StateError(ThinwireError):
    """A call that cannot be served at this moment, such as a ledger before any step."""
