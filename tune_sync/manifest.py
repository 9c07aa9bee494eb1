"""What a checkpoint is made of: seals (one writer's part) and manifests (the whole). Pure.

Plain versioned JSON. What is read is checked as data from a stranger: nothing is unpickled,
every path has to stay inside the checkpoint, and an unknown version is refused by name.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from tune_sync.errors import ConfigError, DamagedError, NotWholeError, PathRefusedError
from tune_sync.layout import check_key

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

FORMAT_VERSION = 1
DIGEST_ALGORITHM = "xxh3_128"

# What reading fields of the wrong type or value raises.
_NOT_OURS = (KeyError, TypeError, AttributeError, ValueError, OverflowError)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint.

    Attributes:
        path: Relative to the checkpoint directory.
        size_bytes: Its length.
        digest: xxh3_128 of its bytes, in hexadecimal.
    """

    path: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Seal:
    """One writer's part of a checkpoint, complete and durable in staging.

    Attributes:
        attempt: The staging attempt that holds the bytes.
        rank: The writer's world rank; 0 where there is only one.
        sealed_s: Seconds since the epoch; the newest seal of a rank wins.
        files: What the writer wrote.
        directories: Every directory, empty ones included.
        ranks_count: How many ranks make the checkpoint, where the writer knows that its part is
            complete; None where only the driver can tell.
    """

    attempt: str
    rank: int
    sealed_s: float
    files: tuple[FileEntry, ...]
    directories: tuple[str, ...] = ()
    ranks_count: int | None = None

    @property
    def is_all(self) -> bool:
        """Whether this part surely is the whole checkpoint: nobody else has to say so."""
        return self.ranks_count == 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole checkpoint. Its existence at the destination is the commit.

    Attributes:
        checkpoint: Key of the checkpoint directory.
        owner: Id of the run that published it.
        published_s: Seconds since the epoch.
        files: All files, sorted by path.
        directories: All directories, sorted.
        metrics: What was reported with it, as `plain_metrics` leaves it; None if that is not known.
    """

    checkpoint: str
    owner: str
    published_s: float
    files: tuple[FileEntry, ...]
    directories: tuple[str, ...] = ()
    metrics: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """A checkpoint that is visible and whole, with its manifest still to be recorded.

    Attributes:
        manifest: What will be recorded.
        conflicts: `(path, winning rank, losing rank)`, for a warning.
    """

    manifest: Manifest
    conflicts: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Union:
    """The parts of several writers, put together.

    Attributes:
        seals: One a rank, in the order of ranks; the first one's staging holds the result.
        moves: `(attempt, path)` of files that have to move into the first one's staging.
        files: Files of the whole.
        directories: Directories of the whole.
        conflicts: `(path, winning rank, losing rank)` where equal names had different bytes.
    """

    seals: tuple[Seal, ...]
    moves: tuple[tuple[str, str], ...]
    files: tuple[FileEntry, ...]
    directories: tuple[str, ...]
    conflicts: tuple[tuple[str, int, int], ...]


def unite(checkpoint: str, seals: Iterable[Seal], *, strict: bool) -> Union:
    """Put the writers' parts together: newest seal of each rank, lowest rank wins a name.

    Args:
        checkpoint: For messages.
        seals: All that were found, also those of earlier attempts.
        strict: Refuse equal names with different bytes instead of letting the lowest rank win.

    Raises:
        NotWholeError: There is no seal.
        ConfigError: `strict`, and two ranks disagree about a file.
    """
    newest: dict[int, Seal] = {}
    for seal in sorted(seals, key=lambda s: s.sealed_s):
        newest[seal.rank] = seal
    if not newest:
        raise NotWholeError(f"checkpoint {checkpoint} has no complete part; nothing to publish")
    order = tuple(newest[rank] for rank in sorted(newest))
    owner: dict[str, tuple[FileEntry, Seal]] = {}
    conflicts = []
    for seal in order:
        for entry in seal.files:
            first = owner.setdefault(entry.path, (entry, seal))
            if first[0] != entry:
                conflicts.append((entry.path, first[1].rank, seal.rank))
    if strict and conflicts:
        path, winner, loser = conflicts[0]
        raise ConfigError(
            f"ranks {winner} and {loser} report different bytes for {path!r} in checkpoint "
            f"{checkpoint}; give each rank its own file name, or set strict=False"
        )
    files = sorted((entry for entry, _ in owner.values()), key=lambda entry: entry.path)
    moves = tuple((s.attempt, e.path) for e, s in owner.values() if s is not order[0])
    directories = tuple(sorted({d for seal in order for d in seal.directories}))
    return Union(order, moves, tuple(files), directories, tuple(conflicts))


def warn_of_conflicts(
    where: str, conflicts: Iterable[tuple[str, int, int]], *, last_wins: bool = False
) -> None:
    """Say which ranks disagreed about a file of a checkpoint, and whose bytes are stored.

    Args:
        where: The checkpoint.
        conflicts: See `Union.conflicts`.
        last_wins: All ranks put to one key, so that who came last is stored.
    """
    for path, winner, loser in conflicts:
        stored = "that were put last" if last_wins else f"of rank {winner}"
        logger.warning(
            "%s: ranks %d and %d report different bytes for %s; stored those %s; give each rank "
            "its own file name", where, winner, loser, path, stored,
        )  # fmt: skip


def to_json(record: Seal | Manifest) -> bytes:
    """Encode a record with its format version."""
    body: dict[str, Any] = {"format_version": FORMAT_VERSION, "digest_algorithm": DIGEST_ALGORITHM}
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    body |= {name: value for name, value in values.items() if value is not None}
    return json.dumps(body, separators=(",", ":"), default=_file_to_plain).encode()


def _file_to_plain(file: FileEntry) -> dict[str, Any]:
    return {"path": file.path, "size_bytes": file.size_bytes, "digest": file.digest}


def seal_from_json(data: bytes, where: str) -> Seal:
    """Decode a seal. `where` names it in errors. Raises as `manifest_from_json` does."""
    body = _decode(data, where)
    try:
        files, directories = _contents(body)
        ranks_count = body.get("ranks_count")
        return Seal(
            _name(body["attempt"]), int(body["rank"]), float(body["sealed_s"]), files, directories,
            None if ranks_count is None else int(ranks_count),
        )  # fmt: skip
    except _NOT_OURS as error:
        raise _named(error, where, "seal") from error


def manifest_from_json(data: bytes, where: str) -> Manifest:
    """Decode a manifest.

    Args:
        data: The bytes read.
        where: Names them in errors.

    Raises:
        DamagedError: Not JSON, missing fields, duplicate names, or another format version.
        PathRefusedError: A path that leaves the checkpoint.
    """
    body = _decode(data, where)
    try:
        files, directories = _contents(body)
        return Manifest(
            check_key(body["checkpoint"]), str(body["owner"]), float(body["published_s"]),
            files, directories, _metrics(body.get("metrics")),
        )  # fmt: skip
    except _NOT_OURS as error:
        raise _named(error, where, "manifest") from error


def _named(error: Exception, where: str, kind: str) -> Exception:
    """Say in which record an error was found."""
    if isinstance(error, PathRefusedError):
        return PathRefusedError(f"{where}: {error}")
    return DamagedError(f"{where} is not a {kind}: {error}")


def _decode(data: bytes, where: str) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{where} is not JSON ({len(data)} bytes): {error}") from error
    if not isinstance(body, dict):
        raise DamagedError(f"{where} does not hold a JSON object")
    found = body.get("format_version")
    if found != FORMAT_VERSION:
        raise DamagedError(
            f"{where} has format version {found!r}, this tune_sync reads {FORMAT_VERSION}; "
            "install the tune_sync version that wrote it, or a newer one"
        )
    return body


def _contents(body: dict[str, Any]) -> tuple[tuple[FileEntry, ...], tuple[str, ...]]:
    files = tuple(
        FileEntry(_name(f["path"]), int(f["size_bytes"]), str(f["digest"])) for f in body["files"]
    )
    directories = tuple(_name(d) for d in body["directories"])
    names = [f.path for f in files] + list(directories)
    if len(set(names)) != len(names):
        raise DamagedError("a name occurs twice in its list of files and directories")
    return files, directories


def _metrics(found: Any) -> dict[str, Any] | None:
    if found is not None and not isinstance(found, dict):
        raise DamagedError("its metrics are not a JSON object")
    return found


def _name(path: str) -> str:
    if not path:
        raise PathRefusedError("an empty path in a list of files; refused")
    return check_key(path)
