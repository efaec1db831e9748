"""The ledger adds up, and says what an uncompressed exchange would have cost."""

from __future__ import annotations

import json

from thinwire.comm.ledger import Ledger


def test_an_empty_ledger_is_all_zero() -> None:
    report = Ledger().report()
    assert report["sent_bytes"] == 0
    assert report["ratio"] is None
    assert report["collectives"] == []


def test_calls_add_up_and_reset_forgets_them() -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.record("all_gather", across_bytes=10, bf16_bytes=40, formats=frozenset({"int4/128"}))
    ledger.record("reduce_scatter", within_bytes=5, bf16_bytes=20, formats=frozenset({"bf16"}))
    report = ledger.report()
    gather, reduce = report["collectives"]
    assert (gather["calls"], gather["across_bytes"], gather["within_bytes"]) == (3, 30, 0)
    assert (reduce["calls"], reduce["within_bytes"]) == (1, 5)
    assert (report["across_bytes"], report["within_bytes"], report["sent_bytes"]) == (30, 5, 35)
    assert report["ratio"] == 140 / 35
    assert json.loads(json.dumps(report)) == report
    ledger.reset()
    assert ledger.report() == Ledger().report()
