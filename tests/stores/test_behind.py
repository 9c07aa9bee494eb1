"""Write-behind into a bucket: one machine, and a real S3 server that at times does not answer."""

from __future__ import annotations

import logging
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune

from tests.hosts.drivers.trainables import whole_digest, write_checkpoint
from tests.stores.proxy import Faults, proxy
from tests.stores.seaweed import seaweed
from tests.stores.test_runs import keys, plain_s3
from tune_sync import RunConfig, SyncConfig, run_config_kwargs, status
from tune_sync.errors import NotStoredError

URL = "s3://bucket/results"
TIMEOUT_S = 200.0


@pytest.fixture(scope="module")
def faults() -> Faults:
    return Faults()


@pytest.fixture(scope="module")
def cluster(faults: Faults, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ray whose workers reach the server through the proxy."""
    with (
        seaweed(tmp_path_factory.mktemp("weed")) as server,
        proxy(server.endpoint_url, faults) as url,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in {**server.env, "AWS_ENDPOINT_URL": url}.items():
            patch.setenv(name, value)
        plain_s3().create_dir("bucket")
        ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=200_000_000)
        yield
        ray.shutdown()


@pytest.fixture(autouse=True)
def answering(faults: Faults) -> Iterator[None]:
    yield
    faults.passes.set()
    faults.delay_s, faults.share, faults.is_down = 0.0, 0.0, False


def behind(name: str, tmp_path: Path, keep: int | None = None, **fields: Any) -> RunConfig:
    fields = {"wait_for": "staged", "storage_options": {"request_timeout_s": 2.0}, **fields}
    return RunConfig(
        name=name, verbose=0, checkpoint_config=tune.CheckpointConfig(num_to_keep=keep),
        sync_config=SyncConfig(upload_dir=URL, staging_dir=tmp_path / "staging", **fields),
    )  # fmt: skip


def notes_steps(config: dict[str, Any]) -> None:
    """Reports, and notes each report that returned in a file of this machine.

    After the first one it waits for the file "go".
    """
    for step in range(config["steps"]):
        with tempfile.TemporaryDirectory() as made:
            digest = write_checkpoint(Path(made), {"blob_bytes": 1 << 20}, {"step": step})
            checkpoint = tune.Checkpoint.from_directory(made)
            start_s = time.monotonic()
            tune.report({"step": step, "digest": digest}, checkpoint=checkpoint)
            note(Path(config["notes"], str(step)), time.monotonic() - start_s)
        while step == 0 and not Path(config["notes"], "go").exists():
            time.sleep(0.05)
        time.sleep(config.get("pause_s", 0.0))


def note(file: Path, took_s: float) -> None:
    fresh = file.with_suffix(".new")
    fresh.write_text(str(took_s))
    fresh.replace(file)


def notes_failure(config: dict[str, Any]) -> None:
    """As `notes_steps`, and notes that it failed."""
    try:
        notes_steps(config)
    except Exception:
        Path(config["notes"], "failed").touch()
        raise


def notes_waits(config: dict[str, Any]) -> None:
    """As `notes_steps`, and notes that a report says that it waits."""
    handler = logging.Handler()

    def look(record: logging.LogRecord) -> bool:
        if " waits: " in record.getMessage():
            Path(config["notes"], "waits").touch()
        return False

    handler.addFilter(look)
    logging.getLogger("ray.tune_sync").addHandler(handler)
    notes_steps(config)


class Fit(threading.Thread):
    """A search beside the test."""

    def __init__(self, tuner: tune.Tuner) -> None:
        super().__init__(daemon=True)
        self._tuner = tuner
        self.results: Any = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.results = self._tuner.fit()
        except Exception as error:
            self.error = error

    def end(self) -> Any:
        self.join(TIMEOUT_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.results


def wait_for(path: Path) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not path.exists():
        assert time.monotonic() < end_s, path
        time.sleep(0.05)


def published(name: str) -> list[str]:
    start = ".tune_sync/manifests/"
    return [k.removeprefix(start) for k in keys(name) if k.startswith(start)]


def test_reports_return_while_the_bucket_hangs_and_all_is_there_at_the_end(
    faults: Faults, cluster: None, tmp_path: Path
) -> None:
    space = {"steps": 5, "notes": str(tmp_path)}
    tuner = tune.Tuner(notes_steps, param_space=space, run_config=behind("hangs", tmp_path))
    fit = Fit(tuner)
    wait_for(tmp_path / "0")
    faults.passes.clear()
    (tmp_path / "go").touch()
    wait_for(tmp_path / "4")
    faults.passes.set()
    (result,) = fit.end()
    assert result.error is None
    assert len(published("hangs")) == 5
    with result.checkpoint.as_directory() as local:
        assert whole_digest(local) == result.metrics["digest"]
    again = tune.Tuner.restore(f"{URL}/hangs", notes_steps).get_results()
    assert again[0].metrics["step"] == 4
    assert not (tmp_path / "staging").exists() or not list((tmp_path / "staging").rglob("data"))


@pytest.mark.parametrize("keep", [1, 2])
def test_only_what_is_kept_travels_and_no_report_waits_for_state(
    keep: int, faults: Faults, cluster: None, tmp_path: Path
) -> None:
    """With so few kept Ray saves its state at each report, and no state can be put."""
    name = f"kept{keep}"
    space = {"steps": 10, "notes": str(tmp_path)}
    config = behind(name, tmp_path, keep=keep)
    fit = Fit(tune.Tuner(notes_steps, param_space=space, run_config=config))
    wait_for(tmp_path / "0")
    sent_before = len(faults.requests)
    faults.passes.clear()
    (tmp_path / "go").touch()
    wait_for(tmp_path / "9")
    faults.passes.set()
    (result,) = fit.end()
    assert result.error is None
    kept = [f"checkpoint_{step:06d}" for step in range(10 - keep, 10)]
    assert [p.rsplit("/")[-1] for p in published(name)] == [f"{k}.json" for k in kept]
    sent = {r.split("/")[-2] for r in faults.requests[sent_before:] if "blob" in r}
    assert set(kept) <= sent
    assert len(sent) < 10, "some were deleted before their turn"


def test_reports_wait_for_room_while_the_bucket_hangs_and_go_on_when_it_answers(
    faults: Faults, cluster: None, tmp_path: Path
) -> None:
    space = {"steps": 6, "notes": str(tmp_path)}
    config = behind("room", tmp_path, staging_limit_bytes=1 << 20)
    fit = Fit(tune.Tuner(notes_waits, param_space=space, run_config=config))
    wait_for(tmp_path / "0")
    faults.passes.clear()
    (tmp_path / "go").touch()
    wait_for(tmp_path / "waits")
    assert len(list(tmp_path.glob("[0-9]"))) < 4
    faults.passes.set()
    (result,) = fit.end()
    assert result.error is None
    assert len(published("room")) == 6


@pytest.mark.slow  # it waits for `sync_timeout`
def test_a_report_that_finds_no_room_in_time_fails_and_what_was_reported_is_stored(
    faults: Faults, cluster: None, tmp_path: Path
) -> None:
    space = {"steps": 9, "notes": str(tmp_path)}
    # Longer than the longest pause between two tries of one request.
    config = behind("no_room", tmp_path, staging_limit_bytes=1 << 20, sync_timeout=20)
    fit = Fit(tune.Tuner(notes_failure, param_space=space, run_config=config))
    wait_for(tmp_path / "0")
    faults.passes.clear()
    (tmp_path / "go").touch()
    wait_for(tmp_path / "failed")
    returned_count = len(list(tmp_path.glob("[0-9]")))
    assert 1 <= returned_count < 4
    faults.passes.set()
    (error,) = fit.end().errors
    assert "SyncTimeoutError" in str(error)
    assert "no room to stage it for 20 s (sync_timeout)" in str(error)
    assert "raise staging_limit_bytes" in str(error)
    assert len(published("no_room")) == returned_count


@pytest.mark.slow  # each request is tried for half a minute
def test_a_bucket_that_was_away_for_longer_than_all_tries_gets_everything_when_it_is_back(
    faults: Faults, cluster: None, tmp_path: Path
) -> None:
    space = {"steps": 5, "notes": str(tmp_path)}
    config = behind("back", tmp_path, sync_timeout=150)
    fit = Fit(tune.Tuner(notes_steps, param_space=space, run_config=config))
    wait_for(tmp_path / "0")
    faults.is_down = True
    (tmp_path / "go").touch()
    wait_for(tmp_path / "4")
    end_s = time.monotonic() + TIMEOUT_S
    while not any(node.error for node in status(f"{URL}/back").nodes):
        assert time.monotonic() < end_s, "no try to send has failed"
        time.sleep(0.5)
    found = status(f"{URL}/back")
    assert found.staged_count >= 4
    assert found.failed_count == 0
    faults.is_down = False
    (result,) = fit.end()
    assert result.error is None
    assert len(published("back")) == 5
    with result.checkpoint.as_directory() as local:
        assert whole_digest(local) == result.metrics["digest"]


def test_settings_count_in_tune_run_too(faults: Faults, cluster: None, tmp_path: Path) -> None:
    sync_config = SyncConfig(
        upload_dir=URL, wait_for="staged", staging_dir=tmp_path / "staging",
        storage_options={"request_timeout_s": 2.0},
    )  # fmt: skip
    kwargs = run_config_kwargs(sync_config, name="by_run")
    space = {"steps": 3, "notes": str(tmp_path)}
    thread = threading.Thread(
        target=lambda: tune.run(notes_steps, config=space, verbose=0, **kwargs), daemon=True
    )
    thread.start()
    wait_for(tmp_path / "0")
    assert list((tmp_path / "staging").rglob("staged_for.json"))
    faults.passes.clear()
    (tmp_path / "go").touch()
    wait_for(tmp_path / "2")
    faults.passes.set()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert len(published("by_run")) == 3


def test_a_report_whose_bucket_does_not_answer_is_staged_and_training_goes_on(
    faults: Faults, cluster: None, tmp_path: Path
) -> None:
    space = {"steps": 4, "notes": str(tmp_path)}
    fields: dict[str, Any] = {
        "wait_for": "stored", "on_sync_error": "continue", "sync_timeout": 8,
    }  # fmt: skip
    config = behind("continues", tmp_path, **fields)
    fit = Fit(tune.Tuner(notes_steps, param_space=space, run_config=config))
    wait_for(tmp_path / "0")
    # Else it was as slow as if the bucket had not answered, and is staged, as those that follow.
    if float((tmp_path / "0").read_text()) < fields["sync_timeout"]:
        assert any("checkpoint_000000" in key for key in keys("continues"))
    faults.passes.clear()
    (tmp_path / "go").touch()
    wait_for(tmp_path / "3")
    faults.passes.set()
    (result,) = fit.end()
    assert result.error is None
    assert len(published("continues")) == 4


def test_of_reports_that_are_not_stored_one_too_many_fails_and_names_the_cause(
    faults: Faults, cluster: None, tmp_path: Path
) -> None:
    space = {"steps": 9, "notes": str(tmp_path)}
    config = behind(
        "counted", tmp_path, wait_for="stored", on_sync_error="continue", sync_timeout=60,
        max_consecutive_failures=2,
    )  # fmt: skip
    fit = Fit(tune.Tuner(notes_failure, param_space=space, run_config=config))
    wait_for(tmp_path / "0")
    faults.kinds, faults.share = ("denied",), 1.0
    (tmp_path / "go").touch()
    wait_for(tmp_path / "failed")
    faults.share = 0.0
    (error,) = fit.end().errors
    told = re.search(r"last 2 reports \(max_consecutive_failures\): (.*); see to it", str(error))
    assert told and "s3://bucket/results/counted: cannot" in told[1] and "credentials" in told[1]
    assert len(list(tmp_path.glob("[0-9]"))) == len(published("counted"))


@pytest.mark.slow  # each request is tried for half a minute
def test_a_bucket_that_stays_away_makes_fit_raise_and_name_what_is_not_there(
    faults: Faults, cluster: None, tmp_path: Path
) -> None:
    space = {"steps": 2, "notes": str(tmp_path)}
    config = behind("away", tmp_path, sync_timeout=8)
    fit = Fit(tune.Tuner(notes_steps, param_space=space, run_config=config))
    wait_for(tmp_path / "0")
    faults.passes.clear()
    (tmp_path / "go").touch()
    wait_for(tmp_path / "1")
    with pytest.raises(NotStoredError, match="checkpoint_000001"):
        fit.end()
