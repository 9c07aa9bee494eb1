"""Kills, and says after each whether all holds that has to.

An experiment is killed several times: what is restored after a kill is what is killed next. So a
kill costs one start of a driver, and of a cluster only where that was killed, too.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.kills.arena import NOTES, WORKER, Arena
from tests.kills.notes import (
    Named,
    Note,
    Setback,
    add,
    begun_elsewhere,
    digests,
    is_broken,
    newest_durable,
    read,
    setbacks,
    starts,
)
from tests.kills.plan import (
    AGENT,
    ALL,
    HOST,
    PERIODIC,
    REPLICATED,
    STAGED,
    TRIALS_COUNT,
    Experiment,
    Kill,
)
from tests.kills.training import LIFE, STOP, notes_file

START_TIMEOUT_S = 180.0
END_TIMEOUT_S = 200.0
LOOK_S = 0.05


@dataclass(slots=True)
class Outcome:
    """What came of one kill.

    Attributes:
        experiment: Whose.
        kill: What was killed.
        bad: Checkpoints that the state names, and that are not there as they were reported.
        setbacks: Trials that went back behind what was durable.
        failure: Why it did not go on; "" if it did.
        took_s: How long all of it took, and what of it.
    """

    experiment: Experiment
    kill: Kill
    bad: list[str] = field(default_factory=list)
    setbacks: list[Setback] = field(default_factory=list)
    failure: str = ""
    took_s: dict[str, float] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """What is wrong, in words."""
        failures = [f"it did not go on: {self.failure}"] if self.failure else []
        return [*self.bad, *map(str, self.setbacks), *failures]

    def __str__(self) -> str:
        said = "; ".join(self.problems) or "clean"
        took = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in self.took_s.items())
        return f"{self.experiment.title}: {self.kill} ({took}): {said}"


class TroubleError(Exception):
    """It did not go on. Says why."""


class Trying:
    """One experiment.

    Args:
        arena: Where.
        experiment: What.
        say: Hears of each outcome.
        ends_alone: After the last kill, which ends the driver, it is restored without tune_sync.
    """

    def __init__(
        self, arena: Arena, experiment: Experiment, say: Callable[[str], None] = print,
        *, ends_alone: bool = False,
    ) -> None:  # fmt: skip
        self._arena = arena
        self._ends_alone = ends_alone
        self._experiment = experiment
        self._say = say
        self._name = f"exp-{experiment.seed}-{time.time_ns() // 1_000_000}"
        self._folder = arena.notes / self._name
        self._folder.mkdir()
        self._chance = random.Random(experiment.seed)
        # One more than are caused, so that one that nothing caused shows as one start too many.
        self._max_failures = 1 + sum(kill.what == HOST for kill in experiment.kills)
        self._lives_count = -1
        self._expected: list[int] = []

    def run(self) -> Iterator[Outcome]:
        """Kill by kill; ends after one after which it does not go on.

        Raises:
            TroubleError: It does not even begin.
        """
        self._arena.make_room()
        self._start(restore=False)
        try:
            self._await_starts()
            for kill in self._experiment.kills:
                outcome = self._outcome(kill)
                self._say(str(outcome))
                yield outcome
                if outcome.failure:
                    break
        finally:
            self._life.kill()

    def _outcome(self, kill: Kill) -> Outcome:
        outcome = Outcome(self._experiment, kill)
        try:
            is_last = kill is self._experiment.kills[-1]
            with _timed(outcome, "all"):
                self._one(kill, outcome, alone=is_last and self._ends_alone)
            if is_last and self._ends_alone:
                self._end_alone()
            elif is_last and self._experiment.mode:
                with _timed(outcome, "its end"):
                    self._end(outcome)
        except TroubleError as error:
            outcome.failure = str(error)
        return outcome

    # One kill

    def _one(self, kill: Kill, outcome: Outcome, *, alone: bool) -> None:
        self._check_lives()
        time.sleep(kill.pause_s)
        self._check_lives()
        if kill.what == AGENT:
            self._kill_agent(outcome)
            return
        if kill.what == HOST:
            self._kill_host()
        else:
            named = self._kill_driver(kill.what, outcome, alone=alone)
            if kill.again_s is not None and not alone:
                time.sleep(kill.again_s)
                self._kill_driver(kill.what, outcome)
            with _timed(outcome, "restore"):
                self._await_starts()
            if alone:  # Ray knows what the state names, and no more
                firsts = {i: self._starts(i)[-1]["first"] for i in range(TRIALS_COUNT)}
                outcome.bad += begun_elsewhere(named, firsts)
                return
        outcome.setbacks = self._setbacks()

    def _kill_driver(self, what: str, outcome: Outcome, *, alone: bool = False) -> Named:
        """Alone, or with the cluster; then look at the bucket, and restore.

        Returns:
            What the state named by then.
        """
        outcome.bad += self._restarted()
        with _timed(outcome, "kill"):
            if what == ALL:
                self._arena.kill_cluster()
            self._life.kill()
        with ThreadPoolExecutor(1) as pool, _timed(outcome, "look and new cluster"):
            started = pool.submit(self._arena.start_cluster) if what == ALL else None
            if started is not None:
                self._note_lost(self._arena.published(self._name), range(TRIALS_COUNT))
                self._arena.age_lease(self._name)
            named = self._arena.named(self._name)
            outcome.bad += self._bad(named)
            if started is not None:
                started.result()
        self._start(restore=True, alone=alone)
        return named

    def _kill_agent(self, outcome: Outcome) -> None:
        """A node's; its trials go on, and what it had staged arrives all the same."""
        acked = [newest_durable(self._notes(index)) for index in range(TRIALS_COUNT)]
        with _timed(outcome, "agent"):
            self._wait_for("an agent", lambda: self._arena.kill_agent(self._chance))
            self._wait_for(f"steps {acked} in the bucket", lambda: self._has_published(acked))
        outcome.bad += self._restarted()

    def _has_published(self, steps: Sequence[int]) -> bool:
        published = self._arena.published(self._name)
        return all(published.get(index, -1) >= step for index, step in enumerate(steps))

    def _kill_host(self) -> None:
        """The worker's; wait until its trials have begun elsewhere."""
        published = self._arena.published(self._name)
        self._arena.kill_worker()
        there = [i for i in range(TRIALS_COUNT) if self._starts(i)[-1]["host"] == WORKER]
        if self._experiment.mode != REPLICATED:  # else the driver's host has all of it
            self._note_lost(published, there)
        for index in there:
            self._expected[index] += 1
        self._arena.renew_worker()
        self._await_starts()

    def _end(self, outcome: Outcome) -> None:
        """Have it end by itself: all that was acknowledged is there then."""
        outcome.bad += self._restarted()
        (self._folder / STOP).touch()
        errors = self._life.result(END_TIMEOUT_S)["errors"]
        if errors:
            raise TroubleError("; ".join(errors))
        outcome.bad += self._bad(self._arena.named(self._name))
        published = self._arena.published(self._name)
        for index in range(TRIALS_COUNT):
            acked = newest_durable(self._notes(index))
            if published.get(index, -1) < acked:
                outcome.bad.append(
                    f"fit() returned, and step {acked} of trial {index} is not there"
                )

    def _end_alone(self) -> None:
        """Have a run end by itself of which tune_sync knows nothing."""
        (self._folder / STOP).touch()
        errors = self._life.result(END_TIMEOUT_S)["errors"]
        if errors:
            raise TroubleError("; ".join(errors))

    # Inside

    def _start(self, *, restore: bool, alone: bool = False) -> None:
        self._lives_count += 1
        self._expected = [1] * TRIALS_COUNT
        (self._folder / LIFE).write_text(str(self._lives_count))
        self._life = self._arena.start(
            {
                "name": self._name, "notes": f"{NOTES}/{self._name}", "restore": restore,
                "alone": alone, "mode": self._experiment.mode, "trials_count": TRIALS_COUNT,
                "num_to_keep": self._experiment.num_to_keep, "max_failures": self._max_failures,
                "state_every_s": self._experiment.state_every_s,
            }
        )  # fmt: skip

    def _await_starts(self) -> None:
        """Wait until trials have been started as often as expected in this driver's life."""
        end_s = time.monotonic() + START_TIMEOUT_S
        while late := [i for i, count in enumerate(self._expected) if len(self._starts(i)) < count]:
            self._check_lives()
            broken = [i for i in late if is_broken(self._notes(i), self._lives_count)]
            if broken:
                raise TroubleError(f"trials {broken} failed: {self._life.output()}")
            if time.monotonic() > end_s:
                raise TroubleError(f"trials {late} do not start: {self._life.output()}")
            time.sleep(LOOK_S)

    def _wait_for(self, what: str, holds: Callable[[], bool]) -> None:
        end_s = time.monotonic() + END_TIMEOUT_S
        while not holds():
            self._check_lives()
            if time.monotonic() > end_s:
                raise TroubleError(f"no {what} within {END_TIMEOUT_S} s: {self._life.output()}")
            time.sleep(LOOK_S)

    def _restarted(self) -> list[str]:
        """Trials that were started more often than they were killed in this driver's life."""
        return [
            f"trial {index} failed, though nothing of it was killed"
            for index, count in enumerate(self._expected)
            if len(self._starts(index)) > count
        ]

    def _check_lives(self) -> None:
        if self._life.has_ended:
            raise TroubleError(f"the driver has ended by itself: {self._life.output()}")

    def _note_lost(self, published: Mapping[int, int], indexes: Iterable[int]) -> None:
        """What was not in the bucket yet is gone with these trials' hosts."""
        if self._experiment.mode in (STAGED, REPLICATED, PERIODIC):
            for index in indexes:
                add(self._file(index), event="lost", stored=published.get(index, -1))

    def _bad(self, named: Named) -> list[str]:
        """Checkpoints that the state names, and that are not what was reported."""
        known = {index: digests(self._notes(index)) for index in range(TRIALS_COUNT)}
        return [
            f"the state names {found['path']}: {found['error'] or 'other bytes than reported'}"
            for found in named
            if found["error"]
            or (found["step"], found["digest"]) not in known.get(found["index"], ())
        ]

    def _setbacks(self) -> list[Setback]:
        notes = (self._notes(index) for index in range(TRIALS_COUNT))
        return [found for some in notes for found in setbacks(some, self._lives_count)]

    def _starts(self, index: int) -> list[Note]:
        return starts(self._notes(index), self._lives_count)

    def _notes(self, index: int) -> list[Note]:
        return read(self._file(index))

    def _file(self, index: int) -> Path:
        return notes_file(self._folder, index)


@contextmanager
def _timed(outcome: Outcome, what: str) -> Iterator[None]:
    start_s = time.monotonic()
    try:
        yield
    finally:
        outcome.took_s[what] = outcome.took_s.get(what, 0.0) + time.monotonic() - start_s
