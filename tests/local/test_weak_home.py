"""What the disk of the driver's node does to a run: its fsync hangs, or a quota is used up."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.hosts.searches import wait_for
from tests.manifests import manifests_of
from tests.weakfs import Weakness, weak_mount
from tests.weakfs.mount import MET
from tune_sync import RunConfig, SyncConfig
from tune_sync.errors import NotStoredError
from tune_sync.homes.commit import Committer
from tune_sync.homes.store import LocalStore

Mount = Callable[..., Path]
REPORTS_COUNT = 20
HELD = ("/staging/sealing/", "/x/publishing/checkpoint_000000")
FIRST = "x/.tune_sync/manifests/*/checkpoint_000000.json"
SILENT_S, MOST_RESULTS = 8.0, 600
PATIENCE_S = 200.0  # a loop that waits is let go then, so that the test ends, and fails


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Mount]:
    """Mounts a directory of this disk with faults."""
    with ExitStack() as stack:

        def mount(**faults: Any) -> Path:
            (tmp_path / "backing").mkdir()
            weak = weak_mount(tmp_path / "backing", tmp_path / "mount", Weakness(**faults))
            return stack.enter_context(weak)

        yield mount


def save(step: int) -> None:
    with tempfile.TemporaryDirectory() as made:
        Path(made, "step").write_text(str(step))
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(made))


def held_or_not(config: dict[str, Any]) -> None:
    """Two trials save once and hang there, the third one goes on meanwhile."""
    if config["name"] != "goes":
        save(0)
        return
    met = Path(config["gate"] + MET)
    wait_for(lambda: met.stat().st_size >= len(HELD), "the other trials to hang", PATIENCE_S)
    for step in range(REPORTS_COUNT):
        save(step)


class LetGo(tune.Callback):  # type: ignore[misc]
    """Lets those that hang go on once the driver has heard all of the other one's reports."""

    def __init__(self, gate: Path) -> None:
        self.gate, self.heard = gate, list[tuple[str, int]]()

    def on_trial_result(self, *args: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
        found = (result["config"]["name"], result["step"])
        if self.gate.exists():
            self.heard.append(found)
        if found == ("goes", REPORTS_COUNT - 1):
            self.gate.unlink(missing_ok=True)


def test_the_loop_goes_on_while_checkpoints_hang_at_home(
    local_ray: None, mounted: Mount, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    home = mounted(held_while=str(gate), held_in=HELD)
    let_go = LetGo(gate)
    patience = threading.Timer(PATIENCE_S, gate.unlink, [True])
    patience.start()
    names = ["sealing", "publishing", "goes"]
    try:
        results = tune.Tuner(
            tune.with_resources(held_or_not, {"cpu": 0.5}),
            param_space={"name": tune.grid_search(names), "gate": str(gate)},
            tune_config=tune.TuneConfig(trial_dirname_creator=lambda trial: trial.config["name"]),
            run_config=RunConfig(name="x", storage_path=home, callbacks=[let_go], verbose=0),
        ).fit()
    finally:
        patience.cancel()
    assert results.num_errors == 0
    goes = [("goes", step) for step in range(REPORTS_COUNT)]
    assert sorted(let_go.heard) == [*goes, ("publishing", 0)]
    stored = [m.checkpoint for m in manifests_of(Committer(LocalStore(home / "x")))]
    expected = [*goes, ("publishing", 0), ("sealing", 0)]
    assert stored == [f"{name}/checkpoint_{step:06d}" for name, step in expected]


class Heard(tune.Callback):  # type: ignore[misc]
    """Has the disk silent from the third result on, for a while, and counts results meanwhile."""

    def __init__(self, silent: Path) -> None:
        self.silent, self.results_count, self.meanwhile_count = silent, 0, 0

    def on_trial_result(self, *args: Any, **info: Any) -> None:
        self.results_count += 1
        self.meanwhile_count += self.silent.exists()
        if self.results_count == 3:
            self.silent.touch()
            threading.Timer(SILENT_S, self.silent.unlink).start()


def reports_metrics(config: dict[str, Any]) -> None:
    for step in range(MOST_RESULTS):
        tune.report({"step": step})
        if step > 5 and not Path(config["silent"]).exists():
            return
        time.sleep(0.1)


@pytest.mark.parametrize("is_shared", [False, True])
def test_the_loop_goes_on_while_a_disk_answers_nobody(
    local_ray: None, mounted: Mount, tmp_path: Path, is_shared: bool
) -> None:
    silent = tmp_path / "silent"
    home, heard = mounted(silent_while=str(silent)), Heard(silent)
    place: dict[str, Any] = {"storage_path": home}
    if is_shared:
        place = {"sync_config": SyncConfig(upload_dir=home)}
    results = tune.Tuner(
        reports_metrics,
        param_space={"silent": str(silent)},
        run_config=RunConfig(name="x", callbacks=[heard], verbose=0, **place),
    ).fit()
    assert results.num_errors == 0
    # Else all that came meanwhile is heard after it.
    assert heard.meanwhile_count > 20


def uses_up(config: dict[str, Any]) -> None:
    """The second checkpoint finds the quota used up."""
    save(0)
    wait_for(lambda: any(Path(config["home"]).glob(FIRST)), "the first one to be published")
    Path(config["flag"]).touch()
    save(1)


def test_a_quota_that_is_used_up_is_told_with_its_place_and_harms_nothing(
    local_ray: None, mounted: Mount, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    home = mounted(over_quota_while=str(flag))
    tuner = tune.Tuner(
        uses_up,
        param_space={"flag": str(flag), "home": str(home)},
        run_config=RunConfig(name="x", storage_path=home, verbose=0),
    )
    with pytest.raises(NotStoredError) as error:
        tuner.fit()
    root = home / "x"
    for part in (str(root), "quota used up", "what is stored is intact", "make room"):
        assert part in str(error.value)
    (manifest,) = manifests_of(Committer(LocalStore(root)))
    assert manifest.checkpoint.endswith("/checkpoint_000000")
    assert (root / manifest.checkpoint / "step").read_text() == "0"
    assert not list(root.glob("*/checkpoint_000001"))
