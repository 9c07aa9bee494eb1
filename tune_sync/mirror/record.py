"""What is known of an experiment's mirror, on the disk of the home node: plain JSON.

A directory syncer cannot say what is at the mirror. Without this record, a restore would send
everything again, and would not know what to delete there.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass

from tune_sync import layout
from tune_sync.errors import DamagedError
from tune_sync.homes.replacing import replace_file
from tune_sync.homes.store import Store
from tune_sync.manifest import FORMAT_VERSION

MIRROR_DIR = f"{layout.INTERNAL_DIR}/mirror"
RECORD_KEY = f"{MIRROR_DIR}/record.json"
MARK_NAME = "mark.json"


@dataclass(frozen=True, slots=True)
class MirrorRecord:
    """A record.

    Attributes:
        experiment: Id of the experiment; at the mirror it tells this one from another.
        remote: Where the mirror is.
        touched: Checkpoints that may be there, wholly or in part.
        whole: Checkpoints that are wholly there.
    """

    experiment: str
    remote: str
    touched: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()


def load_record(store: Store, remote: str) -> MirrorRecord:
    """The record of an experiment whose mirror is at `remote`; a new one if there is none.

    Raises:
        DamagedError: It cannot be read.
    """
    if store.info(RECORD_KEY) is None:
        return MirrorRecord(uuid.uuid4().hex, remote)
    try:
        found = json.loads(store.read(RECORD_KEY))
        if found["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format version {found['format_version']!r}")
        record = MirrorRecord(
            str(found["experiment"]), str(found["remote"]),
            tuple(map(layout.check_key, found["touched"])),
            tuple(map(layout.check_key, found["whole"])),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(
            f"{RECORD_KEY} is not readable ({error!r}); put a whole copy back, or choose another "
            "upload_dir"
        ) from error
    return record if record.remote == remote else MirrorRecord(record.experiment, remote)


def save_record(store: Store, record: MirrorRecord) -> None:
    """Replace the record; durable on return."""
    body = {"format_version": FORMAT_VERSION, **asdict(record)}
    store.make_dir(MIRROR_DIR)
    replace_file(store, RECORD_KEY, json.dumps(body).encode())


def mark_json(experiment: str) -> bytes:
    """What at the mirror says which experiment it is."""
    return json.dumps({"format_version": FORMAT_VERSION, "experiment": experiment}).encode()


def experiment_of(mark: bytes, where: str) -> str:
    """The experiment's id in a mark.

    Raises:
        DamagedError: It is not one.
    """
    try:
        return str(json.loads(mark)["experiment"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(
            f"{where} is not readable ({error!r}); choose another name for the experiment"
        ) from error
