"""What Ray's logs lack after the death of the driver is put back."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.tune.utils import flatten_dict

from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import LeaseLostError, StoreFullError
from tune_sync.homes.bucket.site import BucketSite
from tune_sync.homes.home import Home
from tune_sync.homes.sites import LocalSite
from tune_sync.layout import INCOMING_DIR, checkpoint_name
from tune_sync.restoring.result_rows import PROGRESS, RESULTS, Known, put_back
from tune_sync.run import Run

TRIAL = "trial_1"
NOWHERE = Path("/nowhere")
COLUMNS = ("score", "training_iteration", "info/loss", "checkpoint_dir_name", "own")


@pytest.fixture(params=["local", "bucket"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    url = parse_bucket_url(f"memory://rows-{os.urandom(4).hex()}/exp")
    site = BucketSite(url) if request.param == "bucket" else LocalSite(tmp_path / "exp")
    opened = Run.open(site, "error", 30.0, 1)
    yield opened
    opened.close()


def row(iteration: int, number: int | None = None) -> dict[str, Any]:
    """What was reported with a checkpoint, by default the one of that iteration."""
    name = checkpoint_name(iteration - 1 if number is None else number)
    nested = {"info": {"loss": iteration / 10}, "config": {"x": 1}}
    return {
        "training_iteration": iteration, "score": iteration * 2, "checkpoint_dir_name": name,
        **nested,
    }  # fmt: skip


def nameless(iteration: int) -> dict[str, Any]:
    """As Ray logs it of class trainables, or of a report without a checkpoint."""
    return {**row(iteration), "checkpoint_dir_name": None}


def adopts(home: Home, rows: Sequence[dict[str, Any]], local: Path = NOWHERE) -> None:
    put_back(home, {TRIAL: Known(rows, local)})


def save(home: Home, name: str, body: bytes) -> None:
    incoming = home.begin_file()
    home.write(incoming, 0, body)
    home.flush(incoming)
    home.commit_file(incoming, f"{TRIAL}/{name}", durable=False)


def read(home: Home, name: str) -> bytes:
    found = home.info(f"{TRIAL}/{name}")
    assert found is not None
    return bytes(home.read(f"{TRIAL}/{name}", 0, found.size_bytes))


def logged(rows: Sequence[dict[str, Any]]) -> tuple[bytes, bytes]:
    """As Ray's loggers write them."""
    lines = "".join(json.dumps(one) + "\n" for one in rows)
    table = io.StringIO()
    writer = csv.DictWriter(table, COLUMNS)
    writer.writeheader()
    for one in rows:
        plain = flatten_dict({k: v for k, v in one.items() if k != "config"}, delimiter="/")
        writer.writerow({**plain, "own": "mine"})
    return lines.encode(), table.getvalue().encode()


def stored(home: Home, rows: Sequence[dict[str, Any]], torn: bytes = b"") -> None:
    """The copy may have come in the middle of a row."""
    for name, body in zip((RESULTS, PROGRESS), logged(rows), strict=True):
        save(home, name, body + torn)


def table(home: Home) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(read(home, PROGRESS).decode(), newline="")))


def iterations(home: Home) -> list[int]:
    found = [json.loads(line)["training_iteration"] for line in read(home, RESULTS).splitlines()]
    assert [int(one["training_iteration"]) for one in table(home)] == found
    assert all(set(one) == set(COLUMNS) for one in table(home))
    return found


def test_half_a_row_goes_also_where_none_is_put_back(run: Run) -> None:
    """Ray would write its next one on."""
    stored(run.home, [row(1), row(2)], b'{"score": 6, "traini')
    adopts(run.home, [row(2)])
    assert iterations(run.home) == [1, 2]
    assert read(run.home, RESULTS).endswith(b"}\n")


@pytest.mark.parametrize("torn", [b"", b'{"score": 6, "traini'])
def test_later_rows_come_after_those_that_are_there(
    run: Run, torn: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    stored(run.home, [row(1), row(2), nameless(3)], torn)
    adopts(run.home, [row(2), row(4), row(5), row(6)])
    assert iterations(run.home) == [1, 2, 3, 4, 5, 6]
    assert table(run.home)[-1] == {
        "score": "12", "training_iteration": "6", "info/loss": "0.6", "own": "",
        "checkpoint_dir_name": checkpoint_name(5),
    }  # fmt: skip
    assert json.loads(read(run.home, RESULTS).splitlines()[-1]) == row(6)
    assert not caplog.records


def test_what_is_there_already_stays_as_it_is(run: Run) -> None:
    stored(run.home, [row(1), row(2), row(3)])
    before = read(run.home, RESULTS), read(run.home, PROGRESS)
    adopts(run.home, [row(2), row(3)])
    assert (read(run.home, RESULTS), read(run.home, PROGRESS)) == before


def test_what_this_node_still_has_counts_before(run: Run, tmp_path: Path) -> None:
    stored(run.home, [row(1), nameless(2)])
    lines, columns = logged([row(1), nameless(2), nameless(3), row(4), nameless(5)])
    (tmp_path / RESULTS).write_bytes(lines + b'{"half')
    (tmp_path / PROGRESS).write_bytes(columns)
    adopts(run.home, [row(4), row(6)], tmp_path)
    assert iterations(run.home) == [1, 2, 3, 4, 5, 6]


def test_what_this_node_has_of_something_else_does_not_count(run: Run, tmp_path: Path) -> None:
    stored(run.home, [row(1), row(2)])
    for name, body in zip((RESULTS, PROGRESS), logged([row(7), row(8), row(9)]), strict=True):
        (tmp_path / name).write_bytes(body)
    adopts(run.home, [row(3)], tmp_path)
    assert iterations(run.home) == [1, 2, 3]


def test_a_trial_that_was_set_back_has_its_later_rows_too(run: Run) -> None:
    """Of Population Based Training: from another one's iteration 2, after 5 of its own."""
    stored(run.home, [row(4, 3), row(5, 4)])
    adopts(run.home, [row(5, 4), row(3, 5), row(4, 6)])
    assert iterations(run.home) == [4, 5, 3, 4]


def test_where_rows_name_no_checkpoint_iterations_count_and_each_once(run: Run) -> None:
    stored(run.home, [nameless(1), nameless(2)])
    adopts(run.home, [row(2, 0), row(4, 1), row(4, 2), row(6, 3)])
    assert iterations(run.home) == [1, 2, 4, 6]
    assert table(run.home)[2]["checkpoint_dir_name"] == checkpoint_name(2)


@pytest.mark.parametrize("behind", [RESULTS, PROGRESS])
def test_each_file_is_completed_by_itself(run: Run, behind: str) -> None:
    """A kill may have come between the two."""
    stored(run.home, [row(1), row(2), row(3)])
    save(run.home, behind, logged([row(1)])[behind == PROGRESS])
    adopts(run.home, [row(2), row(3), row(4)])
    assert iterations(run.home) == [1, 2, 3, 4]


def test_a_table_whose_rows_have_other_columns_is_left_alone(run: Run) -> None:
    stored(run.home, [row(1)])
    body = read(run.home, PROGRESS) + b"1,2\r\n"
    save(run.home, PROGRESS, body)
    adopts(run.home, [row(2)])
    assert read(run.home, PROGRESS) == body


def test_values_are_written_as_ray_writes_them(run: Run) -> None:
    values = {"a": np.int64(3), "b": np.float32(0.5), "c": np.array([1, 2])}
    adopts(run.home, [{**row(1), **values, "config": {"x": np.int64(4)}}])
    found = json.loads(read(run.home, RESULTS))
    assert (found["a"], found["b"], found["c"], found["config"]) == (3, 0.5, [1, 2], {"x": 4})


def test_where_there_is_no_file_yet_the_columns_are_left_to_ray(run: Run) -> None:
    adopts(run.home, [row(1), row(2)])
    assert [json.loads(line) for line in read(run.home, RESULTS).splitlines()] == [row(1), row(2)]
    assert run.home.info(f"{TRIAL}/{PROGRESS}") is None


def test_where_nobody_writes_these_files_none_is_made(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    adopts(run.home, [row(1), row(2)])
    assert run.home.info(f"{TRIAL}/{RESULTS}") is None


def test_a_file_that_cannot_be_written_costs_a_warning_and_no_restore(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(incoming: str, key: str, durable: bool) -> None:
        raise StoreFullError("no space left")

    stored(run.home, [row(1)])
    monkeypatch.setattr(run.home, "commit_file", full)
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        adopts(run.home, [row(2)])
    assert sum("not put back: StoreFull" in r.getMessage() for r in caplog.records) == 2
    assert run.home.list(INCOMING_DIR, recursive=True) == []


def test_neither_does_what_is_no_row(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    stored(run.home, [row(1)])
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        adopts(run.home, [{"training_iteration": None}])
    assert sum("not put back" in record.getMessage() for record in caplog.records) == 2
    assert iterations(run.home) == [1]


def test_who_lost_the_lease_hears_of_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(incoming: str, key: str, durable: bool) -> None:
        raise LeaseLostError("another run took over")

    monkeypatch.setattr(run.home, "commit_file", lost)
    with pytest.raises(LeaseLostError):
        adopts(run.home, [row(1)])
