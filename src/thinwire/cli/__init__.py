"""The command line: words for people and documents for programs; all thinking is elsewhere.

    app        the verbs put together, errors turned into one sentence and an exit code
    compare    ``thinwire compare``, and so on: one file per verb

One file per verb. Importing this package loads no torch: a verb imports what it needs when it runs.
"""

from thinwire.cli.app import main

__all__ = ["main"]
