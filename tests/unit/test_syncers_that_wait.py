"""A syncer of a user's own that hangs, or fails: whoever waits for it is told."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from tests.local.own_syncers import PlainSyncer
from tune_sync import CallbackSyncer
from tune_sync.mirror.mirror import Mirror
from tune_sync.mirror.outbox import Outbox


def refuse(*directories: str) -> None:
    raise OSError("507 Insufficient Storage")


class Refusing(PlainSyncer):
    def delete(self, remote_dir: str) -> bool:
        raise OSError("507 Insufficient Storage")


@pytest.mark.parametrize("syncer", [CallbackSyncer(refuse, refuse, refuse), Refusing()])
def test_the_first_try_that_fails_is_told(
    syncer: CallbackSyncer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox(tmp_path, "there", syncer, backoff_s=0.0)
    with pytest.raises(Exception, match="507"):
        outbox.delete("x")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "failed, and is tried again in 0 s: " in said[0]
    assert "507" in said[0]


def test_before_training_the_cause_is_told_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    syncer = CallbackSyncer(refuse, refuse, refuse)
    with pytest.raises(Exception, match="507"):
        Mirror(tmp_path, "there", syncer, 1.0, 1.0, backoff_s=0.0).begin(())
    said = [record.getMessage() for record in caplog.records]
    assert "507 Insufficient" in said[0], said
    assert "tried again" in said[0], said
    assert "stays in there" in said[-1], said


def test_a_syncer_that_works_for_long_is_told_now_and_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def work(*directories: str) -> None:
        time.sleep(1.0)

    caplog.set_level(logging.INFO, "ray.tune_sync")
    outbox = Outbox(tmp_path, "there", CallbackSyncer(work, work, work))
    outbox.say_every_s = 0.2
    (tmp_path / "x").mkdir()
    outbox.send_directory("x")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) >= 2
    assert "CallbackSyncer has been sending there/x for 0 s" in said[0]
    time.sleep(0.5)
    assert len(caplog.records) == len(said)
