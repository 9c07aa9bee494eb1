"""What a checkpoint is made of: seals (one writer's part) and manifests (the whole). Pure.

Plain versioned JSON. What is read is checked as data from a stranger: nothing is unpickled,
every path has to stay inside the checkpoint, and an unknown version is refused by name.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from tune_sync.errors import DamagedError, NotWholeError, PathRefusedError, RanksDisagreeError
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
        digest: xxh3_128 of its bytes, in hexadecimal; "" of a file that was handed over to this
            node's staging and that nobody has read yet.
        modified_ns: When such a file was last changed, since the epoch; else 0.
    """

    path: str
    size_bytes: int
    digest: str
    modified_ns: int = 0

    def read_as(self, digest: str) -> FileEntry:
        """The same file with its digest; itself if that is still not known."""
        return FileEntry(self.path, self.size_bytes, digest) if digest else self


@dataclass(frozen=True, slots=True)
class Seal:
    """One writer's part of a checkpoint, complete in staging; durable, but see `boot`.

    Attributes:
        attempt: The staging attempt that holds the bytes.
        rank: The writer's world rank; 0 where there is only one.
        sealed_s: Seconds since the epoch; the newest seal of a rank wins.
        files: What the writer wrote.
        directories: Every directory, empty ones included.
        ranks_count: How many ranks make the checkpoint, where the writer knows that its part is
            complete; None where only the driver can tell.
        boot: Of what is staged on a node and not durable yet: since which boot of that it is there.
            Its digests need not be known. None of what is durable.
        metrics: What was reported with it, as far as its writer knows; see `Manifest.metrics`.
        staged_as: The attempt that was staged on a node and is sealed here; None: this one.
        parts: All parts of the checkpoint, as the driver took them: `name`s of seals; None where
            it had not told yet.
    """

    attempt: str
    rank: int
    sealed_s: float
    files: tuple[FileEntry, ...]
    directories: tuple[str, ...] = ()
    ranks_count: int | None = None
    boot: str | None = None
    metrics: dict[str, Any] | None = None
    staged_as: str | None = None
    parts: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """What the driver knows this part by."""
        return self.staged_as or self.attempt

    @property
    def is_all(self) -> bool:
        """Whether this part surely is the whole checkpoint: nobody else has to say so."""
        return self.ranks_count == 1

    @property
    def is_confirmed(self) -> bool:
        """Whether it is durable and all digests are known; else it is of use on its node only."""
        return self.boot is None and all(file.digest for file in self.files)

    def confirmed(self, digest_of: Callable[[str], str]) -> Seal:
        """The same part, with the digests of files whose digest was not known, by their path.

        A file whose digest is still "" stays as it is.
        """
        files = [
            file.read_as(digest) if not file.digest and (digest := digest_of(file.path)) else file
            for file in self.files
        ]
        return replace(self, files=tuple(files), boot=None)


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


# `(path, winning rank, losing rank)` where equal names had different bytes.
Conflicts = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """A checkpoint that is visible and whole, with its manifest still to be recorded.

    Attributes:
        manifest: What will be recorded.
        conflicts: For a warning.
    """

    manifest: Manifest
    conflicts: Conflicts


@dataclass(frozen=True, slots=True)
class Union:
    """The parts of several writers, put together.

    Attributes:
        seals: One a rank, in the order of ranks; the first one's staging holds the result.
        moves: `(attempt, path)` of files that have to move into the first one's staging.
        files: Files of the whole.
        directories: Directories of the whole.
        conflicts: What the parts disagree on.
    """

    seals: tuple[Seal, ...]
    moves: tuple[tuple[str, str], ...]
    files: tuple[FileEntry, ...]
    directories: tuple[str, ...]
    conflicts: Conflicts

    @property
    def names(self) -> tuple[str, ...]:
        """Of all files and directories."""
        return (*(file.path for file in self.files), *self.directories)

    @property
    def metrics(self) -> dict[str, Any] | None:
        """What the lowest rank has noted of what was reported."""
        return self.seals[0].metrics


def unite(checkpoint: str, seals: Iterable[Seal], *, strict: bool) -> Union:
    """Put the writers' parts together: newest seal of each rank, lowest rank wins a name.

    Args:
        checkpoint: For messages.
        seals: All that were found, also those of earlier attempts.
        strict: Refuse equal names with different bytes instead of letting the lowest rank win.

    Raises:
        NotWholeError: There is no seal.
        RanksDisagreeError: `strict`, and two ranks disagree about a file; or one's file has the
            name of another's directory.
    """
    newest: dict[int, Seal] = {}
    for seal in sorted(seals, key=lambda s: s.sealed_s):
        newest[seal.rank] = seal
    if not newest:
        raise NotWholeError(f"checkpoint {checkpoint} has no complete part; nothing to publish")
    order = tuple(newest[rank] for rank in sorted(newest))
    if not all(seal.is_confirmed for seal in order):
        raise NotWholeError(f"a part of {checkpoint} was handed over and is not confirmed yet")
    _refuse_clashes(checkpoint, order)
    owner: dict[str, tuple[FileEntry, Seal]] = {}
    conflicts = []
    for seal in order:
        for entry in seal.files:
            first = owner.setdefault(entry.path, (entry, seal))
            if first[0] != entry:
                conflicts.append((entry.path, first[1].rank, seal.rank))
    if strict and conflicts:
        path, winner, loser = conflicts[0]
        raise RanksDisagreeError(
            f"ranks {winner} and {loser} report different bytes for {path!r} in checkpoint "
            f"{checkpoint}; give each rank its own file name, or set strict=False"
        )
    files = sorted((entry for entry, _ in owner.values()), key=lambda entry: entry.path)
    moves = tuple((s.attempt, e.path) for e, s in owner.values() if s is not order[0])
    directories = tuple(sorted({d for seal in order for d in seal.directories}))
    return Union(order, moves, tuple(files), directories, tuple(conflicts))


def _refuse_clashes(checkpoint: str, seals: tuple[Seal, ...]) -> None:
    """Raise RanksDisagreeError where a name is a file of one and a directory of another.

    No directory has room for both, and to leave out a part would give less than was reported.
    """
    files = {file.path: seal.rank for seal in seals for file in seal.files}
    for seal in seals:
        above = (name for file in seal.files for name in _above(file.path))
        for name in (*seal.directories, *above):
            if name in files:
                raise RanksDisagreeError(
                    f"{checkpoint}: {name!r} is a file of rank {files[name]} and a directory of "
                    f"rank {seal.rank}; give each rank its own names"
                )


def _above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def warn_of_conflicts(
    where: str, conflicts: Iterable[tuple[str, int, int]], lost: Iterable[FileEntry] = ()
) -> None:
    """Say which ranks disagreed about a file of a checkpoint, and whose bytes are stored.

    Args:
        where: The checkpoint.
        conflicts: See `Union.conflicts`.
        lost: Files that should have won: all ranks put to one key, and who came last is stored.
    """
    lost_names = {entry.path for entry in lost}
    for path, winner, loser in conflicts:
        stored = "that were put last" if path in lost_names else f"of rank {winner}"
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
    plain = {"path": file.path, "size_bytes": file.size_bytes, "digest": file.digest}
    return plain | ({"modified_ns": file.modified_ns} if file.modified_ns else {})


def seal_from_json(data: bytes, where: str) -> Seal:
    """Decode a seal. `where` names it in errors. Raises as `manifest_from_json` does."""
    body = _decode(data, where)
    try:
        files, directories = _contents(body)
        ranks_count, staged_as, parts = map(body.get, ("ranks_count", "staged_as", "parts"))
        return Seal(
            _name(body["attempt"]), int(body["rank"]), float(body["sealed_s"]), files, directories,
            None if ranks_count is None else int(ranks_count), body.get("boot"),
            _metrics(body.get("metrics")), None if staged_as is None else _name(staged_as),
            None if parts is None else tuple(map(_name, parts)),
        )  # fmt: skip
    except _NOT_OURS as error:
        raise _named(error, where, "seal") from error


def manifest_from_json(data: bytes, where: str) -> Manifest:
    """Decode a manifest.

    Args:
        data: The bytes read.
        where: Names them in errors.

    Raises:
        DamagedError: Not JSON, missing fields, duplicate names, a name that is a file and a
            directory, or another format version.
        PathRefusedError: A path that leaves the checkpoint.
    """
    body = _decode(data, where)
    try:
        files, directories = _contents(body)
        _refuse_files_above(files, directories)
        return Manifest(
            check_key(body["checkpoint"]), str(body["owner"]), float(body["published_s"]),
            files, directories, _metrics(body.get("metrics")),
        )  # fmt: skip
    except _NOT_OURS as error:
        raise _named(error, where, "manifest") from error


def manifest_of(checkpoint: str, data: bytes, where: str) -> Manifest:
    """Decode the manifest of one checkpoint, where it lies.

    Args:
        checkpoint: Its key.
        data: The bytes read.
        where: Names them in errors.

    Raises:
        DamagedError: It cannot be read, has a path that leaves the checkpoint, or is another's:
            for whoever looks at many, none of them may hide the others.
    """
    try:
        manifest = manifest_from_json(data, where)
    except PathRefusedError as error:
        raise DamagedError(str(error)) from error
    if manifest.checkpoint != checkpoint:
        raise DamagedError(f"{where} is the manifest of {manifest.checkpoint!r}")
    return manifest


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
        FileEntry(
            _name(f["path"]), int(f["size_bytes"]), str(f["digest"]), int(f.get("modified_ns", 0))
        )
        for f in body["files"]
    )
    directories = tuple(_name(d) for d in body["directories"])
    names = [f.path for f in files] + list(directories)
    if len(set(names)) != len(names):
        raise DamagedError("a name occurs twice in its list of files and directories")
    return files, directories


def _refuse_files_above(files: tuple[FileEntry, ...], directories: tuple[str, ...]) -> None:
    """Raise DamagedError where a file has others below it: no disk has room for both."""
    names = {file.path for file in files}
    for name in (*(file.path for file in files), *directories):
        for above in _above(name):
            if above in names:
                raise DamagedError(f"{above!r} is a file, and {name!r} would be below it")


def _metrics(found: Any) -> dict[str, Any] | None:
    if found is not None and not isinstance(found, dict):
        raise DamagedError("its metrics are not a JSON object")
    return found


def _name(path: str) -> str:
    if not path:
        raise PathRefusedError("an empty path in a list of files; refused")
    return check_key(path)
