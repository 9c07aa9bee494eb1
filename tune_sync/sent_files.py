"""Files outside of checkpoints: which versions this process has stored, and which it could not."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext, suppress
from functools import partial

from tune_sync import layout
from tune_sync.behind.held_file import HeldFile
from tune_sync.errors import (
    HomeLostError,
    LeaseLostError,
    NotStoredError,
    SyncTimeoutError,
    TuneSyncError,
)
from tune_sync.homes.home import Home, digest_of
from tune_sync.homes.state_records import NotYetError, is_torn
from tune_sync.layout import Kind
from tune_sync.paced import Paced
from tune_sync.run import Run
from tune_sync.sessions import Sessions
from tune_sync.transfer.streams import (
    CopiedStream,
    FileStream,
    SearchStream,
    StateStream,
    Storing,
)

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


# Ray's experiment state, the files that name checkpoints, begins with this.
STATE_NAME = "experiment_state"
# What tells which trials a search has made by now begins with one of these.
SEARCH_NAMES = ("basic-variant-state-", "search_gen_state-", "searcher-state-")
# In an error. A full disk refuses several files of each trial, for one and the same reason.
SHOWN_COUNT = 5
# Before what earlier processes have told is asked for again, if nobody answered.
ASK_AGAIN_S = 60.0


class SentFiles:
    """Used by one filesystem. Methods may be called from any thread.

    Args:
        tell: Called with the key of a file that is not stored, and why; with None for why, once it
            is stored after all.
        storing: Of the key of a file: what it is put in its place within, or None. What that raises
            is why it is not stored.
        ask: Returns the keys that `tell` was called with, here and in earlier processes.

    Attributes:
        unstored: Key of a file whose last version is not stored -> why.
        bodies: What those of them hold that were to be put in their place within something.
    """

    def __init__(
        self, tell: Callable[[str, str | None], None] = lambda key, reason: None,
        storing: Callable[[str], Storing | None] = lambda key: None,
        ask: Callable[[], Collection[str]] = tuple,
    ) -> None:  # fmt: skip
        self._tell, self._storing, self._ask = tell, storing, ask
        self._told, self._ask_again_s = set[str](), float("-inf")
        self.unstored: dict[str, str] = {}  # no errors: their frames hold chunks
        self.bodies: dict[str, bytes] = {}
        self._run: Run | None = None
        self._sessions = Sessions()
        self._digests: dict[str, str] = {}
        self._changed: set[str] = set()  # states of this run: those of earlier ones never do
        self._paced: Paced | None = None
        self._early: dict[str, tuple[SearchStream, Callable[[], None]]] = {}
        self._searches: dict[str, bool] = {}  # one is there already, or is on its way
        self._made: set[str] = set()  # directories, or they are on their way
        self._known = threading.Lock()  # guards these; never held while a file is written
        self._searching = threading.Lock()  # none of these is put after a newer one
        self._asking = threading.Lock()

    def stream(
        self, home: Home, key: str, kind: Kind, run: Run | None, timeout_s: float
    ) -> FileStream:
        """A stream into a file that appears whole when it is closed; see `commit`."""
        named, key = key, self._sessions.place(key)
        if run is not None and run is not self._run:  # of an earlier one nobody asks any more
            self._run = run
            self.unstored.clear()

        def commit(stream: FileStream) -> None:
            if self._sessions.left(named, stream.digest):
                stream.drop()
            else:
                self.commit(stream, key, kind, run, timeout_s)

        given = home, key, commit, partial(self.failed, key)
        storing = self._storing(key)
        if storing is not None:
            return self._within(storing, *given)
        if key.startswith(SEARCH_NAMES) and run is not None:
            searched = SearchStream(*given)
            # The first one goes at once: a state without any would tell that all trials are made.
            if key in self._searches or run.saved_trials:
                searched.may_come = run.versions.following()
            self._searches.setdefault(key, False)
            return searched
        if not key.startswith(STATE_NAME):
            return FileStream(*given)
        stream = StateStream(*given)
        if run is not None:
            stream.arrived = run.versions.copying()
        return stream

    def commit(
        self, stream: FileStream, key: str, kind: Kind, run: Run | None, timeout_s: float
    ) -> None:
        """Put a finished file in its place; skips one that this process has sent before.

        Once training has begun a thread puts the driver's, so that nobody waits for where they go;
        of several versions of one that wait for their turn only the newest is put.
        """
        if isinstance(stream, StateStream) and is_torn(stream.body):
            stream.drop()
            return
        durable = kind is Kind.STATE
        put = later = partial(self._commit_in_turn, stream, key, durable, run, timeout_s)
        if run is not None and (_trains(run) or run.home.rewrite_s):
            paced = self._pace(run)
            if not durable and self._digests.get(key) == stream.digest and paced.is_idle(key):
                with suppress(TuneSyncError, OSError):
                    stream.drop()  # of most trials nothing changes from one snapshot to the next
                return
            # With `num_to_keep` the control loop waits for each state to be copied: neither the
            # put nor the manifests that have to be there before it may hold that up.
            # What Ray logs of trials is much more, and bounded.
            held_bytes = 0 if durable else stream.held_bytes
            put = later = partial(
                paced.do, key, later, stream.drop, waits=not _trains(run), size_bytes=held_bytes
            )
        else:
            put = partial(self._commit, stream, key, durable, run, timeout_s)
        with self._searching if isinstance(stream, SearchStream) else nullcontext():
            if not isinstance(stream, SearchStream) or self._is_in_time(stream, key, later):
                put()

    def make_dir(self, home: Home, key: str, run: Run | None) -> None:
        """Make a directory. Once training has begun nobody waits for that of the driver."""
        make = partial(home.make_dir, key)
        if run is None or not _trains(run):
            make()
            return
        with self._known:
            is_made = key in self._made
            self._made.add(key)
        if is_made:
            return  # whoever puts a file makes it again, if it is gone
        if run.behind is not None:
            run.behind.offer(f"{key}/", make, is_state=False)
        else:
            self._pace(run).do(f"{key}/", partial(self._make, key, make), waits=False)

    def flush(self, timeout_s: float) -> None:
        """Return when all that waits for its turn is in its place.

        Raises:
            SyncTimeoutError: Nothing of it got there for `timeout_s`.
        """
        if self._paced is not None and not self._paced.flush(timeout_s):
            raise SyncTimeoutError(
                f"no state was written for {timeout_s:.0f} s (sync_timeout): look at the "
                "network and at what is slow there, then restore the run"
            )

    def check(self, ask: Callable[[], Mapping[str, str]]) -> None:
        """Whether all files are stored.

        Args:
            ask: Returns key of a file that a trial could not store -> why.

        Raises:
            NotStoredError: Names some that are not, and why, and how many; or it is not known.
        """
        unstored = dict(self.unstored)
        try:
            unstored |= ask()
        except HomeLostError as error:
            unstored["files of trials"] = str(error)
        if unstored:
            shown = [f"{key}: {why}" for key, why in list(unstored.items())[:SHOWN_COUNT]]
            more_count = len(unstored) - len(shown)
            shown += [f"and {more_count} more files, which the logs name"] if more_count else []
            raise NotStoredError("; ".join(shown))

    def failed(self, key: str, error: Exception) -> None:
        """A file is not stored. pyarrow drops what `close` raises, and Ray only logs the rest."""
        if isinstance(error, LeaseLostError) and key != layout.TRAIN_RECORD:
            return  # told by whoever checks the lease; whoever writes that record does not
        why = self.unstored[key] = str(error)
        logger.error("%s is not stored: %s", key, why)
        self._note(key, None)
        if not self._searches.get(key):
            self._searches.pop(key, None)
        self._told.add(key)
        self._tell(key, why)

    def learn(self, run: Run) -> None:
        """Look at the state that earlier runs left: Ray copies it again, and it is no news."""
        for entry in run.home.list("", False):
            if entry.key.startswith(STATE_NAME):
                self._note(entry.key, _digest_at(run, entry.key) or "")

    def resume(self, staging: str) -> None:
        """Look at what earlier sessions left where Ray's driver writes; before it writes there."""
        self._sessions = Sessions.of(staging)

    def begin_anew(self) -> None:
        """Send all again: other processes may have replaced what this one has stored.

        They may also have told since what they could not store.
        """
        self._sessions = Sessions()
        with self._known:
            self._digests, self._changed, self._early, self._searches = {}, set(), {}, {}
            self._made = set()
        with self._asking:
            self._ask_again_s = float("-inf")

    def held(self, key: str, kind: Kind, run: Run) -> HeldFile:
        """A file of the driver that is written later, unless it is on its way or there already.

        Closing it does not wait, and makes no request.
        """
        arrived = run.versions.copying()
        named, key = key, self._sessions.place(key)

        def hold(file: HeldFile) -> None:
            if self._sessions.left(named, file.digest):
                return
            self._hold(file, key, kind, run)
            if key in self._changed and self._digests.get(key) == file.digest:
                arrived()

        return HeldFile(hold)

    def forget(self, key: str) -> None:
        """`key` was removed, with all that is below."""
        with self._known:
            self._digests = {k: d for k, d in self._digests.items() if layout.below(key, k) is None}
            self._made = {made for made in self._made if layout.below(key, made) is None}

    def _within(
        self, storing: Storing, home: Home, key: str, commit: Callable[[FileStream], None],
        on_error: Callable[[Exception], None],
    ) -> FileStream:  # fmt: skip
        def close(stream: FileStream) -> None:
            self.bodies[key] = copied.body
            with storing(copied.body, home):
                commit(stream)
            self.bodies.pop(key, None)

        copied = CopiedStream(home, key, close, on_error)
        return copied

    def _pace(self, run: Run) -> Paced:
        with self._known:
            self._paced = self._paced or Paced(run.home.rewrite_s)
        return self._paced

    def _make(self, key: str, make: Callable[[], None]) -> None:
        try:
            make()
        except Exception as error:  # what is put into it says so, too
            with self._known:
                self._made.discard(key)
            logger.debug("directory %s is not made: %s", key, error)

    def _note(self, key: str, digest: str | None) -> None:
        with self._known:
            if digest is None:
                self._digests.pop(key, None)
            else:
                self._digests[key] = digest

    def _hold(self, file: HeldFile, key: str, kind: Kind, run: Run) -> None:
        names, is_state = key.startswith(STATE_NAME), kind is Kind.STATE
        if run.behind is None or self._digests.get(key) == file.digest:
            return
        if names and is_torn(file.body):
            return
        self._note(key, file.digest)
        if names:
            self._changed.add(key)
        edit = run.behind.edit if names else None

        def write() -> None:
            try:
                file.send(run.home, key, is_state, edit)
            except NotYetError:  # it, or a later one, is written later
                raise
            except Exception as error:
                self.unstored[key] = str(error)
                raise
            self.unstored.pop(key, None)

        run.behind.offer(key, write, is_state=is_state, names=names)

    def _is_in_time(self, stream: SearchStream, key: str, put: Callable[[], None]) -> bool:
        """Whether a file of a search may be put now; else it is once a state allows it."""
        with self._known:
            older = self._early.pop(key, None)
            is_early = not stream.may_come()
            if is_early:
                self._early[key] = stream, put
        if older is not None:
            with suppress(TuneSyncError, OSError):
                older[0].drop()
        return not is_early

    def _put_early(self) -> None:
        with self._searching:
            with self._known:
                due = [key for key, (stream, _) in self._early.items() if stream.may_come()]
                puts = [self._early.pop(key)[1] for key in due]
            for put in puts:
                put()

    def _stored_after_all(self, key: str) -> bool:
        """Whether somebody was told that it is not stored. False the second time."""
        with self._asking:
            if time.monotonic() >= self._ask_again_s:
                try:
                    self._told.update(self._ask())
                    self._ask_again_s = float("inf")
                except Exception as error:  # this file is stored, whatever can be asked
                    self._ask_again_s = time.monotonic() + ASK_AGAIN_S
                    logger.debug("what is not stored cannot be asked for: %s", error)
            is_told = key in self._told
            self._told.discard(key)
        return is_told

    def _commit_in_turn(
        self, stream: FileStream, key: str, durable: bool, run: Run | None, timeout_s: float
    ) -> None:
        try:
            self._commit(stream, key, durable, run, timeout_s)
        except Exception as error:
            with suppress(TuneSyncError, OSError):
                stream.drop()  # it was closed long ago: nobody else does
            self.failed(key, error)

    def _commit(
        self, stream: FileStream, key: str, durable: bool, run: Run | None, timeout_s: float
    ) -> None:
        if run is not None and durable:  # what it names was placed before
            run.publisher.drain(timeout_s)
        before = self._digests.get(key)
        if run is not None and before is None and key.startswith(STATE_NAME):
            before = _digest_at(run, key)
        if stream.digest != before:
            self._changed.add(key)
        corrected = _corrected(stream, key, run) if key in self._changed else None
        if corrected is not None:
            stream.drop()
        (corrected or stream).commit(durable, unless=None if run and durable else before)
        if key in self._changed and isinstance(stream, StateStream):
            stream.arrived()
            self._put_early()
        # After a restore Ray copies the states of earlier runs too, in every snapshot. They are not
        # news: only what differs from the version before may count for deletes.
        if run is not None and key.startswith(STATE_NAME) and stream.digest != before:
            run.state_written()
        self._note(key, stream.digest)
        if key in self._searches:
            self._searches[key] = True
        self.unstored.pop(key, None)
        if run is None and self._stored_after_all(key):
            self._tell(key, None)


def _trains(run: Run) -> bool:
    return run.begun and not run.closed


def _corrected(stream: FileStream, key: str, run: Run | None) -> FileStream | None:
    """Another stream in the place of one whose state names what it must not name any more."""
    if run is None or not run.corrections or not isinstance(stream, StateStream):
        return None
    corrected = FileStream(run.home, key, lambda stream: None)
    corrected.write(run.corrections.apply(stream.body))
    return corrected


def _digest_at(run: Run, key: str) -> str | None:
    found = run.home.info(key)
    return digest_of(run.home.read(key, 0, found.size_bytes)) if found else None
