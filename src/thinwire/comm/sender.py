"""A thread that talks to the network while the rank computes.

Note: one thread, one order. Every rank submits the same jobs in the same order and a single thread
runs them in that order, so exchanges pair up as if they ran on the spot. Kernels and gloo release
the interpreter's lock, so compute goes on. Jobs may only use point-to-point exchanges: collectives
of the backend are numbered by order of submission, and the main thread submits those.

On an accelerator FSDP2's own streams overlap and no thread is used.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import torch

__all__ = ["Sender", "Ticket"]

# Jobs that may wait in line. Each holds its input alive; the limit bounds that memory.
MAX_WAITING = 4


class Ticket:
    """A job's receipt: wait for the job, and get its error if it had one."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Return when the job has ended; raise what it raised."""
        self._done.wait()
        if self._error is not None:
            raise self._error

    def _run(self, job: Callable[[], None]) -> None:
        try:
            with torch.no_grad():
                job()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()


class Sender:
    """Runs jobs one after another in a thread of its own, which starts with the first job."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[tuple[Ticket, Callable[[], None]]] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> Ticket:
        """Put a job in line; blocks while the line is full."""
        if self._thread is None:
            # a daemon: a rank that fails must not wait for a peer that will never answer
            self._thread = threading.Thread(target=self._work, daemon=True, name="thinwire-sender")
            self._thread.start()
        ticket = Ticket()
        self._jobs.put((ticket, job))
        return ticket

    def _work(self) -> None:
        while True:
            ticket, job = self._jobs.get()
            ticket._run(job)
            del job  # what it held is free while the thread waits for the next
