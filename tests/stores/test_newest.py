"""What was put a moment ago is what a restore in another process finds: no listing is old."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ray import tune

from tests.stores.newest_driver import counts
from tests.stores.seaweed import S3Server
from tests.stores.test_behind import wait_for
from tune_sync import restore_kwargs

REPOSITORY = Path(__file__).parents[2]
STEPS_COUNT = 4
ENGINES = ("obstore", "pyarrow", "fsspec")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_restore_right_after_the_last_put_goes_on_from_the_newest(
    own_server: S3Server, tmp_path: Path, engine: str
) -> None:
    url = f"s3://bucket/newest/{engine}"
    env = {**os.environ, **own_server.env, "PYTHONPATH": f"{REPOSITORY}/tests/light:{REPOSITORY}"}
    argv = [
        sys.executable,
        "-m",
        "tests.stores.newest_driver",
        url,
        str(tmp_path),
        f"{STEPS_COUNT}",
    ]
    driver = subprocess.Popen(argv, env=env, cwd=REPOSITORY, start_new_session=True)
    try:
        wait_for(tmp_path / "reported")
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    print(f"killed {time.time() - (tmp_path / 'reported').stat().st_mtime:.2f} s after the report")
    given = restore_kwargs(url, {**own_server.options, "engine": engine})
    (result,) = tune.Tuner.restore(trainable=counts, **given).fit()
    assert result.error is None
    assert (result.metrics["resumed_at"], result.metrics["step"]) == (STEPS_COUNT, STEPS_COUNT)
