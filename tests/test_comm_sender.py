"""The sender: transfers in order, work on both sides of them, errors, and a bounded line."""

from __future__ import annotations

import random
import threading
import time

import pytest

from thinwire.comm.sender import MAX_LINES, MAX_WAITING, Job, Sender, Transfer, run_now
from thinwire.errors import RankError


def recorded(name: int, events: list[tuple[int, str]], num_transfers: int = 1) -> Job:
    events.append((name, "encode"))
    for hop in range(num_transfers):
        is_last = hop == num_transfers - 1
        yield Transfer(lambda _, h=hop: events.append((name, f"send {h}")), is_last)  # type: ignore[misc]
        events.append((name, "decode" if is_last else "re-encode"))


def hold(gate: threading.Event) -> None:
    assert gate.wait(10)


def test_a_job_run_now_runs_in_order() -> None:
    events: list[tuple[int, str]] = []
    run_now(recorded(0, events, 2))
    assert [what for _, what in events] == ["encode", "send 0", "re-encode", "send 1", "decode"]


def test_transfers_of_a_lane_run_in_the_order_of_submission() -> None:
    """Whatever the number of hops, no hop of a later job overtakes the same of an earlier job."""
    sender = Sender()
    events: list[tuple[int, str]] = []
    tickets = [sender.submit(recorded(i, events, 1 + i % 3)) for i in range(20)]
    for ticket in tickets:
        ticket.wait()
    for hop in range(3):
        sends = [name for name, what in events if what == f"send {hop}"]
        assert sends == [i for i in range(20) if i % 3 >= hop]
    for i in range(20):
        own = [what for name, what in events if name == i]
        alone: list[tuple[int, str]] = []
        run_now(recorded(-1, alone, 1 + i % 3))
        assert own == [what for _, what in alone]


def test_a_hop_goes_on_while_a_later_one_of_the_job_before_is_under_way() -> None:
    """How far it goes on is bounded: what has come over the first hop takes memory."""
    sender, gate = Sender(), threading.Event()
    sent: list[int] = []

    def two_hops(name: int) -> Job:
        yield Transfer(lambda _: sent.append(name), is_last=False)
        yield Transfer(lambda _: hold(gate))

    tickets = [sender.submit(two_hops(name)) for name in range(MAX_WAITING + 1)]
    deadline = time.monotonic() + 10
    while len(sent) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    # one is in the second hop, one waits for it, and the first hop has done one more
    assert sent == [0, 1, 2]
    gate.set()
    for ticket in tickets:
        ticket.wait()
    assert sent == list(range(MAX_WAITING + 1))


def test_no_two_threads_send_in_the_same_channel() -> None:
    """A payload goes to whoever waits in its channel."""
    channels: dict[str, set[int]] = {}

    def three_hops() -> Job:
        for hop in range(3):
            yield Transfer(
                lambda channel: channels.setdefault(threading.current_thread().name, set()).add(
                    channel
                ),
                hop == 2,
            )

    run_now(three_hops())
    for line in range(MAX_LINES):
        sender = Sender(line)
        for ticket in [sender.submit(three_hops()) for _ in range(3)]:
            ticket.wait()
    assert len(channels) == 1 + 3 * MAX_LINES
    assert all(len(of_thread) == 1 for of_thread in channels.values())
    assert len(set.union(*channels.values())) == len(channels)


@pytest.mark.parametrize("seed", range(5))
def test_ranks_that_are_late_here_and_there_never_wait_for_each_other_in_a_circle(
    seed: int,
) -> None:
    """Three senders stand for ranks; a transfer is over when all of them are in it."""
    num_ranks, num_jobs = 3, 25
    hops = [random.Random(seed).randint(1, 4) for _ in range(num_jobs)]
    meetings = {
        (name, hop): threading.Barrier(num_ranks)
        for name in range(num_jobs)
        for hop in range(hops[name])
    }
    failed: list[BaseException] = []

    def rank_body(rank: int) -> None:
        dice, sender = random.Random(10 * seed + rank), Sender()

        def job(name: int) -> Job:
            for hop in range(hops[name]):
                time.sleep(dice.choice((0, 0, 0.003)))
                meeting = meetings[name, hop]
                yield Transfer(lambda _, m=meeting: m.wait(20), hop == hops[name] - 1)  # type: ignore[misc]

        tickets = []
        for name in range(num_jobs):
            time.sleep(dice.choice((0, 0, 0.003)))
            tickets.append(sender.submit(job(name), waits_for_room=bool(name % 5)))
        try:
            for ticket in tickets:
                ticket.wait()
        except threading.BrokenBarrierError as error:
            failed.append(error)

    ranks = [threading.Thread(target=rank_body, args=(rank,)) for rank in range(num_ranks)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    assert not failed


def test_the_next_job_encodes_while_one_is_on_the_wire() -> None:
    sender, gate, encoded = Sender(), threading.Event(), threading.Event()

    def slow() -> Job:
        yield Transfer(lambda _: hold(gate))

    def second() -> Job:
        encoded.set()
        yield Transfer(lambda _: None)

    first_ticket, second_ticket = sender.submit(slow()), sender.submit(second())
    assert encoded.wait(10)  # before the first transfer is over
    gate.set()
    first_ticket.wait()
    second_ticket.wait()


@pytest.mark.parametrize("where", ["encode", "send", "decode"])
def test_an_error_reaches_whoever_waits_and_no_later_payload_stands_in_for_the_lost_one(
    where: str,
) -> None:
    sender = Sender()

    def fail(_lane: int = 0) -> None:
        raise RuntimeError("the peer is gone")

    def job() -> Job:
        if where == "encode":
            fail()
        yield Transfer(fail if where == "send" else lambda _: None)
        if where == "decode":
            fail()

    events: list[tuple[int, str]] = []
    failed, fine = sender.submit(job()), sender.submit(recorded(0, events))
    with pytest.raises(RuntimeError, match="the peer is gone"):
        failed.wait()
    later = sender.submit(recorded(1, events))
    sends = [name for name, what in events if what.startswith("send")]
    if where == "decode":
        # everything was sent, and the order is that of the other ranks
        fine.wait()
        later.wait()
        return
    for ticket in (fine, later):
        with pytest.raises(RankError, match=r"an earlier exchange failed .*RuntimeError: the peer"):
            ticket.wait()
    assert not sends


def test_the_line_is_bounded() -> None:
    sender, gate = Sender(), threading.Event()

    def held() -> Job:
        yield Transfer(lambda _: hold(gate))

    # one job is on the wire, MAX_WAITING wait; the next submit blocks until the gate opens
    for _ in range(MAX_WAITING + 1):
        sender.submit(held())
    blocked = threading.Thread(target=lambda: sender.submit(held()), daemon=True)
    blocked.start()
    blocked.join(0.2)
    assert blocked.is_alive()
    beside = sender.submit(held(), waits_for_room=False)
    gate.set()
    blocked.join(10)
    assert not blocked.is_alive()
    beside.wait()
    # the job that was beside the line left it as long as it was
    for _ in range(2 * MAX_WAITING):
        sender.submit(held()).wait()


def test_finish_waits_for_all_of_every_job() -> None:
    """Up to what is computed after the last transfer, and past a job that failed."""
    sender, gate, events = Sender(), threading.Event(), list[tuple[int, str]]()

    def held(name: int) -> Job:
        yield Transfer(lambda _: hold(gate))
        if name == 1:
            raise RuntimeError("the peer is gone")
        time.sleep(0.02)
        events.append((name, "decode"))

    sender.finish()  # before there is anything to wait for
    for name in range(3):
        sender.submit(held(name))
    threading.Timer(0.05, gate.set).start()
    sender.finish()
    assert events == [(0, "decode"), (2, "decode")]
    sender.finish(0.0)


def test_finish_gives_up_on_a_job_that_does_not_end() -> None:
    """The wait is for one more job to end, however long all of them take together."""
    sender, gate, longest_wait_s = Sender(), threading.Event(), 0.8

    def slow() -> Job:
        yield Transfer(lambda _: time.sleep(0.75 * longest_wait_s))

    def held() -> Job:
        yield Transfer(lambda _: hold(gate))

    ended = [sender.submit(slow()), sender.submit(slow())]
    last = sender.submit(held())
    start_s = time.monotonic()
    sender.finish(longest_wait_s)
    assert time.monotonic() - start_s >= 2.4 * longest_wait_s
    for ticket in ended:
        ticket.wait()  # at once, or it would have been given up on
    gate.set()
    last.wait()
