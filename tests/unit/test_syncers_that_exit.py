"""Code of a user's own that ends like a program: that is no success, and ends nothing else."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tune_sync import CallbackSyncer, Syncer
from tune_sync.errors import StoreError
from tune_sync.mirror.outbox import Outbox
from tune_sync.syncers.base import BackgroundSyncer


def leaving(code: object) -> Callable[..., None]:
    """As the `main` of a command line tool."""
    return lambda *directories: sys.exit(code)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [1, "no credentials"])
@pytest.mark.parametrize("name", ["upload", "download", "delete"])
def test_a_function_that_exits_has_failed(tmp_path: Path, name: str, code: object) -> None:
    syncer = CallbackSyncer(*[leaving(code)] * 3)
    here = str(tmp_path)
    start = {
        "upload": lambda: syncer.sync_up(here, "there"),
        "download": lambda: syncer.sync_down("there", here),
        "delete": lambda: syncer.delete("there"),
    }[name]
    start()
    with pytest.raises(StoreError, match=rf"{name}\(.*'there'.* ended with exit code {code}"):
        syncer.wait()


@pytest.mark.parametrize("code", [0, None])
def test_a_function_that_exits_with_0_has_done_its_work(tmp_path: Path, code: object) -> None:
    def download(source: str, target: str) -> None:
        Path(target, "kept").write_text("x")
        sys.exit(code)  # type: ignore[arg-type]

    syncer = CallbackSyncer(download, download, download)
    syncer.sync_down("there", str(tmp_path / "here"), ["left out"])
    syncer.wait()
    assert (tmp_path / "here/kept").read_text() == "x"


def test_whatever_ends_a_sync_is_told(tmp_path: Path) -> None:
    class Broken(BaseException):
        pass

    class Own(BackgroundSyncer):
        def sync_up(self, local_dir: str, remote_dir: str, exclude: object = None) -> bool:
            return self._start(self._break)

        sync_down = sync_up

        def delete(self, remote_dir: str) -> bool:
            return self._start(self._break)

        def _break(self) -> None:
            raise Broken("half way")

    syncer = Own()
    syncer.sync_up(str(tmp_path), "there")
    with pytest.raises(StoreError, match="half way"):
        syncer.wait()


def test_a_syncer_that_exits_does_not_end_the_driver(tmp_path: Path) -> None:
    class Own(Syncer):
        def sync_up(self, local_dir: str, remote_dir: str, exclude: object = None) -> bool:
            sys.exit(3)

        sync_down = sync_up

        def delete(self, remote_dir: str) -> bool:
            sys.exit(3)

    outbox = Outbox(tmp_path, "there", Own(), backoff_s=0.0)
    with pytest.raises(StoreError, match="Own ended with exit code 3"):
        outbox.send_directory("x")


class Cancelled(Syncer):
    """As code on an event loop that ended."""

    def sync_up(self, local_dir: str, remote_dir: str, exclude: object = None) -> bool:
        raise asyncio.CancelledError("the loop")

    sync_down = sync_up

    def delete(self, remote_dir: str) -> bool:
        raise asyncio.CancelledError("the loop")


def test_a_syncer_that_is_cancelled_is_told_as_one_that_failed(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, "there", Cancelled(), backoff_s=0.0)
    for act in (outbox.send_directory, outbox.delete):
        with pytest.raises(StoreError, match=r"Cancelled broke off: CancelledError\('the loop'\)"):
            act("x")
    assert outbox.visible_marks() == set()


def test_ctrl_c_is_the_users(tmp_path: Path) -> None:
    class Interrupted(Cancelled):
        def delete(self, remote_dir: str) -> bool:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Outbox(tmp_path, "there", Interrupted(), backoff_s=0.0).delete("x")
