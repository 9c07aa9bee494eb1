"""Links in a reported directory: what our class sends and refuses, and what Ray's own does."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray import tune

import tune_sync
from tests.bed.tree import tree_digest
from tune_sync import RunConfig
from tune_sync.errors import PathRefusedError


def bind_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # such names may be 107 bytes long at most


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "absolute": (lambda d: (d / "bad").symlink_to("/etc/hostname"), "leaves the checkpoint"),
    "relative": (lambda d: (d / "bad").symlink_to("../outside"), "leaves the checkpoint"),
    "directory": (lambda d: (d / "bad").symlink_to("/etc"), "leaves the checkpoint"),
    "broken": (lambda d: (d / "bad").symlink_to("nowhere"), "broken: it points to 'nowhere'"),
    "itself": (lambda d: (d / "bad").symlink_to("bad"), "goes in a circle"),
    "parent": (lambda d: (d / "bad").symlink_to("."), "a directory that holds it"),
    "root": (lambda d: (d / "sub/bad").symlink_to(".."), "a directory that holds it"),
    "fifo": (lambda d: os.mkfifo(d / "bad"), "neither a file nor a directory"),
    "socket": (lambda d: bind_socket(d / "bad"), "neither a file nor a directory"),
}


def filled(root: Path) -> Path:
    (root / "outside").write_text("outside")
    directory = root / "checkpoint"
    (directory / "sub").mkdir(parents=True)
    (directory / "file").write_text("data")
    return directory


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_sent_is_refused_by_name(what: str, tmp_path: Path) -> None:
    directory = filled(tmp_path)
    make, says = REFUSED[what]
    make(directory)
    with pytest.raises(PathRefusedError, match=says) as refusal:
        tune_sync.Checkpoint.from_directory(directory)
    assert "bad'" in str(refusal.value)


def test_two_directories_that_link_to_each_other_are_refused(tmp_path: Path) -> None:
    directory = filled(tmp_path)
    (directory / "other").mkdir()
    (directory / "other/back").symlink_to("../sub")
    (directory / "sub/forth").symlink_to("../other")
    with pytest.raises(PathRefusedError, match="a directory that holds it"):
        tune_sync.Checkpoint.from_directory(directory)


def tell(kind: Any, name: str, make: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory() as root:
        directory = filled(Path(root))
        checkpoint = kind.from_directory(directory)
        make(directory)  # after our class has looked the first time
        try:
            tune.report({"case": name, "error": ""}, checkpoint=checkpoint)
        except Exception as error:
            tune.report({"case": name, "error": f"{type(error).__name__}: {error}"})


def reports(config: dict[str, Any]) -> None:
    def inside(directory: Path) -> None:
        (directory / "to_file").symlink_to("file")
        (directory / "to_dir").symlink_to("sub")
        (directory / "sub/f").write_text("below")
        (directory / "hard").hardlink_to(directory / "file")

    tell(tune.Checkpoint, "plain inside", inside)
    tell(tune_sync.Checkpoint, "ours inside", inside)
    for name in ("broken", "absolute", "parent"):
        tell(tune.Checkpoint, f"plain {name}", REFUSED[name][0])
        tell(tune_sync.Checkpoint, f"ours {name}", REFUSED[name][0])


@pytest.mark.lowest_slow
def test_links_follow_the_documented_rules_when_reported(local_ray: None, tmp_path: Path) -> None:
    class Keep(tune.Callback):  # type: ignore[misc]
        errors: dict[str, str] = {}

        def on_trial_result(self, *args: Any, result: dict[str, Any], **info: Any) -> None:
            Keep.errors[result["case"]] = result["error"]

    config = RunConfig(name="x", storage_path=tmp_path, callbacks=[Keep()], verbose=0)
    (result,) = tune.Tuner(reports, run_config=config).fit()
    assert result.error is None
    stored = [tree_digest(c) for c in sorted((tmp_path / "x").glob("*/checkpoint_*"))]
    refused = {case for case, error in Keep.errors.items() if error}
    assert refused == {"ours broken", "ours absolute", "plain parent", "ours parent"}, Keep.errors
    for case in refused:
        assert "PathRefusedError" in Keep.errors[case]
    assert "more than 32 levels deep" in Keep.errors["plain parent"]

    plain, ours, plain_broken, plain_absolute = stored
    assert plain == ours
    assert plain["to_file"] == plain["hard"] == plain["file"]
    assert plain["to_dir/f"] == plain["sub/f"]
    assert set(plain_broken) == {"file", "sub"}  # Arrow leaves it out without a word
    assert plain_absolute["bad"][0] == "file"  # and follows this one
    assert not [e for tree in stored for e in tree.values() if e[0] == "link"]
    assert json.dumps(sorted(os.listdir(tmp_path))) == '["x"]'
