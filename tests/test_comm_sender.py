"""The sending thread: order, errors, and a bounded line."""

from __future__ import annotations

import threading

import pytest

from thinwire.comm.sender import MAX_WAITING, Sender


def test_jobs_run_in_order_in_one_thread() -> None:
    sender, order, threads = Sender(), [], set()

    def job(index: int) -> None:
        order.append(index)
        threads.add(threading.get_ident())

    tickets = [sender.submit(lambda i=i: job(i)) for i in range(20)]  # type: ignore[misc]
    for ticket in tickets:
        ticket.wait()
    assert order == list(range(20))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_an_error_reaches_whoever_waits_and_the_thread_goes_on() -> None:
    sender = Sender()

    def fail() -> None:
        raise RuntimeError("the peer is gone")

    failed, fine = sender.submit(fail), sender.submit(lambda: None)
    with pytest.raises(RuntimeError, match="the peer is gone"):
        failed.wait()
    fine.wait()


def test_the_line_is_bounded() -> None:
    sender, gate = Sender(), threading.Event()
    # one job runs, MAX_WAITING wait; the next submit blocks until the gate opens
    for _ in range(MAX_WAITING + 1):
        sender.submit(gate.wait)
    blocked = threading.Thread(target=lambda: sender.submit(lambda: None), daemon=True)
    blocked.start()
    blocked.join(0.2)
    assert blocked.is_alive()
    gate.set()
    blocked.join(10)
    assert not blocked.is_alive()
