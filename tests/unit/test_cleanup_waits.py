"""`cleanup` leaves to a restore what nodes may still have the rest of, and says so."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest

from tests.unit.test_inner_runs import INNER, crashed, save_state, site, write
from tune_sync import layout
from tune_sync.behind.staging_sweep import LEFT_AGE_S
from tune_sync.homes.digests import digest_of
from tune_sync.homes.home import Home, LocalHome
from tune_sync.homes.recorded import Recovery
from tune_sync.homes.sites import LocalSite, Site
from tune_sync.layout import staged_key
from tune_sync.manifest import FileEntry, Seal
from tune_sync.run import Run
from tune_sync.tidying import tidy

__all__ = ["site"]  # a fixture

CHECKPOINT, HALF = "trial/checkpoint_000000", "other/checkpoint_000000"
NAMES = ("a" * 32, "b" * 32)


def part(home: Home, rank: int, sealed_s: float, *, is_sent: bool = True) -> str:
    """The part of one of two ranks, as its node sends it, or as the rank itself writes it."""
    attempt, data, path = home.begin(CHECKPOINT), b"bytes", f"rank{rank}"
    key = f"{staged_key(CHECKPOINT, attempt)}/{path}"
    home.write(key, 0, data)
    home.finish(key)
    files = (FileEntry(path, len(data), digest_of(data)),)
    told = {"staged_as": NAMES[rank], "parts": NAMES} if is_sent else {}
    home.seal(CHECKPOINT, Seal(attempt, rank, sealed_s, files, (), 2, **told))  # type: ignore[arg-type]
    return attempt


def left(home: Home) -> list[str]:
    """Files of the checkpoint, and of its staging."""
    staging = f"{layout.STAGING_DIR}/{CHECKPOINT}"
    return [e.key for key in ("trial", staging) for e in home.list(key, True) if not e.is_dir]


def dead(site: Site) -> Home:
    """The home of an experiment whose driver has died."""
    site.prepare()
    home = site.home("", 1)
    save_state(home)
    write(home, HALF, is_sealed=False)
    return home


def test_a_part_that_a_node_sent_stays_until_a_restore_and_that_is_said(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    part(dead(site), 0, time.time())
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        assert tidy(site) == Recovery((), (HALF,), kept=(CHECKPOINT,))
    assert f"kept: {CHECKPOINT}. Nodes may have the rest" in caplog.text
    assert "A restore asks them" in caplog.text and "14 days after it was sealed" in caplog.text
    run = Run.open(site, "resume", 30.0, 1)
    try:
        part(run.home, 1, time.time())  # its host is back, and has sent it
        run.recover()
        found = run.home.committer.manifest(CHECKPOINT)
        assert found is not None and [file.path for file in found.files] == ["rank0", "rank1"]
    finally:
        run.close()


def test_it_goes_when_nodes_have_removed_the_rest(site: Site) -> None:
    part(dead(site), 0, time.time() - LEFT_AGE_S - 60)
    assert set(tidy(site).dropped) == {CHECKPOINT, HALF}
    assert left(site.home("", 1)) == []


def test_what_ranks_wrote_themselves_waits_for_no_node(site: Site) -> None:
    part(dead(site), 0, time.time(), is_sent=False)
    assert set(tidy(site).dropped) == {CHECKPOINT, HALF}


def test_a_restore_that_finds_no_node_drops_it_after_a_cleanup_as_before(site: Site) -> None:
    part(dead(site), 0, time.time())
    tidy(site)
    run = Run.open(site, "resume", 30.0, 1)
    try:
        run.recover()
        assert left(run.home) == []
    finally:
        run.close()


def test_what_a_checkpoint_is_made_of_stays_with_a_seal_that_cannot_be_read(
    tmp_path: Path,
) -> None:
    site = LocalSite(tmp_path / "exp")
    dead(site)
    home = site.home("", 1)
    attempts = [part(home, rank, 1.0, is_sent=False) for rank in (0, 1)]
    for checkpoint, parts in ((CHECKPOINT, attempts), (HALF, ["c" * 32])):
        note = site.root / layout.reported_key(checkpoint)
        note.parent.mkdir(parents=True)
        note.write_text(json.dumps({"format_version": 1, "parts": parts}))
    seal = site.root / layout.seal_key(CHECKPOINT, attempts[1])
    whole = seal.read_bytes()
    seal.write_bytes(whole[:50])
    assert tidy(site) == Recovery((), (HALF,), kept=(CHECKPOINT,))
    assert not note.exists()  # of what was dropped
    seal.write_bytes(whole)
    assert tidy(site).completed == (CHECKPOINT,)
    assert not (site.root / layout.REPORTED_DIR).exists()


def test_what_a_trainer_left_and_cannot_be_read_is_looked_at_again(tmp_path: Path) -> None:
    site = LocalSite(tmp_path / "exp")
    crashed(site)
    (seal,) = (site.root / INNER / layout.STAGING_DIR).rglob("seal.json")
    whole = seal.read_bytes()
    seal.write_bytes(whole[:50])
    (kept,) = tidy(site).kept
    seal.write_bytes(whole)
    assert tidy(site).completed == (kept,)
    assert not LocalHome(site.root).store.list(layout.INNER_DIR)
