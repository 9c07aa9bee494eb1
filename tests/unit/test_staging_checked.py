"""What is wrong with a node's staging directory is known before anything is staged there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.unit.test_store_disks import on_a_small_disk
from tune_sync.behind.staging_roots import trouble_of


def test_of_one_that_can_be_made_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for given in (str(tmp_path / "nodes" / "staging"), ""):
        assert trouble_of(given) is None
        assert not list(tmp_path.iterdir())
    root = tmp_path / "there"
    root.mkdir()
    assert trouble_of(str(root)) is None
    assert not list(root.iterdir())


@pytest.mark.parametrize(
    ("below", "why"),
    [
        ("file", "is no directory"),
        ("file/below", "is no directory"),
        ("link", "is no directory"),
        ("/proc/below", "no directory can be made in /proc"),
        ("/proc", "cannot be written to"),
        ("/sys/below", "cannot be written to"),
        ("x" * 300, "File name too long"),
    ],
)
def test_one_that_cannot_be_is_named_with_the_reason_and_the_way_out(
    tmp_path: Path, below: str, why: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    root = str(tmp_path / below)
    trouble = trouble_of(root)
    assert trouble is not None and trouble.is_hopeless == ("be made" in why or "is no" in why)
    assert root in trouble.why and why in trouble.why
    assert "give another staging_dir" in trouble.why


def test_one_that_is_somebody_elses_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    Path(tmp_path, f"tune_sync-{os.getuid()}").symlink_to(tmp_path)
    trouble = trouble_of("")
    assert trouble is not None and trouble.is_hopeless
    assert str(tmp_path) in trouble.why and "SyncConfig(staging_dir=...)" in trouble.why


def test_a_read_only_disk_is_refused_and_a_full_one_is_not(tmp_path: Path) -> None:
    """There may be room later, and meanwhile checkpoints go on by themselves."""
    on_a_small_disk(
        tmp_path,
        """
from contextlib import suppress
from tune_sync.behind.staging_roots import trouble_of
(disk / "staging").mkdir()
for fills in range(2):  # the rest of its bytes, then of its inodes
    with suppress(OSError), open(disk / "fills", "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    assert trouble_of(str(disk / "staging")) is None
    subprocess.run(["mount", "-o", "remount,nr_inodes=6", disk], check=True)
assert trouble_of(str(disk / "new")) is None
subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
for root in (disk, disk / "staging", disk / "none" / "staging"):
    said = trouble_of(str(root)).why
    assert "Read-only file system" in said and "give another staging_dir" in said, said
""",
    )


def test_one_that_this_user_may_not_write_is_refused(tmp_path: Path) -> None:
    on_a_small_disk(
        tmp_path,
        """
os.chmod(disk, 0o555)
child = os.fork()
if child == 0:
    from tune_sync.behind.staging_roots import trouble_of
    if os.getuid() == 0:
        os.setuid(65534)
    said = [trouble_of(str(root)).why for root in (disk, disk / "staging")]
    good = all("Permission denied" in one and f"uid {os.getuid()}" in one for one in said)
    os._exit(0 if good else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
    )
