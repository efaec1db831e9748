"""Lines out of the bytes of a pipe, whatever a program writes into it."""

from __future__ import annotations

__all__ = ["MAX_LINE_BYTES", "LineSplitter"]

MAX_LINE_BYTES = 1 << 20
"""What is kept of one line. A rank that writes garbage must not fill the launcher's memory."""


class LineSplitter:
    """Cuts a stream of bytes into lines of text.

    Bytes that are not UTF-8 become U+FFFD. A line longer than `MAX_LINE_BYTES` is cut there, and
    what is missing is said at its end. The ends of lines (LF or CR LF) are taken off.
    """

    def __init__(self) -> None:
        self._kept = bytearray()
        self._dropped_bytes = 0

    def feed(self, chunk: bytes) -> list[str]:
        """Take the next bytes and return the lines that they complete."""
        *ended, rest = chunk.split(b"\n")
        lines = []
        for part in ended:
            self._keep(part)
            lines.append(self._take())
        self._keep(rest)
        return lines

    def finish(self) -> list[str]:
        """Return the last line, if the stream did not end with the end of one."""
        return [self._take()] if self._kept else []

    def _keep(self, part: bytes) -> None:
        room = MAX_LINE_BYTES - len(self._kept)
        self._kept += part[:room]
        self._dropped_bytes += max(0, len(part) - room)

    def _take(self) -> str:
        text = self._kept.removesuffix(b"\r").decode("utf-8", errors="replace")
        if self._dropped_bytes:
            text += f" [... {self._dropped_bytes} bytes more]"
        self._kept.clear()
        self._dropped_bytes = 0
        return text
