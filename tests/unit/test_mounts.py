"""A mount that was forgotten: its directory is not made on the disk below without a word."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tune_sync import RunConfig, SyncConfig
from tune_sync.errors import ConfigError
from tune_sync.homes import mounts
from tune_sync.homes.mounts import missing_mount, mount_of, unmounted_place
from tune_sync.homes.shared.site import SharedSite

REPOSITORY = Path(__file__).parents[2]
NOT_THERE = Path("/mnt/tune_sync-test-not-there")

BEGIN = """
import logging, os, subprocess, sys
from pathlib import Path
from tune_sync.errors import ConfigError
from tune_sync.homes.mounts import unmounted_place, missing_mount, mount_of
from tune_sync.homes.shared.site import SharedSite
from tune_sync.homes.sites import LocalSite

at = Path(sys.argv[1])
point = at / "re sults"
(at / "fstab").write_text(f'''
# server:/other {at}/other nfs4 rw 0 0

none none swap sw 0 0
/dev/sda1 / ext4 rw 0 1
server:/results {at}/re@040sults nfs4 rw,noauto 0 0
'''.replace("@", chr(92)))

def mount(*words):
    subprocess.run(["mount", *map(str, words)], check=True)

mount("--bind", at / "fstab", "/etc/fstab")

def refused(call):
    try:
        call()
    except ConfigError as error:
        return str(error)
    raise SystemExit("not refused")
"""


def with_an_fstab(tmp_path: Path, body: str) -> str:
    """Run `body` where /etc/fstab has `point`, with nothing mounted there; returns what it says."""
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    command = [*own, sys.executable, "-c", BEGIN + body, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def test_what_fstab_has_and_is_not_mounted_is_refused_until_it_is(tmp_path: Path) -> None:
    with_an_fstab(
        tmp_path,
        """
for is_there in (False, True):
    for below in (point, point / "runs"):
        said = refused(SharedSite(below / "exp").check)
        assert f"nothing is mounted at {point}" in said and "/etc/fstab" in said, said
    assert list(point.glob("*") if is_there else at.glob("re*")) == [], "nothing was made"
    point.mkdir(exist_ok=True)
(at / "link").symlink_to(point)
assert f"nothing is mounted at {point}" in refused(SharedSite(at / "link" / "exp").check)
mount("-t", "tmpfs", "none", point)
for below in (point, point / "runs", at / "link" / "others"):
    SharedSite(below / "exp").check()
assert (point / "others").is_dir()
SharedSite(at / "other" / "exp").check()  # a comment wants nothing
""",
    )


def test_an_experiment_that_is_there_can_be_resumed_all_the_same(tmp_path: Path) -> None:
    with_an_fstab(
        tmp_path,
        """
(point / "exp").mkdir(parents=True)
(point / "exp/experiment_state-1.json").touch()
SharedSite(point / "exp").check()
assert missing_mount(point)
""",
    )


def test_a_storage_path_of_the_drivers_node_is_warned_of(tmp_path: Path) -> None:
    said = with_an_fstab(
        tmp_path,
        """
logging.basicConfig(level=logging.WARNING)
LocalSite(at / "elsewhere" / "exp").check()
LocalSite(point / "exp").check()
""",
    )
    assert said.count("nothing is mounted at") == 1 and f"{tmp_path}/re sults/exp" in said, said


def test_the_file_system_that_holds_a_directory_is_named(tmp_path: Path) -> None:
    with_an_fstab(
        tmp_path,
        """
point.mkdir()
mount("-t", "tmpfs", "below", point)
mount("-t", "tmpfs", "above", point)
assert str(mount_of(point / "not" / "there")) == f"tmpfs above, mounted at {point}"
assert mount_of(at).point != str(point)
""",
    )


def test_where_disks_are_mounted_by_custom_no_directory_is_made(tmp_path: Path) -> None:
    try:
        for place in (NOT_THERE, NOT_THERE / "mounted"):
            with pytest.raises(ConfigError, match=f"mkdir {NOT_THERE}$"):
                SharedSite(place / "exp").check()
        with pytest.raises(ConfigError, match=f"there is no {NOT_THERE}"):
            config = RunConfig(sync_config=SyncConfig(upload_dir=NOT_THERE / "mounted"))
            config.name = "as_by_ray"  # Ray names what has no name
            config.storage_filesystem.handler.start()
        assert not NOT_THERE.exists()
    finally:
        subprocess.run(["rm", "-rf", NOT_THERE], check=True)


def test_one_that_somebody_has_made_there_is_taken_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "mnt"
    monkeypatch.setattr(mounts, "PLACES", (str(place),))
    with pytest.raises(ConfigError, match=f"mkdir {place}/results"):
        SharedSite(place / "results" / "runs" / "exp").check()
    (place / "results").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        SharedSite(place / "results" / "runs" / "exp").check()
    assert f"nothing is mounted at {place}/results" in caplog.text
    assert str(mount_of(place)) in caplog.text
    assert unmounted_place(place) == ""


def test_a_fresh_directory_elsewhere_is_made_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        SharedSite(tmp_path / "new" / "runs" / "exp").check()
    assert caplog.text == "" and (tmp_path / "new" / "runs").is_dir()


def test_without_such_tables_all_is_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "TABLE", tmp_path / "none")
    monkeypatch.setattr(mounts, "FSTAB", tmp_path / "none")
    assert mount_of(tmp_path) is None
    assert unmounted_place(NOT_THERE) == missing_mount(NOT_THERE) == ""


def test_what_is_mounted_below_is_taken_as_it_is(tmp_path: Path) -> None:
    """As images have it: a line for all of /mnt, and mounts in directories of it."""
    with_an_fstab(
        tmp_path,
        """
(point / "nfs").mkdir(parents=True)
mount("-t", "tmpfs", "none", point / "nfs")
SharedSite(point / "nfs" / "runs" / "exp").check()
assert missing_mount(point / "runs") == str(point)
""",
    )


def test_what_else_fstab_has_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server may be away, and whoever looks would wait for it."""
    away, looked_at = tmp_path / "away", list[str]()
    fstab = tmp_path / "fstab"
    fstab.write_text(f"server:/away {away} nfs4 hard 0 0\n")
    monkeypatch.setattr(mounts, "FSTAB", fstab)
    lstat = os.lstat

    def look(path: Any, **how: Any) -> os.stat_result:
        looked_at.append(os.fspath(path))
        return lstat(path, **how)

    monkeypatch.setattr(os, "lstat", look)
    assert missing_mount(tmp_path / "here" / "exp") == ""
    assert looked_at and str(away) not in looked_at
    assert missing_mount(away / "exp") == str(away)
