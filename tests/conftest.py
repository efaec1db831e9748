"""What holds for the whole run of the tests."""

from __future__ import annotations

import signal

# A shell that starts a program in the background makes it ignore Ctrl-C, and so would every program
# that it starts in turn; the tests of Ctrl-C need programs that a user would start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
