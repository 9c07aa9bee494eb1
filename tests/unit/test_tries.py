"""Which parts of several ranks are a whole checkpoint, where the driver that knew is dead."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.manifests import manifests_of
from tests.unit.test_bucket_commit import C0, staged
from tests.unit.test_node_sender import FIRST, Shaky, make, staging, until
from tune_sync.behind.node_sender import NodeSender
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.recorded import Recovery
from tune_sync.homes.tries import whole_tries, why_not_whole
from tune_sync.manifest import Seal, seal_from_json, to_json
from tune_sync.sending.backlog import Backlog
from tune_sync.sending.orders import News, Orders
from tune_sync.testing.memory_bucket import MemoryBucket
from tune_sync.transfer.upload import CheckpointUpload

__all__ = ["make"]  # a fixture


def seal(attempt: str, rank: int, at_s: float = 1.0, **known: Any) -> Seal:
    return Seal(attempt, rank, at_s, (), (), **{"ranks_count": 2, **known})


def names(seals: list[Seal]) -> list[list[str]]:
    return [[s.attempt for s in one] for one in whole_tries(seals)]


def test_parts_are_whole_where_one_of_them_names_all_that_are_there() -> None:
    zero, one = seal("a", 0, staged_as="x"), seal("b", 1, staged_as="y")
    assert names([zero, one]) == []
    told = seal("b", 1, staged_as="y", parts=("x", "y"))
    assert names([told, zero]) == [["a", "b"]]
    assert names([told]) == []
    direct = seal("z", 2)  # there was no room on its node
    assert names([zero, direct, seal("b", 1, staged_as="y", parts=("x", "y", "z"))]) == [
        ["a", "b", "z"]
    ]


def test_a_rank_that_alone_has_reported_is_the_whole() -> None:
    assert names([seal("a", 0, staged_as="x", parts=("x",))]) == [["a"]]


def test_parts_of_an_earlier_try_are_left_out_and_the_latest_whole_one_comes_first() -> None:
    early = [seal("a", 0, 1.0), seal("b", 1, 2.0, parts=("a", "b"))]
    late = [seal("c", 0, 3.0, parts=("c", "d")), seal("d", 1, 4.0)]
    assert names([*early, *late]) == [["c", "d"], ["a", "b"]]
    assert names([*early, late[0]]) == [["a", "b"]]


def test_it_is_said_what_is_missing() -> None:
    assert why_not_whole([seal("a", 0, ranks_count=1), seal("b", 0, ranks_count=None)]) == ""
    assert "ranks 0, 1 of 2" in why_not_whole([seal("a", 0), seal("b", 1)])
    told = why_not_whole([seal("a", 1, parts=("a", "b", "c"))])
    assert told == "2 of its 3 parts never arrived; ranks 1 did"


def test_a_seal_keeps_what_is_known_of_the_others_and_of_metrics() -> None:
    found = seal("a", 1, staged_as="x", parts=("x", "y"), metrics={"loss": 0.5})
    assert seal_from_json(to_json(found), "here") == found


# From the driver to the destination


def test_the_driver_tells_nodes_all_parts_until_they_know_them() -> None:
    backlog = Backlog()
    backlog.accept(FIRST, False, ["x@n1", "y@n2", "z"], None)
    assert backlog.orders("n1").parts == {"x": ["z", "x", "y"]}
    backlog.hear("n1", News(held=["x"], noted=["x"]))
    assert backlog.orders("n1").parts == {}
    assert backlog.orders("n2").parts == {"y": ["z", "x", "y"]}
    backlog.hear("n1", News(held=["x"]))  # its agent was started again
    assert backlog.orders("n1").parts == {"x": ["z", "x", "y"]}


@pytest.fixture
def home(tmp_path: Path) -> Shaky:
    return Shaky(tmp_path / "home")


def two_ranks(tmp_path: Path, home: Shaky, *senders: NodeSender) -> list[str]:
    """Two nodes have a part each of one checkpoint; returns their attempts."""
    uploads = [
        CheckpointUpload(staging(tmp_path, home, sender), FIRST, rank)
        for rank, sender in enumerate(senders)
    ]
    for rank, upload in enumerate(uploads):
        with upload.open(f"rank{rank}") as stream:
            stream.write(bytes([rank]))
        upload.copied(len(uploads), {"rank": rank})
        assert upload.seal()
    return [upload.attempt for upload in uploads]


def test_ranks_whose_driver_died_after_it_took_them_are_published(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    home.is_up = False
    (zero, one) = two_ranks(tmp_path, home, sender, sender)
    news = sender.exchange(Orders(parts={zero: [zero, one]}))
    assert set(news.noted) == {zero}
    home.is_up = True
    until(sender, lambda n: len(n.stored) == 2)
    assert home.committer.recover().completed == (FIRST,)
    (manifest,) = manifests_of(home.committer)
    assert [file.path for file in manifest.files] == ["rank0", "rank1"]
    assert manifest.metrics == {"rank": 0}


def test_ranks_of_which_nobody_knows_are_not_published_and_that_is_said(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender], caplog: pytest.LogCaptureFixture
) -> None:
    sender = make()
    two_ranks(tmp_path, home, sender, sender)
    until(sender, lambda n: len(n.stored) == 2)
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        assert home.committer.recover().dropped == (FIRST,)
    assert f"{FIRST} is not published: parts of ranks 0, 1 of 2" in caplog.text
    assert not (home.root / ".tune_sync/staging").exists()


def bucket_with_ranks(**known: Any) -> BucketCommitter:
    committer = BucketCommitter(MemoryBucket(), "dead")
    for rank, body in enumerate((b"0", b"1")):
        attempt = staged(committer, {f"rank{rank}": b"x", "common": body}, rank)
        part = committer._parts(C0, [attempt])[0]
        told = {"staged_as": f"n{rank}", "ranks_count": 2, "metrics": {"rank": rank}}
        told |= known if rank else {}
        committer.seal(C0, Seal(attempt, rank, float(rank), part.seal.files, (), **told),
                       part.etags)  # fmt: skip
    return BucketCommitter(committer.bucket, "next")


def test_in_a_bucket_ranks_are_published_with_what_the_lowest_has_noted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    committer = bucket_with_ranks(parts=("n0", "n1"))
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        assert committer.recover().completed == (C0,)
    (manifest,) = manifests_of(committer)
    assert [file.path for file in manifest.files] == ["common", "rank0", "rank1"]
    assert manifest.metrics == {"rank": 0}
    assert "ranks 0 and 1 report different bytes for common" in caplog.text


def test_what_strict_refuses_is_refused_after_a_restore_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    committer = bucket_with_ranks(parts=("n0", "n1"))
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        assert committer.recover(strict=True).dropped == (C0,)
    assert "ranks 0 and 1 report different bytes for 'common'" in caplog.text
    assert manifests_of(committer) == []


def test_in_a_bucket_ranks_of_which_nobody_knows_are_dropped_with_their_objects(
    caplog: pytest.LogCaptureFixture,
) -> None:
    committer = bucket_with_ranks()
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        assert committer.recover().dropped == (C0,)
    assert f"{C0} is not published: parts of ranks 0, 1 of 2 have arrived" in caplog.text
    assert list(committer.bucket.list("trial")) == []


# A node that was down at the restore, and has come back


def test_parts_wait_for_those_of_a_node_that_was_down(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    home.is_up = False
    (zero, one) = two_ranks(tmp_path, home, sender, sender)
    sender.exchange(Orders(parts={zero: [zero, one], one: [zero, one]}, held_back=[one]))
    home.is_up = True
    until(sender, lambda n: set(n.stored) == {zero})
    assert home.committer.recover(waits=True) == Recovery((), (), kept=(FIRST,))
    sender.exchange(Orders(parts={zero: [zero, one], one: [zero, one]}))
    until(sender, lambda n: len(n.stored) == 2)
    assert home.committer.recover().completed == (FIRST,)
    assert not (home.root / ".tune_sync/staging").exists()


def test_in_a_bucket_parts_wait_too_and_are_dropped_if_the_rest_does_not_come(
    caplog: pytest.LogCaptureFixture,
) -> None:
    committer = bucket_with_ranks(parts=("n0", "n1", "n2"))
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        assert committer.recover(waits=True) == Recovery((), (), kept=(C0,))
    assert caplog.text == ""
    attempt = staged(committer, {"rank2": b"x"}, 2)
    part = committer._parts(C0, [attempt])[0]
    committer.seal(C0, Seal(attempt, 2, 2.0, part.seal.files, (), staged_as="n2"), part.etags)
    assert committer.recover(waits=True).completed == (C0,)
    late = bucket_with_ranks(parts=("n0", "n1", "n2"))
    late.recover(waits=True)
    assert late.recover().dropped == (C0,)
    assert list(late.bucket.list("trial")) == []
