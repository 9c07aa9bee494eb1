"""Crash at change 1, 2, 3… of the store until a scenario ends clean; look after each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from tests.crash.invariants import check_at_once, check_recovered, check_stable, tree
from tests.crash.ledger import Ledger
from tests.crash.run import MakeCommitter, Run
from tune_sync.homes.commit import Committer
from tune_sync.homes.store import Store
from tune_sync.testing.crash_store import CrashMode, CrashStore
from tune_sync.testing.fault_store import Crashed, Fault, FaultStore, When, crash_at

Scenario = Callable[[Run], None]
MakeRun = Callable[..., Run]

TEARS = 6
ENDINGS: tuple[tuple[CrashMode, int], ...] = (
    ("kill", 0), ("lose", 0), ("keep", 0), *(("tear", seed) for seed in range(TEARS)),
)  # fmt: skip
WHENS: tuple[When, ...] = ("before", "half", "after")
HALVED = {"write_at", "remove_tree", "sync_tree"}


def explore(
    scenario: Scenario, make_committer: MakeCommitter = Committer, make_run: MakeRun = Run,
    *, ids_fall: bool = False, crash_recovery: bool = False, faults: Sequence[Fault] = (),
) -> int:  # fmt: skip
    """Run the loop; returns how many crashes were looked at. Raises `ViolatedError` with the place.

    Args:
        scenario: The story.
        make_committer: The committer, or a wrong one.
        make_run: The run, or a wrong one.
        ids_fall: See `Run`.
        crash_recovery: Crash every recovery at each of its changes as well.
        faults: What goes wrong besides, each time.
    """
    crash_count = 0
    seen: set[str] = set()
    for at_count in itertools.count(1):
        for when in WHENS:
            disk, ledger = CrashStore(), Ledger()
            store = FaultStore(disk, *faults, crash_at(at_count, when))
            ended = _ends(scenario, make_run(store, ledger, make_committer, ids_fall=ids_fall))
            if when == "half" and store.calls[-1][0] not in HALVED:
                continue
            moment = repr((ledger, at_count - 1 if when == "before" else at_count, when == "half"))
            if moment in seen and not ended:  # nothing happened since the crash looked at last
                continue
            seen.add(moment)
            for mode, seed in ENDINGS:
                where = f"{when} change {at_count} {store.calls[-1]}, {mode} {seed}"
                killed = mode == "kill"
                after = disk.crash(mode, seed)
                state = repr((ledger, tree(after, "")))
                if not killed and state in seen:  # another crash left the very same disk
                    continue
                seen.add(state)
                if crash_recovery:
                    crash_count += _crash_recovery(after, ledger, make_committer, killed, where)
                _look(after, ledger, make_committer, killed, where)
                crash_count += 1
            if ended:
                return crash_count
    raise AssertionError("unreachable")


def _look(
    disk: CrashStore, ledger: Ledger, make_committer: MakeCommitter, killed: bool, where: str
) -> None:
    try:
        check_at_once(disk, ledger)
        _recover(disk, make_committer)
        check_recovered(disk, ledger, process_only=killed)
        check_stable(disk.crash("kill"))
        after_power_cut = disk.crash("lose")  # what recovery promised is durable
        check_at_once(after_power_cut, ledger)
        _recover(after_power_cut, make_committer)
        check_recovered(after_power_cut, ledger, process_only=killed)
    except Exception as error:
        error.args = (f"{error.args[0] if error.args else error} [{where}]",)
        raise


def _crash_recovery(
    disk: CrashStore, ledger: Ledger, make_committer: MakeCommitter, killed: bool, where: str
) -> int:
    crash_count = 0
    for at_count in itertools.count(1):
        again = disk.crash("kill")
        store = FaultStore(again, crash_at(at_count, WHENS[at_count % 3]))
        ended = _ends(Run.recover, Run(store, Ledger(), make_committer))
        for mode, seed in (*ENDINGS[:2], ("tear", at_count)):
            crash_count += 1
            here = f"{where}; recovery change {at_count} {store.calls[-1]}, {mode}"
            _look(again.crash(mode, seed), ledger, make_committer, killed and mode == "kill", here)
        if ended:
            return crash_count
    raise AssertionError("unreachable")


def _recover(store: Store, make_committer: MakeCommitter) -> None:
    make_committer(store, "next owner").recover()


def _ends(story: Scenario, run: Run) -> bool:
    try:
        story(run)
    except Crashed:
        return False
    return True
