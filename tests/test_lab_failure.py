"""The sentence about a failed rank: the right rank, how it ended, its own words."""

from __future__ import annotations

import pytest

from thinwire.lab.failure import RankFailure, describe, first_cause


def failed(rank: int = 0, status: int = 1, *lines: str) -> RankFailure:
    return RankFailure(rank=rank, host=rank // 2, exit_status=status, stderr_tail=lines)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        # The rank's own sentence, word for word, whatever libraries write before and after.
        (
            (
                "thinwire: error: the loss is NaN",
                "[W1] ProcessGroup was not destroyed",
            ),
            "the loss is NaN",
        ),
        # The exception of a traceback, with and without torch's prefix.
        (
            (
                "Traceback (most recent call last):",
                '  File "x.py", line 1, in <module>',
                "ValueError: boom",
                "[W1] leaked semaphore",
            ),
            "ValueError: boom",
        ),
        (
            ("[rank3]: torch.distributed.DistBackendError: no route",),
            "torch.distributed.DistBackendError: no route",
        ),
        (("KeyboardInterrupt",), "KeyboardInterrupt"),
        (("something", "  odd  ", "", "  "), "odd"),
        ((), ""),
    ],
)
def test_last_words(lines: tuple[str, ...], words: str) -> None:
    assert failed(0, 1, *lines).last_words == words


def test_the_sentence_names_rank_host_code_and_words() -> None:
    sentence = describe(failed(3, 7, "thinwire: error: no such file"))
    assert sentence == "rank 3 (host 1) failed with exit code 7: no such file"


def test_a_signal_has_its_name() -> None:
    assert "was killed by SIGSEGV" in describe(failed(0, -11))
    assert "killed by signal 40" in describe(failed(0, -40))


def test_a_kill_suggests_the_usual_reason() -> None:
    sentence = describe(failed(1, -9))
    assert "SIGKILL (out of memory?" in sentence
    assert sentence.endswith("and it wrote no error")


def test_the_first_to_end_is_reported() -> None:
    failures = [failed(2, -9), failed(0, 1, "ValueError: boom")]
    assert first_cause(failures).rank == 2


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: [/pytorch/third_party/gloo/pair.cc:534] Connection closed by peer [1.2.3.4]",
        "torch.distributed.DistNetworkError: Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "RuntimeError: Timed out waiting 1800000ms for recv operation to complete",
    ],
)
def test_a_rank_that_lost_a_peer_is_not_blamed(line: str) -> None:
    victim, culprit = failed(0, 1, line), failed(1, 1, "ValueError: boom")
    assert victim.is_victim
    assert first_cause([victim, culprit]) == culprit
    assert first_cause([victim]) == victim


def test_a_killed_rank_is_no_victim_whatever_it_wrote_before() -> None:
    # TCPStore warns so while it waits for rank 0 to listen; then memory ran out.
    line = "[W1] failed to connect to localhost: 29500 (errno: 111 - Connection refused)."
    assert not failed(0, -9, line).is_victim
