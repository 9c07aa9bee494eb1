"""Rows that Ray's logs of trials lack after a crash of the driver: `result.json`, `progress.csv`.

Ray writes them on the driver's node, and copies them to the experiment when it saves its state: up
to ten seconds of them die with the driver. A restored trial goes on from its newest checkpoint, and
its loggers go on with the copies. So these are completed before: by what the driver's node still
has of them, if that is the same Ray, and then by what was reported with each checkpoint that is
published, which its manifest tells. Rows that are there stay as they are.
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ray.tune.utils import flatten_dict
from ray.tune.utils.util import SafeFallbackEncoder

from tune_sync import layout
from tune_sync.environment import makes_loggers
from tune_sync.errors import LeaseLostError
from tune_sync.homes.home import Home

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

RESULTS, PROGRESS = "result.json", "progress.csv"  # Ray's names, in a trial's directory
_ITERATION, _CHECKPOINT = "training_iteration", "checkpoint_dir_name"
# The control loop waits for it, and in a bucket each trial takes some requests.
_THREADS = 4
# How far back in a file the last row with a checkpoint is looked for.
_LOOKED_AT_COUNT = 1000

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a trial.

    Attributes:
        rows: Results of its published checkpoints, oldest first, as Ray has them.
        local: Its directory on this node, where Ray's loggers write.
    """

    rows: Sequence[Row]
    local: Path


def put_back(home: Home, known: Mapping[str, Known]) -> None:
    """Complete the logs of trials. A trial goes on as well where that fails.

    Args:
        home: Of the experiment.
        known: By the directory of a trial in it.

    Raises:
        LeaseLostError: Another run took over.
    """
    if known:
        with ThreadPoolExecutor(min(_THREADS, len(known))) as pool:
            list(pool.map(partial(_put_back, home), known, known.values()))


def _put_back(home: Home, directory: str, known: Known) -> None:
    for name, complete in ((PROGRESS, complete_csv), (RESULTS, complete_json)):
        key = f"{directory}/{name}"
        try:
            stored = _read(home, key)
            body = complete(_longer(stored, known.local / name), known.rows)
            if body not in (b"", stored):
                home.put_file(key, body, durable=False)
        except LeaseLostError:
            raise
        except Exception as error:
            logger.warning("rows of %s are not put back: %r", key, error)


def complete_json(body: bytes, rows: Sequence[Row]) -> bytes:
    """A `result.json` with those rows that are later than its last one; "" if nobody writes it."""
    if not (body or makes_loggers()):
        return b""
    added = _later(rows, islice(_rows_from_the_end(body), _LOOKED_AT_COUNT))
    return body + b"".join(json.dumps(r, cls=SafeFallbackEncoder).encode() + b"\n" for r in added)


def complete_csv(table: bytes, rows: Sequence[Row]) -> bytes:
    """The same of a `progress.csv`, in its columns; Ray begins one with those of its next row."""
    reader = csv.reader(io.StringIO(table.decode(), newline=""))
    columns = next(reader, [])
    if _ITERATION not in columns:
        return table
    last = deque(reader, maxlen=_LOOKED_AT_COUNT)
    if any(len(values) != len(columns) for values in last):  # not all of its rows have its columns
        return table
    found = [dict(zip(columns, values, strict=True)) for values in reversed(last)]
    added = io.StringIO(newline="")
    writer = csv.DictWriter(added, columns, restval="", extrasaction="ignore")
    for row in _later(rows, found):
        plain = {name: value for name, value in row.items() if name != "config"}
        writer.writerow(flatten_dict(plain, delimiter="/"))
    return table + added.getvalue().encode()


def _later(rows: Sequence[Row], newest_first: Iterable[Row]) -> list[Row]:
    """Those of rows that come after what a file has; the last one of each iteration.

    By the number of the checkpoint, where the file has any: iterations go back where a trial goes
    on from an earlier one, or from another trial's. Rows of class trainables have none.
    """
    last_number, last_iteration = None, None
    for row in newest_first:
        if last_iteration is None:
            last_iteration = int(row[_ITERATION])
        last_number = layout.checkpoint_number(str(row.get(_CHECKPOINT) or ""))
        if last_number is not None:
            break
    later: dict[int, Row] = {}
    for row in rows:
        number = layout.checkpoint_number(str(row[_CHECKPOINT]))
        by_iteration = last_iteration is None or row[_ITERATION] > last_iteration
        if by_iteration if last_number is None or number is None else number > last_number:
            later[row[_ITERATION]] = row
    return list(later.values())


def _whole_lines(body: bytes) -> bytes:
    """Without the half of a line that Ray was writing while it was copied."""
    return body[: body.rfind(b"\n") + 1]


def _rows_from_the_end(body: bytes) -> Iterator[Row]:
    end = len(body) - 1
    while end > 0:
        start = body.rfind(b"\n", 0, end) + 1
        with suppress(ValueError):
            yield json.loads(body[start:end])
        end = start - 1


def _longer(stored: bytes, local: Path) -> bytes:
    """The whole lines that are stored, or those that this node has, if they go on from these."""
    whole = _whole_lines(stored)
    with suppress(OSError):
        here = _whole_lines(local.read_bytes())
        return here if here.startswith(whole) else whole
    return whole


def _read(home: Home, key: str) -> bytes:
    found = home.info(key)
    return bytes(home.read(key, 0, found.size_bytes)) if found is not None else b""
