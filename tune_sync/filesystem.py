"""What Ray sees: a `pyarrow.fs` filesystem whose files live at an experiment's home.

Ray calls it everywhere: on the driver for state, logs and deletes, in trials for checkpoints
and artifacts. It sorts paths by `layout`, and turns directory copies into `CheckpointUpload`s.

A handler pickles as plain strings and numbers (`Spec`): no handle, no secret. Pickling is also
the barrier at which this process's finished checkpoint parts are sealed: Ray pickles the
filesystem inside every `Checkpoint` that leaves the process, so whoever learns of a checkpoint
learns of it after its bytes are durable at home.
"""

from __future__ import annotations

import posixpath
import shutil
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary, finalize

import pyarrow as pa
import pyarrow.fs as pafs

from tune_sync import layout, storage_options
from tune_sync.artifacts import Artifacts
from tune_sync.buckets.bucket import check_object_key
from tune_sync.buckets.url import BucketUrl
from tune_sync.errors import ConfigError, ImmutableError, PathRefusedError
from tune_sync.filters import wanted
from tune_sync.homes.bucket.site import BucketSite
from tune_sync.homes.home import Home, LocalHome
from tune_sync.homes.saved_tuner import TUNER, read_whole
from tune_sync.homes.shared.home import SharedHome
from tune_sync.homes.shared.site import SharedSite
from tune_sync.homes.sites import LocalSite, Site
from tune_sync.layout import Kind, Place
from tune_sync.manifest import Conflicts
from tune_sync.run import Run
from tune_sync.sent_files import SentFiles
from tune_sync.spec import Connector, Spec
from tune_sync.train_record import TrainRecord
from tune_sync.transfer.reads import Reads
from tune_sync.transfer.streams import COPY_BYTES, FileStream, NullStream, as_file_info
from tune_sync.transfer.tree import TreeFile
from tune_sync.transfer.turn import COPYING, InTurn
from tune_sync.transfer.upload import CheckpointUpload
from tune_sync.transfer.uploads import Uploads
from tune_sync.verbs import PlainVerbs

# Those that someone still has: what opens a run's results later gets another one.
_HANDLERS: WeakValueDictionary[str, SyncHandler] = WeakValueDictionary()
_HANDLERS_LOCK = threading.Lock()


def reopen_handler(
    plain: Mapping[str, Any], connector: Connector, reported: tuple[tuple[Any, ...], ...]
) -> SyncHandler:
    """Unpickle a handler; `reported` is `Uploads.reported` of the pickling process."""
    spec = Spec.from_plain(plain)
    connector.check_here(spec)
    handler = open_handler(spec, connector)
    if not (reported or handler.run or handler.is_driver):  # a trial may have been elsewhere
        handler.files.begin_anew()
    # An older version named no ranks: then its run has ended, and with it its attempts.
    handler.uploads.heard_of(tuple((c, a, rank) for c, a, *ranks in reported for rank in ranks))
    return handler


def open_handler(spec: Spec, connector: Connector) -> SyncHandler:
    """The handler of this process for `spec`; made if needed."""
    with _HANDLERS_LOCK:
        handler = _HANDLERS.get(spec.key)
        if handler is None:
            handler = _HANDLERS[spec.key] = SyncHandler(spec, connector)
            finalize(handler, storage_options.forget, spec.key)
    if handler.run is None and spec.address is not None and spec != handler.spec:
        handler.spec = spec
    return handler


class SyncHandler(PlainVerbs):
    """The filesystem of one run. See the module's text.

    Attributes:
        spec: The plain data it pickles as.
        run: On the driver, the run that owns the experiment directory; else None.
        is_driver: Whether this process may start a run with it.
        files: What this process has stored outside of checkpoints.
        uploads: What it stores of checkpoints, and knows of others.
    """

    def __init__(self, spec: Spec, connector: Connector) -> None:
        self.spec, self.connector = spec, connector
        self.run: Run | None = None
        self.is_driver, self.on_existing, self.ways_out = False, "error", ""
        self.sends_artifacts = False  # as far as a driver knows
        self.resume_by = 'tune.Tuner.restore("{where}", trainable=...)'
        self._home_cache: tuple[Spec, Home] | None = None
        check_key = check_object_key if spec.scheme else layout.check_key  # also where it stages
        self.uploads = Uploads(lambda report: connector.reported(self.spec, report), check_key)
        self._record = TrainRecord(self.uploads, self._publish, self._remove, spec.options)
        self.files = SentFiles(
            self._tell, self._record.storing, lambda: connector.unstored(self.spec, is_last=False)
        )
        self._artifacts = Artifacts(self.files.failed, spec.options.checkpoint_depth)
        self._reads = Reads()

    def __reduce__(self) -> tuple[Any, ...]:
        self.barrier()
        reported = () if self.run else self.uploads.reported()  # nobody below takes them
        return reopen_handler, (self.spec.to_plain(), self.connector, reported)

    def going_on(self) -> SyncHandler:
        """That of the run which trains in this directory and process now; itself if none does."""
        with _HANDLERS_LOCK:
            others = [(h, h.run) for h in _HANDLERS.values() if h.spec.where == self.spec.where]
        return next((h for h, r in others if r and r.begun and not r.closed), self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SyncHandler):
            return NotImplemented  # pyarrow asks the destination: lets `source` answer
        return other.spec.key == self.spec.key

    def __hash__(self) -> int:
        return hash(self.spec.key)

    def barrier(self, copied: str = "", metrics: Mapping[str, Any] | None = None) -> None:
        """Seal what was written, and a checkpoint that is `copied`: durable when this returns."""
        checkpoint = (self.key(copied) or "") if copied else ""
        if checkpoint:
            self.uploads.copied(checkpoint, self.connector.ranks_count(), metrics)
        self.uploads.seal(checkpoint)

    def bind(self, experiment: str) -> None:
        """Set the experiment's name. Raises as `layout.check_experiment` does."""
        self.spec = replace(self.spec, experiment=layout.check_experiment(experiment))

    @property
    def experiment_root(self) -> str:
        """Absolute path of the experiment directory, on the home node."""
        return posixpath.join(self.spec.root, self.spec.experiment)

    def start(self) -> Run:
        """Take the experiment directory for this run: lease, checks, recovery. Once."""
        if self.run is None or self.run.closed or self.run.is_left:
            options, finish = self.spec.options, partial(self.connector.finish_earlier, self.spec)
            self.connector.take_turn(self.spec)
            self.run = Run.open(
                self.site(), self.on_existing, options.timeout_s, options.checkpoint_depth,
                finish, self.ways_out, options.strict, options.keeps_all and options.stages,
            )  # fmt: skip
            self.spec = replace(self.spec, owner=self.run.owner)
        return self.run

    def site(self) -> Site:
        """The experiment directory, as a run takes it. Makes no request."""
        if not self.spec.scheme:
            root = Path(self.experiment_root)
            return SharedSite(root) if self.spec.options.shared else LocalSite(root)
        options = self.connector.storage_options(self.spec)
        return BucketSite(BucketUrl(self.spec.scheme, self.experiment_root), options)

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        """Types and sizes; NotFound only for what is surely not there."""
        return [self._file_info(path) for path in paths]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """What a directory holds; `.tune_sync` is left out."""
        home, key, base = self.locate(selector.base_dir)
        entries = home.list(key, selector.recursive) if home.in_place else []
        if not entries and (found := home.info(key)) is not None:
            if not found.is_dir:  # what holds something is a directory
                raise NotADirectoryError(selector.base_dir)
            entries = home.list(key, selector.recursive)
        elif not entries and not selector.allow_not_found:
            raise FileNotFoundError(selector.base_dir)
        is_own = selector.recursive and base == self.experiment_root
        if is_own and (checkpoint := self._place(selector.base_dir).checkpoint):
            self._reads.listed(home, checkpoint, key, entries)
        return [as_file_info(f"{base}/{entry.key}", entry) for entry in entries]

    def create_dir(self, path: str, recursive: bool) -> None:
        """Start an attempt for a checkpoint directory; make any other directory."""
        if self.is_driver and not self.spec.experiment:
            self.bind(layout.below(self.spec.root, path) or "")
        is_over = self.run is not None and (self.run.closed or self.run.is_left)
        begun = self.spec.address is not None and not is_over
        if self.is_driver and not begun and path == self.experiment_root:
            self.start()  # also for a second fit(): it is told that the experiment exists
        place = self._place_told(path)
        if place is None:
            return
        if place.kind is Kind.CHECKPOINT and not place.inner:
            self._begin(place.checkpoint)
        elif place.kind is Kind.CHECKPOINT:
            self._upload(place).make_dir(place.inner)
        elif self._wanted(place, self.key(path) or ""):
            self.files.make_dir(self._writable_home(), self.key(path) or "", self.run)

    def open_output_stream(self, path: str, metadata: object) -> pa.PythonFile:
        """A stream into a checkpoint's staging, or into a file that appears whole on close."""
        key, place = self.key(path) or "", self._place_told(path)
        if place is None or not self._wanted(place, key):
            return pa.PythonFile(NullStream(), mode="w")
        if place.kind is Kind.CHECKPOINT:
            if not place.inner and self._is_not_begun(place):
                self._artifacts.refuse_name(key)
                return pa.PythonFile(NullStream(), mode="w")
            layout.check_inside(path, place)
            upload = self._upload(place)
            return pa.PythonFile(InTurn(COPYING, lambda: upload.open(place.inner)), mode="w")
        if self.run is not None and self.run.behind is not None:
            return pa.PythonFile(self.files.held(key, place.kind, self.run), mode="w")
        make = partial(self._file_stream, key, place)
        # The driver's control loop must not wait for threads that copy.
        return pa.PythonFile(make() if self.run else InTurn(COPYING, make), mode="w")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        """Read a file from its start to its end."""
        home, key, _ = self.locate(path)
        if isinstance(home, LocalHome) and not isinstance(home, SharedHome):
            return self.open_input_file(path)
        return self._reads.open_stream(home, key, self._place(path), path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Read a file, at any position."""
        home, key, base = self.locate(path)
        if isinstance(home, LocalHome) and not isinstance(home, SharedHome):
            return pafs.LocalFileSystem().open_input_file(f"{base}/{key}")
        if key == TUNER:
            return pa.BufferReader(read_whole(home, self.spec.where))
        return self._reads.open_file(home, key, self._place(path), path)

    def delete_file(self, path: str) -> None:
        """Remove a file. Files of a checkpoint cannot be removed one by one."""
        if self._file_info(path).type == pafs.FileType.NotFound:
            raise FileNotFoundError(path)
        self._remove(self._own_key(path))

    def delete_dir(self, path: str) -> None:
        """Remove a directory. On the driver a checkpoint goes once no state names it any more."""
        place = self._place(path)
        is_whole = place.kind is Kind.CHECKPOINT and not place.inner  # no part of one is removed
        if is_whole and self.run is not None and not self.run.closed:
            self.run.let_go(place.checkpoint)
        elif is_whole and layout.TRAIN_RECORD in self.files.unstored:
            self._record.refuse_delete(self._own_key(path))
        else:
            self._remove(self._own_key(path))

    def publish(self, path: str, metrics: Any = None) -> Conflicts:
        """Publish what all writers sealed (`Home.publish`). On the driver that is seen at once."""
        self.barrier()
        checkpoint = self._own_key(path)
        if self.spec.options.checkpoint_depth:
            return self._publish(checkpoint, self.uploads.take(checkpoint), metrics)
        return self._record.of_report(checkpoint)  # of Ray Train

    def publish_early(self, path: str, metrics: Any = None) -> None:
        """On the driver, publish a checkpoint that was reported and that Ray did not register."""
        if self.run is not None:
            key, strict = self._own_key(path), self.spec.options.strict
            self.run.publish_early(key, strict, self.uploads.reported_at(key), metrics)

    def send_file(self, file: TreeFile, target: str, target_root: str) -> None:
        """Store a file of this node: in a checkpoint's attempt, or whole in its place.

        The file's `path` and `same_as` are relative to `target_root` there.
        """
        place = self._place(target)
        if not self._wanted(place, self._own_key(target)):
            return
        if place.kind is Kind.CHECKPOINT:
            upload = self._upload(place)
            same_as = self._place(f"{target_root}/{file.same_as}").inner if file.same_as else ""
            upload.add_file(place.inner, file.source, same_as, is_given=file.is_given)
            return
        stream = self._file_stream(self._own_key(target), place)
        with open(file.source, "rb") as reader:
            shutil.copyfileobj(reader, stream, COPY_BYTES)
        stream.close()  # only if all could be read: closing is what makes it appear

    def make_directory(self, size_bytes: int = 0) -> Path | None:
        """See `Home.make_directory`."""
        return self._writable_home().make_directory(size_bytes)

    def key(self, path: str) -> str | None:
        """`path` relative to the experiment directory, or None if it is elsewhere."""
        return layout.below(self.experiment_root, path) if self.spec.experiment else None

    def _own_key(self, path: str) -> str:
        key = self.key(path)
        if key is None:
            raise PathRefusedError(f"{path} is not inside the experiment {self.experiment_root}")
        return key

    def _place(self, path: str) -> Place:
        depth = self.spec.options.checkpoint_depth
        return layout.classify(self._own_key(path), checkpoint_depth=depth)

    def _place_told(self, path: str) -> Place | None:
        """`_place`; None for an artifact that is refused, which is told."""
        try:
            return self._place(path)
        except PathRefusedError as error:
            if self.run is not None:
                raise
            self._artifacts.refuse(self._own_key(path), error)
            return None

    def _is_not_begun(self, place: Place) -> bool:
        """Whether this is no report of a checkpoint, but a copy of a trial's directory."""
        is_report = self.run is not None or not self.spec.options.checkpoint_depth
        upload = None if is_report else self.uploads.find(place.checkpoint)
        return not is_report and (upload is None or upload.is_over)

    def locate(self, path: str) -> tuple[Home, str, str]:
        """The home to read `path` from, its key there, and what the keys are relative to."""
        key = self._own_key(path) if self.spec.scheme else self.key(path)
        if key is not None:
            return self._home(), key, self.experiment_root
        base = Path(path)
        return LocalHome(base.parent), base.name, base.parent.as_posix().rstrip("/")

    def _file_info(self, path: str) -> pafs.FileInfo:
        home, key, _ = self.locate(path)
        if self.run is not None and self.run.is_on_its_way(key):
            return pafs.FileInfo(path, pafs.FileType.Directory)  # the control loop asks
        found = home.info(key)
        if found is None and path.endswith("/" + layout.MARKER):
            self._writable_home()  # says what is wrong
        return as_file_info(path, found) if found else pafs.FileInfo(path, pafs.FileType.NotFound)

    def _home(self) -> Home:
        if self.run is not None:
            return self.run.home
        if self._home_cache is None or self._home_cache[0] is not self.spec:
            self._home_cache = (self.spec, self.connector.home(self.spec))
        return self._home_cache[1]

    def _writable_home(self) -> Home:
        if not self.is_driver and self.spec.address is None and self.connector.is_worker():
            raise ConfigError(
                f"this process on {self.connector.where()} cannot reach the home of "
                f"{self.experiment_root}: the run was started without its callback; use "
                "tune_sync.RunConfig, or pass all of run_config_kwargs(...) on, callbacks included"
            )
        return self._home()

    def _wanted(self, place: Place, key: str) -> bool:
        if place.kind is Kind.TRIAL_FILE and self.spec.options.shared and self.run is None:
            home = self._home()
            if isinstance(home, SharedHome) and home.is_working_directory(place.trial):
                return False
        is_driver = self.run is not None
        if not wanted(place, key, self.spec.options, is_driver=is_driver):
            return False
        return is_driver or not self._artifacts.is_of_driver(key)

    def _begin(self, checkpoint: str, **how: bool) -> CheckpointUpload:
        return self.uploads.begin(self._writable_home(), checkpoint, self.connector.rank(), **how)

    def _upload(self, place: Place) -> CheckpointUpload:
        upload = self.uploads.find(place.checkpoint)
        if upload is not None and not upload.is_over:
            return upload
        home = self._home()
        by_manifest = home.in_place or self.spec.options.shared  # nothing to wait for
        mark = layout.manifest_key(place.checkpoint) if by_manifest else place.checkpoint
        if home.info(mark) is not None:
            raise ImmutableError(
                f"checkpoint {place.checkpoint} is published and never changes; copy it with "
                "to_directory() and report the copy"
            )
        return upload or self._begin(place.checkpoint, goes_on=True)

    def _publish(self, key: str, attempts: Collection[str], metrics: Any = None) -> Conflicts:
        if self.run is None:
            return self._home().publish(key, self.spec.options.strict, attempts)
        return self.run.publish(key, self.spec.options.strict, attempts, metrics)

    def _file_stream(self, key: str, place: Place) -> FileStream:
        run, timeout_s = self.run, self.spec.options.timeout_s
        return self.files.stream(self._writable_home(), key, place.kind, run, timeout_s)

    def _tell(self, key: str, reason: str | None) -> None:
        if not self.is_driver:
            self.connector.tell_unstored(self.spec, key, reason)

    def _remove(self, key: str) -> None:
        self._writable_home().remove(key)
        self.files.forget(key)
