"""What a crashed trainer inside of a trial left is tidied with its experiment."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.manifests import manifests_of
from tests.unit.test_train_record import record
from tune_sync import cleanup, layout
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import ConfigError, PathRefusedError
from tune_sync.homes.bucket.site import BucketSite
from tune_sync.homes.digests import digest_of
from tune_sync.homes.home import Home, LocalHome
from tune_sync.homes.inner_runs import note_inner
from tune_sync.homes.recorded import Readable
from tune_sync.homes.saved_train import note_stored
from tune_sync.homes.shared.site import SharedSite
from tune_sync.homes.sites import LocalSite, Site
from tune_sync.layout import staged_key
from tune_sync.manifest import FileEntry, Seal
from tune_sync.run import Run

INNER = "trial_1/my trainer"
WHOLE, HALF = "checkpoint_000000", "checkpoint_000001"


@pytest.fixture(params=["local", "shared", "bucket"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "bucket":
        url = f"memory://inner-{os.urandom(4).hex()}/exp"
        yield BucketSite(parse_bucket_url(url))
    else:
        yield {"local": LocalSite, "shared": SharedSite}[request.param](tmp_path / "exp")


def write(home: Home, checkpoint: str, *, is_sealed: bool) -> str:
    """Begin a checkpoint, and seal it; returns its attempt."""
    attempt, data = home.begin(checkpoint), b"bytes"
    key = f"{staged_key(checkpoint, attempt)}/file"
    home.write(key, 0, data)
    home.flush(key)
    home.finish(key)
    if is_sealed:
        files = (FileEntry("file", len(data), digest_of(data)),)
        home.seal(checkpoint, Seal(attempt, 0, 1.0, files, (), 1))
    return attempt


def crashed(site: Site) -> None:
    """A run whose trainer wrote a whole checkpoint and half of the next one, and died with it.

    Its record, of an older version, names the first one.
    """
    run = Run.open(site, "error", 30.0, 1)
    note_inner(run.home, INNER)
    inner = site.inside(INNER).home("", 0)
    write(inner, WHOLE, is_sealed=True)
    write(inner, HALF, is_sealed=False)
    save(inner, layout.TRAIN_RECORD, record(WHOLE))
    run.give_back()


def files(store: Readable, top: str) -> list[str]:
    """Keys of files: this bucket keeps directories that are empty."""
    entries = store.list(top)
    below = [key for e in entries if e.is_dir for key in files(store, e.key)]
    return [e.key for e in entries if not e.is_dir] + below


def check_tidy(site: Site) -> None:
    inner = site.inside(INNER).home("", 0)
    there = {e.key for e in inner.list("", True) if not e.is_dir}
    assert there == {f"{WHOLE}/file", layout.TRAIN_RECORD}
    assert [m.checkpoint for m in manifests_of(inner.committer)] == [WHOLE]
    assert files(inner.store, layout.STAGING_DIR) == []
    assert files(site.home("", 1).store, layout.INNER_DIR) == []


def test_cleanup_tidies_it_and_names_it_by_the_experiment(site: Site) -> None:
    crashed(site)
    found = cleanup(site.where)
    assert (found.completed, found.dropped) == ((f"{INNER}/{WHOLE}",), (f"{INNER}/{HALF}",))
    check_tidy(site)


def test_a_restore_tidies_it_before_trials_begin(site: Site) -> None:
    crashed(site)
    save_state(site.home("", 1))
    run = Run.open(site, "resume", 30.0, 1)
    try:
        run.recover()
        check_tidy(site)
        note_inner(run.home, INNER)  # the trainer begins again
        note_inner(run.home, INNER)
        assert len(files(run.home.store, layout.INNER_DIR)) == 1
    finally:
        run.close()


def save_state(home: Home) -> None:
    save(home, "experiment_state-1.json", json.dumps({"trial_data": []}).encode())


def save(home: Home, key: str, data: bytes) -> None:
    incoming = home.begin_file()
    home.write(incoming, 0, data)
    home.flush(incoming)
    home.commit_file(incoming, key, True)


@pytest.mark.parametrize("is_resumed", [True, False])
def test_what_a_trainers_record_does_not_name_is_treated_as_that_of_a_run(
    site: Site, caplog: pytest.LogCaptureFixture, *, is_resumed: bool
) -> None:
    crashed(site)
    inner = site.inside(INNER).home("", 0)
    inner.publish(WHOLE, False, [a for c, a in inner.committer.attempts("") if c == WHOLE])
    note_stored(inner)
    inner.publish("checkpoint_000002", False, [write(inner, "checkpoint_000002", is_sealed=True)])
    inner.seal(HALF, Seal(inner.begin(HALF), 0, 1.0, (), (), 2))  # of the other rank nothing came
    inner.seal("checkpoint_000003", Seal(inner.begin("checkpoint_000003"), 0, 1.0, (), (), 1))
    if is_resumed:
        save_state(site.home("", 1))
        Run.open(site, "resume", 30.0, 1).give_back()
    else:
        found = cleanup(site.where)
        assert (found.completed, found.kept) == ((), ())
    is_there = [inner.committer.manifest(f"checkpoint_00000{n}") is not None for n in range(4)]
    assert is_there == [True, False, not is_resumed, False]
    assert files(inner.store, layout.STAGING_DIR) == []
    what = "is deleted" if is_resumed else "is not named by Ray Train"
    assert f"{INNER}/checkpoint_000002 {what}" in caplog.text


def test_cleanup_of_the_trainers_own_directory_says_what_to_give(site: Site) -> None:
    crashed(site)
    with pytest.raises(ConfigError, match="directory of the experiment"):
        cleanup(site.inside(INNER).where)


@pytest.mark.parametrize(
    "body", [b"{", b"{}", b'{"directory":"../../other"}', b'{"directory":"a/.tune_sync"}',
             b'{"directory":"a"}', b'{"directory":"trial_1/a/b"}', b"[1]",
             pytest.param(b"[" * 100_000, id="deep")],
)  # fmt: skip
def test_a_note_that_leads_elsewhere_is_told_and_leads_nowhere(
    tmp_path: Path, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    site = LocalSite(tmp_path / "exp")
    crashed(site)
    (note,) = (tmp_path / "exp" / layout.INNER_DIR).iterdir()
    note.write_bytes(body)
    found = cleanup(site.where)
    assert (found.completed, found.dropped) == ((), ())
    assert note.read_bytes() == body


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    site: Any = LocalSite(tmp_path / "exp")
    crashed(site)
    (tmp_path / "exp/trial_1").rename(tmp_path / "elsewhere")
    (tmp_path / "exp/trial_1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PathRefusedError, match="link"):
        site.inside(INNER)
    assert cleanup(site.where).completed == ()


def test_nothing_else_of_ours_can_be_written_by_a_trial(tmp_path: Path) -> None:
    home = LocalSite(tmp_path / "exp").home("", 1)
    for name in ("x.json", f"{'0' * 32}.json/x", f"../{'0' * 32}.json", "0" * 32):
        with pytest.raises(PathRefusedError):
            home.commit_file(home.begin_file(), f"{layout.INNER_DIR}/{name}", True)
    with pytest.raises(PathRefusedError, match=r"not in \.tune_sync/incoming"):
        home.commit_file(f"{layout.STAGING_DIR}/x", f"{layout.INNER_DIR}/{'0' * 32}.json", True)


@pytest.mark.parametrize(
    "name", ["a/b", "checkpoint_000001", "../b", "..", ".", "", ".tune_sync", "a\0b", "x" * 300]
)
def test_a_trainer_cannot_have_a_name_that_is_no_directory_of_its_trial(
    tmp_path: Path, name: str
) -> None:
    home = LocalHome(tmp_path)
    with pytest.raises(ConfigError, match="give another name"):
        note_inner(home, f"trial/{name}")
    assert not list(tmp_path.iterdir())
