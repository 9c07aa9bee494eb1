"""Rows that Ray's logs of trials lack after a crash of the driver: `result.json`, `progress.csv`.

Ray writes them on the driver's node, and copies them to the experiment when it saves its state: up
to ten seconds of them die with the driver. A restored trial goes on from its newest checkpoint, and
what was reported with each that is published is in its manifest. So those rows are put back, before
Ray reads the files to go on with them.
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from tune_sync.environment import makes_loggers
from tune_sync.errors import LeaseLostError, TuneSyncError
from tune_sync.homes.home import Home

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

RESULTS, PROGRESS = "result.json", "progress.csv"  # Ray's names, in a trial's directory
_ITERATION = "training_iteration"
# The control loop waits for it, and in a bucket each trial takes some requests.
_THREADS = 16

Row = Mapping[str, Any]


def put_back(home: Home, rows: Mapping[str, Sequence[Row]]) -> None:
    """Add what is not there yet to the logs of trials; says what is not known any more.

    Never raises but for a lost lease: a trial goes on as well without these rows.

    Args:
        home: Of the experiment.
        rows: Directory of a trial -> results of its checkpoints, oldest first, as Ray has them.

    Raises:
        LeaseLostError: Another run took over.
    """
    if rows:
        with ThreadPoolExecutor(min(_THREADS, len(rows))) as pool:
            list(pool.map(partial(_put_back, home), rows, rows.values()))


def _put_back(home: Home, directory: str, rows: Sequence[Row]) -> None:
    try:
        body = _read(home, f"{directory}/{RESULTS}")
        last = _last_json(body)
        later = _later(rows, last)
        if not later or not (body or makes_loggers()):
            return
        lines = [json.dumps(row, default=str).encode() + b"\n" for row in later]
        _write(home, f"{directory}/{RESULTS}", _whole_lines(body) + b"".join(lines))
        table = _read(home, f"{directory}/{PROGRESS}")
        if table:  # else Ray begins it, with the columns of its next row
            _write(home, f"{directory}/{PROGRESS}", with_csv_rows(table, rows))
    except LeaseLostError:
        raise
    except (TuneSyncError, OSError, ValueError, TypeError, LookupError, csv.Error) as error:
        logger.warning("rows of %s/%s are not put back: %r", directory, RESULTS, error)
        return
    missing_count = int(later[-1][_ITERATION]) - last - len(later)
    if missing_count > 0:
        logger.warning(
            "%s: %d rows of %s between training_iteration %d and %d died with the driver, as no "
            "checkpoint that is there was reported with them", directory, missing_count, RESULTS,
            last, later[-1][_ITERATION],
        )  # fmt: skip


def with_csv_rows(table: bytes, rows: Sequence[Row]) -> bytes:
    """A `progress.csv` with those rows that are later than its last one, in its columns."""
    whole = _whole_lines(table)
    found = list(csv.DictReader(io.StringIO(whole.decode(), newline="")))
    columns = next(csv.reader(io.StringIO(whole.decode(), newline="")), [])
    last = 0
    if found:
        with suppress(KeyError, TypeError, ValueError):
            last = int(found[-1][_ITERATION])
    added = io.StringIO(newline="")
    writer = csv.DictWriter(added, columns, restval="", extrasaction="ignore")
    for row in _later(rows, last):
        writer.writerow(_flat({name: value for name, value in row.items() if name != "config"}))
    return whole + added.getvalue().encode()


def _later(rows: Sequence[Row], last: int) -> list[Row]:
    return [row for row in rows if row[_ITERATION] > last]


def _last_json(body: bytes) -> int:
    """The `training_iteration` of the last whole row; 0: there is none."""
    for line in reversed(body.splitlines()):
        with suppress(ValueError, TypeError, KeyError):
            return int(json.loads(line)[_ITERATION])
    return 0


def _whole_lines(body: bytes) -> bytes:
    """Without the half of a line that Ray was writing while it was copied."""
    return body[: body.rfind(b"\n") + 1]


def _flat(row: Row, above: str = "") -> dict[str, Any]:
    """Nested values under the names of columns, as Ray has them: `a/b`."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{above}{name}/")
        else:
            flat[f"{above}{name}"] = value
    return flat


def _read(home: Home, key: str) -> bytes:
    found = home.info(key)
    return bytes(home.read(key, 0, found.size_bytes)) if found is not None else b""


def _write(home: Home, key: str, body: bytes) -> None:
    incoming = home.begin_file()
    home.write(incoming, 0, body)
    home.flush(incoming)
    home.commit_file(incoming, key, durable=False)
