"""What is killed, and when: worked out from a seed, before anything is started. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

# The driver alone; driver and cluster at once; the agent of one node; a worker's host.
DRIVER, ALL, AGENT, HOST = "driver", "all", "agent", "host"
ENDS_DRIVER = (DRIVER, ALL)
# How checkpoints travel: as `wait_for` says; or "staged", and each trial's newest once a period.
STORED, STAGED, REPLICATED, PERIODIC = "stored", "staged", "replicated", "periodic"
TRIALS_COUNT = 3
LONGEST_PAUSE_S = 5.0
AGAIN_SHARE = 0.25
OFTEN_SHARE = 0.7
LONGEST_AGAIN_S = 6.0


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill.

    Attributes:
        what: `DRIVER`, `ALL`, `AGENT` or `HOST`.
        pause_s: From when all trials have started, or from the kill before.
        again_s: The restore after it is killed after so long, too, and done again; None: it is not.
    """

    what: str
    pause_s: float
    again_s: float | None = None

    def __str__(self) -> str:
        again = "" if self.again_s is None else f", and its restore after {self.again_s:.2f} s"
        return f"{self.what} after {self.pause_s:.2f} s{again}"


@dataclass(frozen=True, slots=True)
class Experiment:
    """A search, and the kills that it gets over, one after the other.

    Attributes:
        seed: What everything random comes from.
        mode: `STORED`, `STAGED`, `REPLICATED` or `PERIODIC`; "" for plain Ray.
        num_to_keep: As in `CheckpointConfig`.
        kills: The last one ends the driver.
        state_every_s: Seconds between two versions of the state; None: as Ray likes.
    """

    seed: int
    mode: str
    num_to_keep: int | None
    kills: tuple[Kill, ...]
    state_every_s: int | None = None

    @property
    def title(self) -> str:
        """For messages."""
        often = "" if self.state_every_s is None else f", state every {self.state_every_s} s"
        what = self.mode or "plain Ray"
        return f"seed {self.seed}, {what}, num_to_keep={self.num_to_keep}{often}"


def experiment(seed: int, mode: str, num_to_keep: int | None, kinds: Sequence[str]) -> Experiment:
    """An experiment with these kills, at moments that the seed says."""
    chance = random.Random(seed)
    kills = tuple(_kill(chance, what) for what in kinds)
    # With `num_to_keep` Ray writes state all the time; without it, too seldom to be hit.
    often = mode and num_to_keep is None and chance.random() < OFTEN_SHARE
    return Experiment(seed, mode, num_to_keep, kills, 1 if often else None)


def kinds_of(seed: int, mode: str, count: int) -> list[str]:
    """Kinds of kills, as the seed says; the last one ends the driver."""
    chance = random.Random(-seed - 1)
    some = [DRIVER, DRIVER, ALL, ALL, HOST]
    more = [AGENT, AGENT] if mode != STORED else []
    return [*chance.choices(some + more, k=count - 1), chance.choice(ENDS_DRIVER)]


def _kill(chance: random.Random, what: str) -> Kill:
    pause_s = chance.uniform(0, LONGEST_PAUSE_S)
    is_again = chance.random() < AGAIN_SHARE
    again_s = chance.uniform(0, LONGEST_AGAIN_S)
    return Kill(what, pause_s, again_s if is_again and what in ENDS_DRIVER else None)
