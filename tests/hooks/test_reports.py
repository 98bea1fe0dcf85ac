"""Reports are one line of text each, and say what happened in numbers."""

from __future__ import annotations

import dataclasses

from mvc_hooks.reports import CommitReport, RollbackReport

COMMIT = CommitReport(
    step=7, commit="ab" * 20, branch="main", subject="step 7", stall_s=0.0123, write_s=2.5,
    written_bytes=1234, plain_bytes=56789, queue_depth=2,
)  # fmt: skip
BACK = RollbackReport(
    from_step=19, onset_step=18, to_step=12, to_commit="cd" * 20, diverged_branch="diverged/main/19",
    reason="the loss is NaN", skipped_first=13, skipped_last=22, seconds=1.25,
)  # fmt: skip


def test_a_commit():
    assert str(COMMIT) == (
        "commit ababababab step 7: stall 12.3 ms, write 2.50 s, 1,234 of 56,789 bytes, queue 2"
    )
    failed = dataclasses.replace(COMMIT, commit=None, error="the disk is full")
    assert str(failed) == "commit of step 7 failed: the disk is full"


def test_a_rollback():
    assert (BACK.skipped, BACK.skipped_count) == ("13-22", 10)
    assert str(BACK) == (
        "rolled back from step 19 to step 12 (commit cdcdcdcdcd) in 1.25 s: the loss is NaN; "
        "skipped batches: 13-22"
    )


def test_a_rollback_into_memory_that_skips_nothing():
    report = dataclasses.replace(BACK, to_commit=None, skipped_first=None, skipped_last=None)
    assert (report.skipped, report.skipped_count) == ("none", 0)
    assert "(a snapshot in memory)" in str(report)
    assert dataclasses.replace(BACK, skipped_last=13).skipped_count == 1
