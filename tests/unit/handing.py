"""Directories that are handed over, without Ray."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.unit.test_node_sender import FIRST, Shaky, stored, until
from tune_sync import layout
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staging_home import StagingHome
from tune_sync.manifest import Seal
from tune_sync.source import GivenHandler
from tune_sync.transfer.upload import CheckpointUpload

LARGE = bytes(range(256)) * (5 << 12)
SMALL = b"small"


def directory(local: StagingHome) -> Path:
    made = local.make_directory()
    assert made is not None
    return made


def filled(local: StagingHome) -> Path:
    made = directory(local)
    (made / "a").mkdir()
    (made / "a" / "one").write_bytes(SMALL)
    (made / "large").write_bytes(LARGE)
    (made / "nothing").write_bytes(b"")
    (made / "empty").mkdir()
    return made


WHOLE = {"a/one": SMALL, "large": LARGE, "nothing": b""}


def report(
    local: StagingHome, made: Path, checkpoint: str = FIRST, *, rank: int = 0, ranks_count: int = 1
) -> CheckpointUpload:
    """What `tune.report` does with a `GivenHandler`, without Ray."""
    upload = CheckpointUpload(local, checkpoint, rank)
    given = GivenHandler(made)

    def send_file(file: Any, target: str, top: str) -> None:
        upload.add_file(file.path, file.source, file.same_as, is_given=file.is_given)

    given._target = SimpleNamespace(send_file=send_file)  # type: ignore[assignment]
    for name in given._tree.directories:
        upload.make_dir(name)
    given._send_to("there")
    upload.copied(ranks_count)
    assert upload.seal()
    return upload


def staged(root: Path, upload: CheckpointUpload, checkpoint: str = FIRST) -> Path:
    return root / layout.staged_key(checkpoint, upload.attempt)


def sealed(root: Path, upload: CheckpointUpload) -> Seal:
    seal = StagedCopies(root).seal(FIRST, upload.attempt)
    assert seal is not None
    return seal


def arrived(
    make: Callable[..., NodeSender], home: Shaky, upload: CheckpointUpload
) -> dict[str, bytes]:
    sender = make()
    news = until(sender, lambda n: bool(n.stored) or bool(n.failed))
    assert not news.failed
    return stored(home, news, upload, FIRST)
