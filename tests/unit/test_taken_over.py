"""A restore ends the agents of a dead run: what a trial reported last stays for the next one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.unit.test_node_sender import FIRST, SECOND, Shaky, home, make, report, staging, until
from tune_sync.behind.left_behind import remove_sent
from tune_sync.behind.node_sender import NodeSender
from tune_sync.sending.orders import Orders

__all__ = ["home", "make"]  # fixtures


def test_what_is_reported_after_a_node_has_sent_all_is_not_removed(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    first = report(staging(tmp_path, home, sender), FIRST)
    until(sender, lambda n: first.attempt in n.stored)
    assert sender.go_on_alone().left_count == 0
    home.is_up = False
    late = report(staging(tmp_path, home, sender), SECOND)
    sender.wake()
    until(sender, lambda n: bool(n.error))
    sender.exchange(Orders(is_closing=True))
    until(sender, lambda n: not n.sending)
    sender.make_room()
    sender.free_memory("")
    assert late.attempt in sender.status().held
    sender.end(leave=True)
    assert not remove_sent([tmp_path / "node"])
    (kept,) = (tmp_path / "node").rglob(f"{late.attempt}/seal.json")
    assert kept.exists()


def test_what_a_live_driver_says_is_of_no_use_is_removed(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    home.is_up = False
    report(staging(tmp_path, home, sender), FIRST)
    sender.wake()
    until(sender, lambda n: bool(n.error))
    sender.go_on_alone()
    sender.exchange(Orders())  # it was only silent for a while
    sender.exchange(Orders(is_closing=True))
    until(sender, lambda n: not n.sending)  # what is being sent stays until that has failed
    assert sender.exchange(Orders(is_closing=True)).held == []
