"""Encoding, sending and decoding side by side, beside the compute of the rank.

Note: jobs. A job is a generator. It computes, yields what must cross the wire, and computes on with
what arrived. One thread runs the computing parts, others the transfers. A job's first transfer goes
in lane 0, its second in lane 1, and so on, and each lane is a thread. With jobs of two transfers,
such as reductions in two hops:

    codec thread   encode 1 | encode 2 | recode 1 | encode 3 | recode 2 | decode 1 | ...
    lane 0                    send 1   | send 2              | send 3   | ...
    lane 1                                         | send 1             | send 2   | ...

So neither hop waits while what came over the other is decoded and encoded anew.

Note: one order. Every rank submits the same jobs in the same order, and in each lane transfers run
strictly in that order, so exchanges pair up as if they ran on the spot. Every lane has a channel
of its own (:mod:`thinwire.comm.exchange`). The threads change when something happens, never what:
all numbers are those of `run_now`. Kernels and gloo release the interpreter's lock. Transfers must
be point to point: the backend numbers its collectives by order of submission, and the main thread
submits those.

Note: no lane waits for ever. A lane takes no job while the next one still has one waiting, which
bounds memory. A transfer waits for its own kind on other ranks and for earlier jobs only, never for
a later one, so the earliest job that is under way anywhere can always go on.

Note: errors. A job that fails before its last transfer leaves a gap in the order of its rank, and
what the rank sent next would be taken for what is missing. So the sender sends nothing more: every
later job fails with an error that says so. An error in what follows the last transfer is the job's
own.

Note: the end of the process. What is under way when a script ends is finished first: an interpreter
that is torn down ends its threads where they wait for a lock it holds, and one that does so inside
the backend ends the process with an abort. A rank that left at once would also fail the peers that
still read their ledgers. A peer that is gone is an error of its job at once; for one that is there
and sends nothing the wait is bounded.

On an accelerator FSDP2's own streams overlap and no thread is used.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from thinwire.comm.exchange import MAIN_CHANNEL
from thinwire.errors import RankError

__all__ = [
    "Job",
    "Sender",
    "Ticket",
    "Transfer",
    "run_now",
    "shared_delta_sender",
    "shared_sender",
]

# Jobs that may wait in line for room. Each holds its input alive; the limit bounds that memory.
MAX_WAITING = 4

MAX_LINES = 2  # senders of a process that send to the same ranks

# How long a process that ends waits for the next of its jobs to end. A late reduction is of one
# bucket or block: at 10 Mbit/s this is time for 70 MB of payload.
LONGEST_WAIT_AT_EXIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a job hands to the wire.

    Attributes:
        run: sends and receives in the channel that it is given; returns when both are done.
        is_last: whether the job has no further transfer.
    """

    run: Callable[[int], None]
    is_last: bool = True


Job = Iterator[Transfer]


def run_now(job: Job) -> None:
    """Run a job to its end in the calling thread."""
    for transfer in job:
        transfer.run(MAIN_CHANNEL)


class Ticket:
    """A job's receipt: wait for the job, and get its error if it had one.

    Args:
        when_done: called in the thread that ends the job, with its error or ``None``.
    """

    def __init__(self, when_done: Callable[[BaseException | None], None] | None = None) -> None:
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._when_done = when_done

    def wait(self) -> None:
        """Return when the job has ended; raise what it raised."""
        self._done.wait()
        if self._error is not None:
            raise self._error

    def close(self, error: BaseException | None) -> None:
        """Tell whoever waits that the job has ended."""
        self._error = error
        self._done.set()
        if self._when_done is not None:
            self._when_done(error)


@dataclass(slots=True)
class _Running:
    job: Job
    ticket: Ticket
    next_transfer: Future[Transfer | None]
    took_room: bool


class Sender:
    """Runs jobs in threads of its own, which start with the first job that needs them.

    Args:
        line: its number, below ``MAX_LINES``: no two senders have the same that send to the same
            ranks.
    """

    def __init__(self, line: int = 0) -> None:
        self._line = line
        self._lanes: list[queue.Queue[_Running]] = []
        self._room = threading.BoundedSemaphore(MAX_WAITING)
        self._codec = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"thinwire-codec{line}")
        self._first_lane: threading.Thread | None = None
        self._failed: BaseException | None = None
        self._num_under_way = 0
        self._ended = threading.Condition()

    def submit(
        self,
        job: Job,
        when_done: Callable[[BaseException | None], None] | None = None,
        *,
        waits_for_room: bool = True,
    ) -> Ticket:
        """Put a job in line; blocks while the line is full.

        Args:
            job: what to run.
            when_done: called at its end, in another thread, with its error or ``None``.
            waits_for_room: false for a job that is in line beside the limit, and never blocks.
        """
        if self._first_lane is None:
            self._first_lane = self._open_lane()
        ticket = Ticket(when_done)
        running = _Running(job, ticket, self._codec.submit(_advance, job), waits_for_room)
        if waits_for_room:
            self._room.acquire()
        with self._ended:
            self._num_under_way += 1
        self._lanes[0].put(running)
        return ticket

    def finish(self, longest_wait_s: float | None = None) -> None:
        """Return when no job is under way; errors of jobs are for those who hold their tickets.

        Args:
            longest_wait_s: give up when this long no job has ended; by default never.
        """
        if self._first_lane is None or not self._first_lane.is_alive():
            return  # nothing was sent yet, or this process was forked from the one that sends
        with self._ended:
            while self._num_under_way and self._ended.wait(longest_wait_s):
                pass

    def _open_lane(self) -> threading.Thread:
        number = len(self._lanes)
        # the room before the first lane is limited by the semaphore
        self._lanes.append(queue.Queue(maxsize=min(number, 1)))
        # a daemon: a rank that fails must not wait for a peer that will never answer
        name = f"thinwire-wire{self._line}.{number}"
        thread = threading.Thread(target=self._serve, args=(number,), daemon=True, name=name)
        thread.start()
        return thread

    def _serve(self, lane: int) -> None:
        while True:
            running = self._lanes[lane].get()
            if running.took_room and lane == 0:
                self._room.release()
            try:
                if self._failed is not None:
                    raise self._broken(self._failed) from self._failed
                self._send(running, lane)
            except BaseException as error:
                self._failed = self._failed or error
                self._close(running.ticket, error)
            del running  # what the job held is free while the thread waits for the next

    @staticmethod
    def _broken(error: BaseException) -> RankError:
        return RankError(
            "an earlier exchange failed on this rank, and what it sent next would be taken for "
            f"that ({type(error).__name__}: {error}); end the run and continue from a checkpoint"
        )

    def _send(self, running: _Running, lane: int) -> None:
        transfer = running.next_transfer.result()
        if transfer is not None:
            transfer.run(MAIN_CHANNEL + 1 + self._line + MAX_LINES * lane)
        if transfer is None or transfer.is_last:
            self._codec.submit(self._complete, running.job, running.ticket)
            return
        running.next_transfer = self._codec.submit(_advance, running.job)
        if len(self._lanes) == lane + 1:
            self._open_lane()
        self._lanes[lane + 1].put(running)

    @torch.no_grad()
    def _complete(self, job: Job, ticket: Ticket) -> None:
        """Compute what follows the last transfer, and close the ticket whatever happens."""
        try:
            if next(job, None) is not None:
                raise AssertionError("a job went on after the transfer that it called its last")
        except BaseException as error:
            self._close(ticket, error)
        else:
            self._close(ticket, None)

    def _close(self, ticket: Ticket, error: BaseException | None) -> None:
        try:
            ticket.close(error)
        finally:
            with self._ended:
                self._num_under_way -= 1
                self._ended.notify_all()


@functools.cache
def shared_sender() -> Sender:
    """The one sender of this process.

    Two models may be reduced in one backward pass, a generator and its discriminator, over the same
    ranks. Exchanges among the same ranks pair up by their order alone, so all jobs are in one line.
    """
    return _finished_at_exit(Sender())


@functools.cache
def shared_delta_sender() -> Sender:
    """A line for the deltas of replicas, beside one in which late gradients are under way.

    Forward waits for deltas, and nobody for late gradients: in one line it would wait for both. The
    two share the wire.
    """
    return _finished_at_exit(Sender(line=1))


def _finished_at_exit(sender: Sender) -> Sender:
    # What atexit runs comes too late: pools of threads, on which codecs run, take no work by then.
    # Of these functions the one that was registered last runs first, and pools have theirs.
    threading._register_atexit(sender.finish, LONGEST_WAIT_AT_EXIT_S)  # type: ignore[attr-defined]
    return sender


@torch.no_grad()
def _advance(job: Job) -> Transfer | None:
    """Compute up to the next transfer."""
    return next(job, None)
