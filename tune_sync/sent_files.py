"""Files outside of checkpoints: which versions this process has stored, and which it could not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial

from tune_sync import layout
from tune_sync.behind.held_file import HeldFile
from tune_sync.errors import (
    HomeLostError,
    LeaseLostError,
    NotStoredError,
    SyncTimeoutError,
)
from tune_sync.homes.digests import digest_of
from tune_sync.homes.home import Home
from tune_sync.homes.state_records import NotYetError, is_torn
from tune_sync.layout import Kind
from tune_sync.paced import Paced
from tune_sync.run import Run
from tune_sync.search_order import Put, SearchOrder
from tune_sync.sessions import Sessions
from tune_sync.told_files import ToldFiles
from tune_sync.transfer.streams import (
    CopiedStream,
    FileStream,
    SearchStream,
    StateStream,
    Storing,
)

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# In an error. A full disk refuses several files of each trial, for one and the same reason.
SHOWN_COUNT = 5


class SentFiles:
    """Used by one filesystem. Methods may be called from any thread.

    Args:
        tell, ask: See `ToldFiles`.
        storing: Of the key of a file: what it is put in its place within, or None. What that raises
            is why it is not stored.

    Attributes:
        unstored: Key of a file whose last version is not stored -> why.
        bodies: What those of them hold that were to be put in their place within something.
    """

    def __init__(
        self, tell: Callable[[str, str | None], None] = lambda key, reason: None,
        storing: Callable[[str], Storing | None] = lambda key: None,
        ask: Callable[[], Collection[str]] = tuple,
    ) -> None:  # fmt: skip
        self._storing = storing
        self._told = ToldFiles(tell, ask)
        self.unstored: dict[str, str] = {}  # no errors: their frames hold chunks
        self.bodies: dict[str, bytes] = {}
        self._run: Run | None = None
        self._sessions = Sessions()
        self._digests: dict[str, str] = {}
        self._changed: set[str] = set()  # states of this run: those of earlier ones never do
        self._paced: Paced | None = None
        self._order = SearchOrder()
        self._made: set[str] = set()  # directories, or they are on their way
        self._known = threading.Lock()  # never held while a file is written

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
        if layout.is_search(key) and run is not None:
            searched = SearchStream(*given)
            searched.needed = self._order.read_search(named)
            return searched
        if not layout.is_state(key):
            return FileStream(*given)
        stream = StateStream(*given)
        if run is not None:
            stream.made_count = run.versions.made_count
            stream.arrived, stream.version = run.versions.copying(), self._order.read_state()
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
                stream.give_up()  # of most trials nothing changes from one snapshot to the next
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
        if run is None or not isinstance(stream, (SearchStream, StateStream)):
            put()
            return

        in_order, is_new = Put(put, later, stream.give_up), not run.saved_trials
        if isinstance(stream, SearchStream):
            first = put if is_new else None
            self._order.put_search(key, stream.needed(), in_order, first=first)
        else:
            self._order.put_state(key, stream.version, in_order, is_new=is_new)

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

    def ended(self) -> None:
        """The control loop has ended: see `SearchOrder.ended`."""
        self._order.ended()

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
        self._order.failed(key)
        self._told.failed(key, why)

    def made(self, run: Run, staging: str = "") -> None:
        """Ray has made a version of its state, and its files are complete in `staging`."""
        run.versions.made()
        self._order.made(staging, self._sessions.place)

    def learn(self, run: Run) -> None:
        """Look at the state that earlier runs left: Ray copies it again, and it is no news."""
        for entry in run.home.list("", False):
            if layout.is_state(entry.key):
                self._note(entry.key, _digest_at(run, entry.key) or "")

    def resume(self, staging: str) -> None:
        """Look at what earlier sessions left where Ray's driver writes; before it writes there."""
        self._sessions = Sessions.of(staging)

    def begin_anew(self) -> None:
        """Send all again: other processes may have replaced what this one has stored.

        They may also have told since what they could not store.
        """
        self._sessions, self._order = Sessions(), SearchOrder()
        with self._known:
            self._digests, self._changed, self._made = {}, set(), set()
        self._told.begin_anew()

    def held(self, key: str, kind: Kind, run: Run) -> HeldFile:
        """A file of the driver that is written later, unless it is on its way or there already.

        Closing it does not wait, and makes no request.
        """
        named, key = key, self._sessions.place(key)
        if layout.is_state(key):
            offer = self._offers_state(key, run)
        elif layout.is_search(key):
            offer = self._offers_search(key, run, self._order.read_search(named))
        else:
            offer = partial(self._offer, key, run, is_state=kind is Kind.STATE)

        def hold(file: HeldFile) -> None:
            if run.behind is not None and not self._sessions.left(named, file.digest):
                offer(file)

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

    def _offers_state(self, key: str, run: Run) -> Callable[[HeldFile], None]:
        arrived, version = run.versions.copying(), self._order.read_state()

        def offer(file: HeldFile) -> None:
            if self._digests.get(key) != file.digest:
                self._changed.add(key)
                self._offer(key, run, file, is_state=True, names=True)
            if key in self._changed:
                arrived()
                self._order.state_is_there(version)

        def offer_in_order(file: HeldFile) -> None:
            if not is_torn(file.body):
                put = Put(partial(offer, file), partial(offer, file))
                self._order.put_state(key, version, put, is_new=not run.saved_trials)

        return offer_in_order

    def _offers_search(
        self, key: str, run: Run, needed: Callable[[], int]
    ) -> Callable[[HeldFile], None]:
        def offer_in_order(file: HeldFile) -> None:
            # The first one does not wait for the state that is offered next: that waits for it.
            there = partial(self._order.search_is_there, key)
            ahead = partial(self._offer, key, run, file, is_state=True, then=there)
            offer = partial(self._offer, key, run, file, is_state=True)
            first = None if run.saved_trials else ahead
            self._order.put_search(key, needed(), Put(offer, offer), first=first)

        return offer_in_order

    def _offer(
        self, key: str, run: Run, file: HeldFile, *, is_state: bool, names: bool = False,
        then: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        if run.behind is None or self._digests.get(key) == file.digest:
            return
        self._note(key, file.digest)
        edit = run.behind.edit if names else None

        def write() -> None:
            if then is not None and self._digests.get(key) != file.digest:
                return  # a newer one is on its way, by another queue
            try:
                file.send(run.home, key, is_state, edit)
            except NotYetError:  # it, or a later one, is written later
                raise
            except Exception as error:
                self.unstored[key] = str(error)
                raise
            self.unstored.pop(key, None)
            if then is not None:
                then()

        run.behind.offer(key, write, is_state=is_state and then is None, names=names)

    def _commit_in_turn(
        self, stream: FileStream, key: str, durable: bool, run: Run | None, timeout_s: float
    ) -> None:
        try:
            self._commit(stream, key, durable, run, timeout_s)
        except Exception as error:
            stream.give_up()  # it was closed long ago: nobody else does
            self.failed(key, error)

    def _commit(
        self, stream: FileStream, key: str, durable: bool, run: Run | None, timeout_s: float
    ) -> None:
        if run is not None and durable:  # what it names was placed before
            made_count = stream.made_count if isinstance(stream, StateStream) else -1
            run.publisher.drain(timeout_s, made_count)
        before = self._digests.get(key)
        if run is not None and before is None and layout.is_state(key):
            before = _digest_at(run, key)
        if stream.digest != before:
            self._changed.add(key)
        corrected = _corrected(stream, key, run) if key in self._changed else None
        if corrected is not None:
            stream.drop()
        (corrected or stream).commit(durable, unless=None if run and durable else before)
        if key in self._changed and isinstance(stream, StateStream):
            stream.arrived()
            self._order.state_is_there(stream.version)
        # After a restore Ray copies the states of earlier runs too, in every snapshot. They are not
        # news: only what differs from the version before may count for deletes.
        if run is not None and layout.is_state(key) and stream.digest != before:
            run.state_written()
        self._note(key, stream.digest)
        if isinstance(stream, SearchStream):
            self._order.search_is_there(key)
        self.unstored.pop(key, None)
        if run is None:
            self._told.stored(key)


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
