"""Sends directories of an experiment with a user's syncer, with retries, one at a time.

A syncer moves directories. So single files are put together in a *parcel*: a directory of hard
links to them, which stay as they are while they are sent.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tune_sync import layout
from tune_sync.errors import ConfigError, DamagedError, StoreError
from tune_sync.mirror.record import MARK_NAME, MIRROR_DIR, experiment_of, mark_json
from tune_sync.syncers.base import Syncer, exits_told, say_again
from tune_sync.syncers.choosing import link_or_copy

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

PARCELS_DIR = f"{MIRROR_DIR}/parcels"
# One directory for each experiment that was begun here: a syncer deletes directories only.
MARKS_NAME = "marks"

RETRIES = 2
# Ray's own: what fails for a moment is over by then.
BACKOFF_S = 5.0
# For how long a syncer has worked is said so often to whoever waits for it, and so often else.
SAY_S, SAY_MEANWHILE_S = 5.0, 30.0


class Parcel:
    """Files on their way to the mirror. Use it in a `with`.

    Args:
        root: The experiment directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.path = root / PARCELS_DIR / uuid.uuid4().hex
        self.keys: set[str] = set()

    def __enter__(self) -> Parcel:
        self.path.mkdir(parents=True)
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def add(self, key: str, name: str) -> bool:
        """Put a file of the experiment in, under a name; returns whether it is still there."""
        try:
            link_or_copy(self._root / key, self.path / name)
        except FileNotFoundError:
            return False
        self.keys.add(key)
        return True

    def add_bytes(self, name: str, data: bytes) -> None:
        """Put a file in that is not in the experiment."""
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_bytes(data)


class Outbox:
    """The mirror, as directories that can be sent, fetched and deleted.

    Args:
        root: The experiment directory.
        remote: The directory that mirrors it, as the syncer names it.
        syncer: The user's.
        on_progress: Called whenever a directory was sent or deleted.
        backoff_s: Seconds before a retry.

    Attributes:
        say_every_s: How often it is said for how long the syncer has worked on one directory.
    """

    def __init__(
        self, root: Path, remote: str, syncer: Syncer,
        on_progress: Callable[[], None] = lambda: None, backoff_s: float = BACKOFF_S,
    ) -> None:  # fmt: skip
        self._root = root
        self.remote = remote
        self._syncer = syncer
        self._on_progress = on_progress
        self._backoff_s = backoff_s
        self.say_every_s = SAY_S
        shutil.rmtree(root / PARCELS_DIR, ignore_errors=True)

    def parcel(self) -> Parcel:
        """An empty parcel."""
        return Parcel(self._root)

    def send_parcel(self, parcel: Parcel, below: str = "") -> None:
        """Send what is in a parcel; raises what went wrong."""
        target = join_remote(self.remote, below)
        self._try(f"sending {target}", lambda: self._syncer.sync_up(str(parcel.path), target))

    def send_directory(self, key: str) -> None:
        """Send a directory of the experiment; raises what went wrong."""
        source, target = str(self._root / key), join_remote(self.remote, key)
        self._try(f"sending {target}", lambda: self._syncer.sync_up(source, target))

    def delete(self, key: str) -> None:
        """Delete a directory at the mirror; raises what went wrong."""
        target = join_remote(self.remote, key)
        self._try(f"deleting {target}", lambda: self._syncer.delete(target))

    def send_mark(self, experiment: str) -> None:
        """Say at the mirror which experiment it is."""
        with self.parcel() as parcel:
            parcel.add(layout.FORMAT_KEY, layout.FORMAT_KEY.rpartition("/")[2])
            parcel.add_bytes(f"{MIRROR_DIR.rpartition('/')[2]}/{MARK_NAME}", mark_json(experiment))
            self.send_parcel(parcel, layout.INTERNAL_DIR)

    def claim(self, experiment: str) -> None:
        """Put a mark there whose name no other experiment has; raises what went wrong."""
        with self.parcel() as parcel:
            parcel.add_bytes(MARK_NAME, mark_json(experiment))
            self.send_parcel(parcel, _claim_key(experiment))

    def give_back(self, experiment: str) -> None:
        """Take the mark of `claim` away. One that stays does no harm to what is there.

        That is tried once: a run that is refused waits for it.
        """
        target = join_remote(self.remote, _claim_key(experiment))
        try:
            self._once(f"deleting {target}", lambda: self._syncer.delete(target))
        except Exception as error:
            logger.warning("%s stays in %s: %s", _claim_key(experiment), self.remote, error)

    def visible_marks(self) -> set[str]:
        """Which experiments can be seen at the mirror now; none also where nobody answers.

        Raises:
            ConfigError: The syncer cannot work here.
            DamagedError: What marks one cannot be read.
        """
        try:
            return self._fetch_marks(self._once)
        except (ConfigError, DamagedError):
            raise
        except Exception:  # a syncer cannot say whether nothing is there, or nobody answers
            return set()

    def marks(self) -> set[str]:
        """Which experiments are at the mirror, where there is one; raises what went wrong."""
        return self._fetch_marks(self._try)

    def _fetch_marks(self, fetch: Callable[[str, Callable[[], Any]], object]) -> set[str]:
        source = join_remote(self.remote, MIRROR_DIR)
        with self.parcel() as parcel:
            to = str(parcel.path)
            fetch(f"fetching {source}", lambda: self._syncer.sync_down(source, to))
            found = {path.name for path in (parcel.path / MARKS_NAME).glob("*")}
            mark = parcel.path / MARK_NAME
            return found | ({experiment_of(mark.read_bytes(), source)} if mark.is_file() else set())

    def _try(self, what: str, act: Callable[[], Any]) -> None:
        if type(self._syncer).retry is not Syncer.retry:
            with exits_told(type(self._syncer).__name__), self._told(what):
                self._start(act)
                self._syncer.wait_or_retry(RETRIES, self._backoff_s)
        else:
            self._repeat(what, act)
        self._on_progress()

    def _once(self, what: str, act: Callable[[], Any]) -> None:
        with exits_told(type(self._syncer).__name__), self._told(what):
            self._start(act)
            self._syncer.wait()

    def _repeat(self, what: str, act: Callable[[], Any]) -> None:
        """For a syncer that has no `retry` of its own."""
        for left in range(RETRIES, -1, -1):
            try:
                self._once(what, act)
                return
            except ConfigError:
                raise
            except Exception as error:
                if not left:
                    raise
                say_again(self._syncer, self._backoff_s, error)
            time.sleep(self._backoff_s)

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Say now and then for how long the syncer has worked: it may hang."""
        is_over = threading.Event()
        telling = threading.Thread(
            target=self._tell, args=(what, is_over), name="tune_sync-says", daemon=True
        )
        with suppress(RuntimeError):  # no room for one more thread: it works all the same
            telling.start()
        try:
            yield
        finally:
            is_over.set()

    def _tell(self, what: str, is_over: threading.Event) -> None:
        began_s = said_s = time.monotonic()
        while not is_over.wait(min(1.0, self.say_every_s)):
            now_s = time.monotonic()
            if now_s - said_s >= self.say_every_s:
                said_s = now_s
                logger.info(
                    "waiting: %s has been %s for %.0f s",
                    type(self._syncer).__name__, what, now_s - began_s,
                )  # fmt: skip

    def _start(self, act: Callable[[], Any]) -> None:
        if act() is False:  # something is under way
            self._syncer.wait()
            if act() is False:
                raise StoreError(
                    f"{type(self._syncer).__name__} did not start a sync: it returned False twice"
                )


def _claim_key(experiment: str) -> str:
    return f"{MIRROR_DIR}/{MARKS_NAME}/{experiment}"


def join_remote(remote: str, key: str) -> str:
    """A directory below a remote one. The query of a URL stays at its end."""
    place, mark, query = remote.partition("?") if "://" in remote else (remote, "", "")
    return f"{place.rstrip('/')}/{key}{mark}{query}" if key else remote
