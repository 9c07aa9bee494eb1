"""Crash at change 1, 2, 3… of the bucket until a scenario ends clean; look after each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Literal

from tests.crash.ledger import Ledger
from tests.crash_buckets.invariants import check_at_once, check_recovered, check_stable, intents
from tests.crash_buckets.run import MakeCommitter, Run
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.testing.fault_store import Crashed
from tune_sync.testing.memory_bucket import FaultBucket, MemoryBucket

Scenario = Callable[[Run], None]
When = Literal["before", "half", "after"]
WHENS: tuple[When, ...] = ("before", "half", "after")


def explore(
    scenario: Scenario, make_committer: MakeCommitter = BucketCommitter,
    make_run: Callable[..., Run] = Run, *, etags: bool = True, conditional_put: bool = True,
    crash_recovery: bool = False,
) -> int:  # fmt: skip
    """Run the loop; returns how many crashes were looked at. Raises `ViolatedError` with the place.

    Args:
        scenario: The story.
        make_committer: The committer, or a wrong one.
        make_run: The run, or a wrong one.
        etags: See `Run`.
        conditional_put: What the bucket can do.
        crash_recovery: Crash every recovery at each of its changes as well.
    """
    crash_count = 0
    for at_count in itertools.count(1):
        for when in WHENS:
            base, ledger = MemoryBucket(conditional_put=conditional_put), Ledger()
            bucket = FaultBucket(base, at_count, when)
            ended = _ends(scenario, make_run(bucket, ledger, make_committer, etags=etags))
            where = f"{when} change {at_count} {bucket.changes[-1]}"
            if crash_recovery:
                crash_count += _crash_recovery(base, ledger, make_committer, where)
            _look(base.copy(), ledger, make_committer, intents(base), where)
            crash_count += 1
            if ended:
                return crash_count
    raise AssertionError("unreachable")


def _look(
    bucket: MemoryBucket, ledger: Ledger, make_committer: MakeCommitter,
    intended: Collection[str], where: str,
) -> None:  # fmt: skip
    try:
        check_at_once(bucket, ledger)
        make_committer(bucket, "next owner").recover()
        check_recovered(bucket, ledger, intended)
        check_stable(bucket)
    except Exception as error:
        error.args = (f"{error.args[0] if error.args else error} [{where}]",)
        raise


def _crash_recovery(
    base: MemoryBucket, ledger: Ledger, make_committer: MakeCommitter, where: str
) -> int:
    crash_count = 0
    for at_count in itertools.count(1):
        for when in WHENS:
            again = base.copy()
            bucket = FaultBucket(again, at_count, when)
            ended = _ends(Run.recover, Run(bucket, Ledger(), make_committer))
            here = f"{where}; {when} change {at_count} of recovery {bucket.changes[-1:]}"
            _look(again, ledger, make_committer, intents(base), here)
            crash_count += 1
            if ended:
                return crash_count
    raise AssertionError("unreachable")


def _ends(story: Scenario, run: Run) -> bool:
    try:
        story(run)
    except Crashed:
        return False
    return True
