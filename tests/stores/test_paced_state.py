"""State that changes far more often than a bucket takes one object: it is put now and then.

Google refuses to replace an object more than once a second; no bucket is asked to.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from ray import tune

from tests.stores.proxy import Faults, Handler, proxy
from tests.stores.seaweed import S3Server, s3
from tune_sync import RunConfig, SyncConfig

URL, NAME = "s3://bucket/results", "paced"
PREFIX = f"results/{NAME}/"
REPORTS_COUNT, PAUSE_S = 200, 0.025
# From the end of a put of one object to the start of the next.
PERIOD_S = 1.0


class Timed(Handler):
    """Notes when each object was put: by its key, in monotonic seconds."""

    put_s: dict[str, list[float]]

    def pass_on(self, body: bytes, fault: str) -> None:
        path = self.path.partition("?")[0]
        if self.command == "PUT" and f"/{PREFIX}" in path:
            self.put_s[path.partition(PREFIX)[2]].append(time.monotonic())
        super().pass_on(body, fault)


class Counts(tune.Callback):  # type: ignore[misc]
    """How many versions of its state Ray has made."""

    made_count = 0

    def get_state(self) -> None:
        self.made_count += 1

    def __reduce__(self) -> tuple[Any, ...]:
        return tune.Callback, ()  # into the saved settings


def often(config: dict[str, Any]) -> None:
    for step in range(REPORTS_COUNT):
        tune.report({"step": step})
        time.sleep(PAUSE_S)


def test_state_that_changes_many_times_a_second_is_put_now_and_then_and_the_newest_at_the_end(
    own_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")  # Ray saves its state after each event
    counts, put_s = Counts(), defaultdict[str, list[float]](list)
    with proxy(own_server.endpoint_url, Faults(), Timed, put_s=put_s) as url:
        sync = SyncConfig(
            upload_dir=URL, storage_options={**own_server.options, "endpoint_url": url}
        )
        config: Any = RunConfig(name=NAME, verbose=0, callbacks=[counts], sync_config=sync)
        (result,) = tune.Tuner(often, run_config=config).fit()
    assert result.error is None
    assert counts.made_count >= REPORTS_COUNT
    (state,) = (key for key in put_s if key.startswith("experiment_state"))
    assert 2 <= len(put_s[state]) < counts.made_count / 2
    for key, times_s in put_s.items():
        # The probe of a start is put on condition, and then refused: nothing is replaced by that.
        if not key.startswith((".tune_sync/", ".tune_sync-probe-")):
            gaps_s = [later - earlier for earlier, later in pairwise(times_s)]
            assert min(gaps_s, default=PERIOD_S) >= PERIOD_S, key
    body = s3(own_server).get_object(Bucket="bucket", Key=PREFIX + state)["Body"].read()
    ((described, metadata),) = json.loads(body)["trial_data"]
    assert json.loads(described)["status"] == "TERMINATED"
    assert json.loads(metadata)["last_result"]["step"] == REPORTS_COUNT - 1
