"""Copies of an experiment's state on nodes: what is copied when, and which one is given back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.test_left_behind import WHERE
from tune_sync.agents.refill import offer_here
from tune_sync.behind.left_behind import Claim
from tune_sync.behind.state_copy import RENEW_S, STATE_DIR, StateCopy, read_copy
from tune_sync.homes.home import LocalHome

STATE = "experiment_state-2026.json"


class Time:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home/trial").mkdir(parents=True)
    (tmp_path / "home/tuner.pkl").write_bytes(b"tuner")
    return tmp_path / "home"


def test_all_files_of_the_top_are_copied_once_ray_can_restore_from_them(
    home: Path, tmp_path: Path
) -> None:
    clock = Time()
    copy = StateCopy(tmp_path / "node", lambda: LocalHome(home), clock)
    copy.renew()
    assert read_copy(tmp_path / "node") == (0.0, {}), "there is no state yet"
    (home / STATE).write_text("first")
    copy.renew()
    assert read_copy(tmp_path / "node")[1] == {"tuner.pkl": b"tuner", STATE: b"first"}
    (home / STATE).write_text("second, and longer")
    copy.renew()
    assert read_copy(tmp_path / "node")[1][STATE] == b"first", "it is not time yet"
    clock.now_s = RENEW_S
    copy.renew()
    assert read_copy(tmp_path / "node")[1][STATE] == b"second, and longer"


def test_what_has_not_changed_is_not_read_again(home: Path, tmp_path: Path) -> None:
    class Counting(LocalHome):
        reads: list[str] = []

        def read(self, key: str, offset_bytes: int, length_bytes: int) -> bytes:
            self.reads.append(key)
            return super().read(key, offset_bytes, length_bytes)

    (home / STATE).write_text("first")
    clock = Time()
    copy = StateCopy(tmp_path / "node", lambda: Counting(home), clock)
    for number in range(3):
        clock.now_s = number * RENEW_S
        copy.renew()
    assert sorted(Counting.reads) == [STATE, "tuner.pkl"]


def test_what_is_replaced_while_it_is_read_is_copied_at_the_next_look(
    home: Path, tmp_path: Path
) -> None:
    (home / STATE).write_text("first")
    node = tmp_path / "node"

    class Busy(LocalHome):
        is_busy = True

        def read(self, key: str, offset_bytes: int, length_bytes: int) -> bytes:
            if key == STATE and self.is_busy:
                self.store.write_at(f"{key}.new", 0, b"second, and longer")
                self.store.rename(f"{key}.new", key)
            return super().read(key, offset_bytes, length_bytes)

    busy = Busy(home)
    copy = StateCopy(node, lambda: busy, Time())
    copy.renew()
    assert not (node / STATE_DIR / STATE).exists()
    busy.is_busy = False
    copy.renew()
    assert read_copy(node)[1][STATE] == b"second, and longer"


def test_a_node_offers_its_newest_copy_of_that_experiment_and_none_of_another_user(
    home: Path, tmp_path: Path
) -> None:
    (home / STATE).write_text("first")
    staging = tmp_path / "staging"
    roots = [staging / run / "node" for run in ("1" * 32, "2" * 32, "3" * 32)]
    for age_s, root in enumerate(roots):
        Claim(root, WHERE if age_s else "/elsewhere/exp", f"begun by {age_s}")
        StateCopy(root, lambda: LocalHome(home)).renew()
        (root / STATE_DIR / STATE).write_text(root.parent.name[0])
        for path in (root / STATE_DIR).iterdir():
            os.utime(path, (1000.0 - age_s, 1000.0 - age_s))
    _, files, begun_by = offer_here(WHERE, str(staging))
    assert (files[STATE], begun_by) == (b"2", "begun by 1")
    (roots[1] / STATE_DIR).chmod(0o777)
    assert offer_here(WHERE, str(staging))[1][STATE] == b"3"
    assert offer_here("/nowhere", str(staging)) == (0.0, {}, "")
