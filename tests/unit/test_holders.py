"""Whom nodes that read one checkpoint are told to take it from."""

from __future__ import annotations

from tests.unit.test_node_sender import FIRST
from tune_sync.reading.holders import KNOWN_COUNT, Holders


def test_nodes_never_wait_for_each_other() -> None:
    """Each is told only of those that came before it, whoever is gone."""
    holders = Holders()
    assert [holders.join(FIRST, name) for name in ("one", "two", "three")] == ["", "one", "one"]
    assert holders.join(FIRST, "three", "one") == "two"
    assert holders.join(FIRST, "two", "one") == ""
    assert holders.join(FIRST, "four") == "two"
    assert holders.join(FIRST, "four", "two") == "three"
    assert holders.join(FIRST, "three", "two") == ""
    assert holders.join(FIRST, "two", "") == "", "it was told of one that may wait for it"


def test_who_is_gone_is_told_again_once_it_comes_back() -> None:
    holders = Holders()
    assert [holders.join(FIRST, name) for name in ("one", "two")] == ["", "one"]
    assert holders.join(FIRST, "two", "one") == ""
    assert holders.join(FIRST, "three") == "two"
    assert holders.join(FIRST, "one") == ""
    assert holders.join(FIRST, "three") == "one"


def test_of_many_checkpoints_the_latest_are_known() -> None:
    holders = Holders()
    names = [f"t/checkpoint_{number:06d}" for number in range(KNOWN_COUNT + 1)]
    assert [holders.join(name, "one") for name in names] == [""] * len(names)
    assert holders.join(names[-1], "two") == "one"
    assert holders.join(names[0], "two") == ""
    assert holders.join(names[0], "one") == "two"
