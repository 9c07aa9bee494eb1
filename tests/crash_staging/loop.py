"""Crash at change 1, 2, 3… of a node, and of what its agent sends; look after each."""

from __future__ import annotations

import copy
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.loop import ENDINGS, HALVED, WHENS
from tests.crash_staging.invariants import (
    check_at_once,
    check_empty,
    check_gone,
    check_published,
    check_replicated,
    check_restored,
    demand,
)
from tests.crash_staging.kernel import Kernel
from tests.crash_staging.ledger import StagedLedger
from tests.crash_staging.run import AS_IT_IS, PEER, Parts, Run
from tune_sync.sending.backlog import Backlog
from tune_sync.testing.crash_store import CrashMode, CrashStore
from tune_sync.testing.fault_store import Crashed, Fault, When, crash_at

Story = Callable[[Run], None]
Ending = tuple[CrashMode, int]

NODE = "node"
# Moments, which differ from run to run.
MOMENTS = re.compile(rb'_n?s": *[0-9.]+')
# A second crash comes at each so many-th change.
EVERY_AGAIN = 5


@dataclass
class Life:
    """One run of a story, or of what follows a crash.

    Attributes:
        world: A directory of its own.
        ledger: What was promised.
        parts: What a run is made of.
        backlog: What the driver knows.
        number: How many crashes came before.
        boot: How many power cuts did.
        faults: When it crashes.
    """

    world: Path
    ledger: StagedLedger = field(default_factory=StagedLedger)
    parts: Parts = field(default_factory=Parts)
    backlog: Backlog = field(default_factory=Backlog)
    number: int = 0
    boot: int = 0
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        (self.world / NODE).mkdir(parents=True, exist_ok=True)
        disks = {} if self.number else {NODE: CrashStore()}
        self.kernel = Kernel(
            self.world, *self.faults, disks=disks, forgets=self.parts.forgets, life=self.number,
            boot=self.boot,
        )  # fmt: skip
        self.run = Run(self.kernel, self.ledger, self.parts, self.backlog, is_killed=not self.boot)

    def lives(self, story: Story) -> bool:
        """Whether the story came to its end."""
        try:
            with self.kernel.running():
                story(self.run)
        except Crashed:
            return False
        finally:
            self.run.lose_agent()
        return True

    def crashed(self, mode: CrashMode, seed: int) -> Life:
        """What follows a crash: what is left, and nothing has been done yet."""
        world = self.world.with_name(f"{self.world.name}, {mode} {seed}")
        shutil.copytree(self.world, world)
        if mode != "kill":
            shutil.rmtree(world / NODE)
            _settle(self.kernel.disks[NODE].crash(mode, seed), world)
        boot = self.boot + (mode != "kill")
        later = Life(world, self.ledger, self.parts, self.run.backlog, self.number + 1, boot)
        later.run.is_alone, later.run.is_replicated = self.run.is_alone, self.run.is_replicated
        return later

    def again(self, name: str, *faults: Fault) -> Life:
        """The same once more, with ledgers of its own."""
        world = self.world.with_name(f"{self.world.name}, {name}")
        shutil.copytree(self.world, world)
        ledger, backlog = copy.deepcopy(self.ledger), self.backlog
        again = Life(world, ledger, self.parts, backlog, self.number, self.boot, faults)
        again.run.is_replicated = self.run.is_replicated
        return again

    def state(self) -> str:
        """What there is, without moments."""
        return repr((self.ledger, self.boot, sorted(_contents(self.world))))

    def look(self) -> None:
        """What holds at once."""
        with self.kernel.running():
            check_at_once(self.world, self.ledger)


def goes_on(run: Run) -> None:
    """The driver lives, and so does the run: another agent is started."""
    held = set(run.start_agent().status().held)
    for checkpoint in run.ledger.accepted - run.ledger.recorded.keys() if run.is_killed else ():
        attempts = set(run.ledger.reported[checkpoint])
        demand("HELD", attempts <= held, f"{checkpoint}: {attempts - held}")
    run.turns()
    run.end()
    check_published(run.home.root, run.ledger, killed=run.is_killed)
    check_gone(run.staging)


def restored(run: Run) -> None:
    """The driver is dead, and nobody starts the agent again: the experiment is restored."""
    run.restore()
    check_restored(run.home.root, run.ledger, killed=run.is_killed)
    check_empty(run.staging)


def goes_on_alone(run: Run) -> None:
    """The driver is dead, and another agent is started; what that leaves is restored."""
    run.start_agent()
    run.go_on_alone()
    restored(run)


def loses_its_node(run: Run) -> None:
    """The node that staged is lost; the other one's agent is started again."""
    shutil.rmtree(run.staging)
    run.start_peer()
    run.lose_node()
    run.peer_turns()
    run.end_peer()
    check_replicated(run.home.root, run.ledger)
    check_gone(run.peer_base / "disk")
    check_gone(run.peer_base / "shm")


def loses_the_other_node(run: Run) -> None:
    """The node that has replicas is lost."""
    run.backlog.lose_node(PEER, "it is gone")
    goes_on(run)


FOLLOWING = (goes_on, restored)
FOLLOWING_REPLICATED = (loses_its_node, loses_the_other_node)
# Where the driver was dead before.
FOLLOWING_ALONE = (goes_on_alone, restored)


def explore(
    story: Story, base: Path, parts: Parts = AS_IT_IS, *, every: int = 1, begin: int = 0,
    only: str = "", endings: Sequence[Ending] = ENDINGS, crash_recovery: bool = False,
) -> int:  # fmt: skip
    """Run the loop; returns how many crashes were looked at. Raises `ViolatedError` with the place.

    Args:
        story: What happens.
        base: An empty directory.
        parts: What a run is made of.
        every: Only each so many-th change; 1: all of them.
        begin: Leave out so many first.
        only: Only changes of which this is a part: of the verb, a space, and the key.
        endings: How it crashes.
        crash_recovery: Crash what follows, too.
    """
    crash_count, seen = 0, set[str]()
    for at_count, change in _changes(story, base, parts, only)[begin::every]:
        for when in WHENS:
            if when == "half" and change.split()[0] not in HALVED:
                continue
            life = Life(base / "life", parts=parts, faults=(crash_at(at_count, when),))
            life.lives(story)
            where = f"{when} change {at_count} ({change})"
            for later, ending in _new(life, seen, endings):
                crash_count += _follow(later, f"{where}, {ending}", crash_recovery)
            _empty(base)
    return crash_count


def _changes(story: Story, base: Path, parts: Parts, only: str) -> list[tuple[int, str]]:
    """All changes of a story, by their numbers, and that it has ended."""
    life = Life(base / "life", parts=parts)
    assert life.lives(story)
    _empty(base)
    calls = [*(f"{verb} {key}" for verb, key in life.kernel.files.calls), f"{only} the end"]
    return [(number, call) for number, call in enumerate(calls, 1) if only in call]


def _new(life: Life, seen: set[str], endings: Sequence[Ending]) -> Iterator[tuple[Life, str]]:
    """What a crash may leave, and no crash before has left."""
    for mode, seed in endings:
        if life.run.is_replicated and mode != "kill":
            continue  # a node that goes down is lost there
        later = life.crashed(mode, seed)
        state = later.state()
        if state not in seen:
            seen.add(state)
            yield later, f"{mode} {seed}"


def _follow(life: Life, where: str, crash_recovery: bool) -> int:
    crash_count = 0
    for story in _following(life.run):
        name = story.__name__
        with _told(f"{where}, {name}"):
            life.look()
            assert life.again(name).lives(story)
        crash_count += 1
        for at_count in itertools.count(1, EVERY_AGAIN) if crash_recovery else ():
            when: When = WHENS[at_count % 3]
            cut_off = life.again(f"{name} {at_count}", crash_at(at_count, when))
            ended, change = cut_off.lives(story), cut_off.kernel.files.calls[-1:]
            later = cut_off.crashed("kill", 0)
            with _told(f"{where}, {name}, {when} {at_count} of that {change}"):
                later.look()
                assert later.again(name).lives(story)
            crash_count += 1
            if ended:
                break
    return crash_count


def _following(run: Run) -> Sequence[Story]:
    if run.is_replicated:
        return FOLLOWING_REPLICATED
    return FOLLOWING_ALONE if run.is_alone else FOLLOWING


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Errors say where."""
    try:
        yield
    except Exception as error:
        error.args = (f"{error.args[0] if error.args else error} [{where}]",)
        raise


def _settle(disk: CrashStore, world: Path) -> None:
    """Make of the node what its disk holds."""
    todo = [""]
    (world / NODE).mkdir()
    while todo:
        for entry in disk.list(todo.pop()):
            if entry.is_dir:
                (world / NODE / entry.key).mkdir()
                todo.append(entry.key)
            else:
                (world / NODE / entry.key).write_bytes(disk.read(entry.key))


def _contents(world: Path) -> Iterator[tuple[str, bytes]]:
    for base, names, files in os.walk(world):
        here = Path(base)
        for name in names:
            yield str((here / name).relative_to(world)), b""
        for name in files:
            data = MOMENTS.sub(b"", (here / name).read_bytes())
            yield str((here / name).relative_to(world)), data


def _empty(base: Path) -> None:
    for path in base.iterdir():
        shutil.rmtree(path)
