"""A directory is tried before a run: what it lacks is named, or does no harm."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tune_sync import RunConfig, SyncConfig
from tune_sync.errors import ConfigError, StoreFullError
from tune_sync.homes.shared.probe import Mark, look
from tune_sync.homes.shared.site import SharedSite, check_abilities

Mount = Callable[..., Path]


@pytest.mark.parametrize(
    ("fault", "missing"),
    [
        ("no_append", "writing into the middle of a file"),
        ("no_replace", "renaming a file over another one"),
        ("no_directory_rename", "renaming a directory"),
    ],
)
def test_what_cannot_be_done_without_is_named(mounted: Mount, fault: str, missing: str) -> None:
    at = mounted(**{fault: True})
    with pytest.raises(ConfigError, match="cannot be shared") as error:
        SharedSite(at / "results/exp").check()
    assert f"{at}/results" in str(error.value)
    assert f"lacks {missing}" in str(error.value)
    assert "leave upload_dir out" in str(error.value)
    assert os.listdir(at / "results") == []


def test_a_run_does_not_start_there(mounted: Mount) -> None:
    config = RunConfig(name="exp", sync_config=SyncConfig(upload_dir=mounted(no_replace=True)))
    with pytest.raises(ConfigError, match="lacks renaming a file over another one"):
        config.storage_filesystem.handler.start()


@pytest.mark.parametrize(
    "fault", ["no_fsync", "no_fsync_of_directories", "no_links", "stale", "held_open"]
)
def test_the_rest_is_worked_around(mounted: Mount, fault: str) -> None:
    at = mounted(**{fault: True})
    check_abilities(at)
    assert os.listdir(at) == []


@pytest.mark.parametrize(
    ("fault", "says"), [("full", "no space left"), ("over_quota", "quota used up")]
)
def test_a_full_disk_keeps_its_own_error(mounted: Mount, fault: str, says: str) -> None:
    with pytest.raises(StoreFullError, match=says):
        check_abilities(mounted(**{fault: True}))


def experiment(at: Path) -> str:
    (at / "exp/.tune_sync").mkdir(parents=True)
    return str(at / "exp")


def mark_seen_at(mark: Mark, there: Path, here: Path) -> str:
    return str(there / mark.path.relative_to(here))


def test_a_directory_that_two_nodes_see_is_shared_also_if_it_takes_a_while(mounted: Mount) -> None:
    here, there = mounted(delay_s=1.0), mounted(delay_s=1.0)
    with Mark(experiment(here)) as mark:
        assert look(mark_seen_at(mark, there, here), "w1") == ""
        assert mark.has_answer("w1")
        assert not mark.has_answer("w2", 0)
    assert os.listdir(here / "exp/.tune_sync") == []


def test_what_is_wrong_is_said(mounted: Mount, tmp_path: Path) -> None:
    here = mounted()
    other = tmp_path / "other"
    other.mkdir()
    with Mark(experiment(here)) as mark:
        assert f"no directory {other}/exp" in look(mark_seen_at(mark, other, here), "w1", 0)
        missing = look(mark_seen_at(mark, tmp_path / "nothing", here), "w1", 0)
        assert f"no directory {tmp_path}/nothing:" in missing
        experiment(other)
        assert "another directory" in look(mark_seen_at(mark, other, here), "w1", 0)
        full = mounted(full=True)
        trouble = look(mark_seen_at(mark, full, here), "w1", 0)
        assert "cannot write there" in trouble and "No space left" in trouble
        assert f"uid {os.getuid()}" in trouble


def test_a_user_who_may_not_write_is_named(tmp_path: Path) -> None:
    for place in (tmp_path, *tmp_path.parents):
        if place.stat().st_uid == os.getuid() and place != Path("/"):
            place.chmod(place.stat().st_mode | 0o055)
    with Mark(experiment(tmp_path)) as mark:
        trouble = as_nobody(lambda: look(str(mark.path), "w1", 0))
    assert trouble.startswith("user nobody (uid 65534) cannot write there:")
    assert "Permission denied" in trouble


def as_nobody(call: Callable[[], str]) -> str:
    """What a call returns in a process of another user."""
    reader, writer = os.pipe()
    if not os.fork():
        try:
            os.setuid(65534)
            os.environ["LOGNAME"] = "nobody"
            os.write(writer, call().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        found = answer.read().decode()
    os.wait()
    return found
