"""What Ray's logs lack after the death of the driver is put back from manifests."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.tune.utils.util import flatten_dict

from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import LeaseLostError, StoreFullError
from tune_sync.homes.bucket.site import BucketSite
from tune_sync.homes.home import Home
from tune_sync.homes.sites import LocalSite
from tune_sync.restoring.result_rows import PROGRESS, RESULTS, put_back
from tune_sync.run import Run

TRIAL = "trial_1"
COLUMNS = ("score", "training_iteration", "info/loss", "trial_id", "own")


@pytest.fixture(params=["local", "bucket"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    url = parse_bucket_url(f"memory://rows-{os.urandom(4).hex()}/exp")
    site = BucketSite(url) if request.param == "bucket" else LocalSite(tmp_path / "exp")
    opened = Run.open(site, "error", 30.0, 1)
    yield opened
    opened.close()


def row(iteration: int) -> dict[str, Any]:
    nested = {"info": {"loss": iteration / 10}, "config": {"x": 1}}
    return {"training_iteration": iteration, "score": iteration * 2, "trial_id": "a", **nested}


def save(home: Home, name: str, body: bytes) -> None:
    incoming = home.begin_file()
    home.write(incoming, 0, body)
    home.flush(incoming)
    home.commit_file(incoming, f"{TRIAL}/{name}", durable=False)


def read(home: Home, name: str) -> bytes:
    found = home.info(f"{TRIAL}/{name}")
    assert found is not None
    return bytes(home.read(f"{TRIAL}/{name}", 0, found.size_bytes))


def saved(home: Home, iterations: range, torn: str = "") -> None:
    """As Ray's loggers write them; the copy may have come in the middle of a row."""
    lines = "".join(json.dumps(row(i)) + "\n" for i in iterations)
    save(home, RESULTS, (lines + torn).encode())
    table = io.StringIO()
    writer = csv.DictWriter(table, COLUMNS)
    writer.writeheader()
    for i in iterations:
        plain = flatten_dict({k: v for k, v in row(i).items() if k != "config"}, delimiter="/")
        writer.writerow({**plain, "own": "mine"})
    save(home, PROGRESS, (table.getvalue() + torn).encode())


def iterations(home: Home) -> tuple[list[int], list[int]]:
    lines = read(home, RESULTS).decode().splitlines()
    table = list(csv.DictReader(io.StringIO(read(home, PROGRESS).decode(), newline="")))
    assert all(set(found) == set(COLUMNS) for found in table)
    return (
        [json.loads(line)["training_iteration"] for line in lines],
        [int(found["training_iteration"]) for found in table],
    )


@pytest.mark.parametrize("torn", ["", '{"score": 6, "traini'])
def test_later_rows_come_after_those_that_are_there(
    run: Run, torn: str, caplog: pytest.LogCaptureFixture
) -> None:
    saved(run.home, range(1, 4), torn)
    put_back(run.home, {TRIAL: [row(i) for i in range(2, 7)]})
    assert iterations(run.home) == ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])
    last = list(csv.DictReader(io.StringIO(read(run.home, PROGRESS).decode(), newline="")))[-1]
    assert last == {
        "score": "12", "training_iteration": "6", "info/loss": "0.6", "trial_id": "a", "own": "",
    }  # fmt: skip
    assert json.loads(read(run.home, RESULTS).splitlines()[-1]) == row(6)
    assert not caplog.records


def test_what_is_there_already_stays_as_it_is(run: Run) -> None:
    saved(run.home, range(1, 4))
    before = read(run.home, RESULTS), read(run.home, PROGRESS)
    put_back(run.home, {TRIAL: [row(2), row(3)]})
    assert (read(run.home, RESULTS), read(run.home, PROGRESS)) == before


def test_rows_that_nobody_knows_are_counted(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    saved(run.home, range(1, 4))
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        put_back(run.home, {TRIAL: [row(6), row(9)]})
    assert iterations(run.home) == ([1, 2, 3, 6, 9], [1, 2, 3, 6, 9])
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith(f"{TRIAL}: 4 rows of result.json between training_iteration 3 and 9")


def test_where_there_is_no_file_yet_the_columns_are_left_to_ray(run: Run) -> None:
    put_back(run.home, {TRIAL: [row(1), row(2)]})
    lines = read(run.home, RESULTS).decode().splitlines()
    assert [json.loads(line) for line in lines] == [row(1), row(2)]
    assert run.home.info(f"{TRIAL}/{PROGRESS}") is None


def test_where_nobody_writes_these_files_none_is_made(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    put_back(run.home, {TRIAL: [row(1), row(2)]})
    assert run.home.info(f"{TRIAL}/{RESULTS}") is None


def test_a_file_that_cannot_be_written_costs_a_warning_and_no_restore(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(incoming: str, key: str, durable: bool) -> None:
        raise StoreFullError("no space left")

    saved(run.home, range(1, 4))
    monkeypatch.setattr(run.home, "commit_file", full)
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        put_back(run.home, {TRIAL: [row(4)], "trial_2": [row(1)]})
    assert sum("not put back: StoreFull" in r.getMessage() for r in caplog.records) == 2


def test_neither_does_what_is_no_row(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    saved(run.home, range(1, 4))
    before = read(run.home, RESULTS), read(run.home, PROGRESS)
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        put_back(run.home, {TRIAL: [{"training_iteration": None}], "trial_2": [{"score": 1}]})
    assert sum("not put back" in record.getMessage() for record in caplog.records) == 2
    assert (read(run.home, RESULTS), read(run.home, PROGRESS)) == before


def test_who_lost_the_lease_hears_of_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(incoming: str, key: str, durable: bool) -> None:
        raise LeaseLostError("another run took over")

    monkeypatch.setattr(run.home, "commit_file", lost)
    with pytest.raises(LeaseLostError):
        put_back(run.home, {TRIAL: [row(1)]})
