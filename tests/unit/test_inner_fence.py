"""A trainer inside of a trial writes as long as the run of the trial may."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.test_inner_runs import HALF, INNER, WHOLE, site, write
from tune_sync import layout
from tune_sync.agents.connect import RayConnector
from tune_sync.agents.home_agent import HomeAgent
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import LeaseLostError
from tune_sync.homes.inner_runs import note_inner
from tune_sync.homes.shared.site import SharedSite
from tune_sync.homes.sites import LocalSite, Site
from tune_sync.inner import inner_spec
from tune_sync.run import Run
from tune_sync.spec import Options, Spec

__all__ = ["site"]


def inner_of(site: Site, owner: str) -> Spec:
    """A trainer's, inside of a trial of a run."""
    url = parse_bucket_url(site.where) if "://" in site.where else None
    root, _, name = (url.path if url else site.where).rpartition("/")
    options = Options(shared=isinstance(site, SharedSite))
    outer = Spec("key", root, name, owner, None, options, url.scheme if url else "")
    return inner_spec(outer, *INNER.split("/"))


def test_a_trainer_whose_run_was_taken_over_writes_nothing_more(site: Site) -> None:
    first = Run.open(site, "error", 30.0, 1)
    spec = inner_of(site, first.owner)
    home = RayConnector().home(Spec.from_plain(spec.to_plain()))
    home.publish(WHOLE, False, [write(home, WHOLE, is_sealed=True)])
    attempt = write(home, HALF, is_sealed=True)
    second = Run.open(site, "error", 30.0, 1)  # as the first one never began
    try:
        for act in (
            lambda: home.begin("checkpoint_000002"),
            lambda: home.publish(HALF, False, [attempt]),
            lambda: home.remove(WHOLE),
        ):
            with pytest.raises(LeaseLostError, match="no longer owned by this run"):
                act()
        assert home.info(f"{WHOLE}/file") is not None
    finally:
        second.close()


def test_so_it_is_through_the_home_agent(tmp_path: Path) -> None:
    site, agent = LocalSite(tmp_path / "exp"), HomeAgent()
    first = Run.open(site, "error", 30.0, 1)
    inner = inner_of(site, first.owner)
    where = inner.where, inner.writer, 0
    agent.call(*where, "begin", WHOLE)
    second = Run.open(site, "error", 30.0, 1)
    with pytest.raises(LeaseLostError, match="no longer owned by this run"):
        agent.call(*where, "begin", HALF)
    second.close()


@pytest.mark.parametrize("is_shared", [False, True])
def test_where_it_writes_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    site = (SharedSite if is_shared else LocalSite)(tmp_path / "exp")
    run = Run.open(site, "error", 30.0, 1)
    fsync, synced = os.fsync, set[str]()

    def noting(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    try:
        note_inner(run.home, INNER)
        assert str(tmp_path / "exp" / layout.INTERNAL_DIR) in synced, "where its note is"
        spec = inner_of(site, run.owner)
        home = RayConnector().home(Spec.from_plain(spec.to_plain()))
        home.publish(WHOLE, False, [write(home, WHOLE, is_sealed=True)])
        inner = tmp_path / "exp" / INNER
        assert {str(inner), str(inner.parent), str(tmp_path / "exp")} <= synced
    finally:
        run.close()
