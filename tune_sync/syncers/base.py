"""`Syncer`: what moves directories.

The methods are those of Ray's before 2.7, so that a subclass written for
`ray.tune.syncer.Syncer` ports by changing its import.
"""

from __future__ import annotations

import abc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tune_sync.errors import ConfigError, StoreError, SyncTimeoutError

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# Ray's own defaults.
SYNC_PERIOD_S = 300.0
SYNC_TIMEOUT_S = 1800.0


@contextmanager
def exits_told(what: str) -> Iterator[None]:
    """For code of the user's: what ends like a program says so as an error, unless all went well.

    The `main` of a command line tool, called as a function, raises `SystemExit`. That ends a thread
    without a word, as if it were done, and elsewhere the driver. So does all else that is no
    `Exception`, as `asyncio.CancelledError`. Ctrl-C, which the main thread gets, is the user's.

    Args:
        what: Was called, for the message.

    Raises:
        StoreError: It ended with another exit code than 0, or broke off.
    """
    try:
        yield
    except SystemExit as end:
        if end.code not in (None, 0):
            raise StoreError(f"{what} ended with exit code {end.code}") from end
    except Exception:
        raise
    except BaseException as error:
        is_ours = threading.current_thread() is threading.main_thread()
        if is_ours and isinstance(error, KeyboardInterrupt):
            raise
        raise StoreError(f"{what} broke off: {error!r}") from error


def say_again(syncer: Syncer, backoff_s: float, error: Exception) -> None:
    """Warn that a sync failed and is tried again: whoever waits sees why."""
    name = type(syncer).__name__
    logger.warning("%s failed, and is tried again in %.0f s: %s", name, backoff_s, error)


class Syncer(abc.ABC):
    """Moves directories between this node (local) and where results are kept (remote).

    Methods may be called from one thread at a time. `sync_up`, `sync_down` and `delete` may
    return while the work goes on; `wait` returns when it is over, and raises if it failed.

    Args:
        sync_period: Seconds that `sync_up_if_needed` and `sync_down_if_needed` keep apart.
        sync_timeout: Seconds after which `wait` gives up.
    """

    def __init__(
        self, sync_period: float = SYNC_PERIOD_S, sync_timeout: float = SYNC_TIMEOUT_S
    ) -> None:
        self.sync_period = sync_period
        self.sync_timeout = sync_timeout
        self.last_sync_up_time = float("-inf")
        self.last_sync_down_time = float("-inf")

    @abc.abstractmethod
    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        """Send a directory.

        Args:
            local_dir: A directory of this node.
            remote_dir: Where it goes.
            exclude: Glob patterns on paths relative to `local_dir` that are not sent.

        Returns:
            True if the sync was started or is queued; False if it was not.
        """

    @abc.abstractmethod
    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        """Fetch a directory. Arguments and result as for `sync_up`."""

    @abc.abstractmethod
    def delete(self, remote_dir: str) -> bool:
        """Delete a remote directory. Result as for `sync_up`."""

    def retry(self) -> None:
        """Start the last command again. For syncers that work in the background."""
        raise NotImplementedError(f"{type(self).__name__} does not implement retry()")

    def wait(self, timeout: float | None = None) -> None:  # noqa: B027 - nothing to wait for
        """Return when the last command is over.

        Args:
            timeout: Seconds; None for `sync_timeout`.

        Raises:
            SyncTimeoutError: It is not over in time (a TimeoutError).
            Exception: What the command raised.
        """

    def sync_up_if_needed(
        self, local_dir: str, remote_dir: str, exclude: list[str] | None = None
    ) -> bool:
        """`sync_up` if the last one began at least `sync_period` seconds ago."""
        now = time.monotonic()
        if now - self.last_sync_up_time < self.sync_period:
            return False
        self.last_sync_up_time = now
        return self.sync_up(local_dir, remote_dir, exclude)

    def sync_down_if_needed(
        self, remote_dir: str, local_dir: str, exclude: list[str] | None = None
    ) -> bool:
        """`sync_down` if the last one began at least `sync_period` seconds ago."""
        now = time.monotonic()
        if now - self.last_sync_down_time < self.sync_period:
            return False
        self.last_sync_down_time = now
        return self.sync_down(remote_dir, local_dir, exclude)

    def wait_or_retry(self, max_retries: int = 2, backoff_s: float = 5) -> None:
        """`wait`, and on failure `retry` and wait again.

        Args:
            max_retries: How often.
            backoff_s: Seconds before each.

        Raises:
            RuntimeError: The last attempt failed too; its error is the cause.
            ConfigError: The syncer cannot work here, however often it is tried.
        """
        for attempt in range(max_retries + 1):
            try:
                self.wait()
                return
            except ConfigError:
                raise
            except Exception as error:
                if attempt == max_retries:
                    raise RuntimeError(
                        f"sync failed {max_retries + 1} times, last: {error}"
                    ) from error
                say_again(self, backoff_s, error)
            time.sleep(backoff_s)
            self.retry()

    def reset(self) -> None:
        """Forget when the last syncs were."""
        self.last_sync_up_time = float("-inf")
        self.last_sync_down_time = float("-inf")

    def close(self) -> None:  # noqa: B027 - nothing to release
        """Release what the syncer holds. May be called twice."""


class BackgroundSyncer(Syncer):
    """A syncer whose commands run in a thread, one after the other; none is skipped.

    A command that is not over after `sync_timeout` is *revoked*: it ends the next time it asks
    (`check`), and nothing else is begun before it has ended. So it never writes over what came
    later.
    """

    def __init__(
        self, sync_period: float = SYNC_PERIOD_S, sync_timeout: float = SYNC_TIMEOUT_S
    ) -> None:
        super().__init__(sync_period, sync_timeout)
        self._thread: threading.Thread | None = None
        self._command: Callable[[], None] | None = None
        self._doing = ""
        self._error: Exception | None = None
        self._revoked: threading.Thread | None = None

    def check(self, command: threading.Thread | None = None) -> None:
        """For a command, before each step: raise SyncTimeoutError if it is not wanted any more.

        Args:
            command: The thread of the command, where another one asks that works for it.
        """
        if (command or threading.current_thread()) is self._revoked:
            raise SyncTimeoutError(f"the sync was given up after {self.sync_timeout:.0f} s")

    def retry(self) -> None:
        """Start the last command again. Raises RuntimeError if there was none."""
        if self._command is None:
            raise RuntimeError("there is no command to retry")
        self._start(self._command, self._doing)

    def wait(self, timeout: float | None = None) -> None:
        """See `Syncer.wait`."""
        if self._thread is None:
            return
        limit_s = self.sync_timeout if timeout is None else timeout
        self._thread.join(limit_s)
        if self._thread.is_alive():
            if limit_s >= self.sync_timeout:
                self._revoked = self._thread
            raise SyncTimeoutError(
                f"{self._doing} is not over after {limit_s:.0f} s (sync_timeout)"
            )
        was_revoked = self._thread is self._revoked
        self._thread = self._revoked = None
        error, self._error = self._error, None
        if error is not None and not was_revoked:  # that it was given up was raised already
            raise error

    def close(self) -> None:
        """Wait for the last command; its error is dropped."""
        if self._thread is not None:
            self._thread.join(self.sync_timeout)

    def _start(self, command: Callable[[], None], doing: str = "the sync") -> bool:
        """Run a command in the background, after the one that is running.

        `doing`: What it is, for messages.

        Raises:
            Exception: What the one before raised, if nobody has waited for it.
        """
        self.wait()
        self._command, self._doing = command, doing
        self._thread = threading.Thread(target=self._run, args=(command,), daemon=True)
        self._thread.start()
        return True

    def _run(self, command: Callable[[], None]) -> None:
        try:
            command()
        except Exception as error:
            self._error = error
        except BaseException as error:  # it ends this thread, and must not look like success
            self._error = StoreError(f"the sync broke off: {error!r}")
            self._error.__cause__ = error

    def __getstate__(self) -> dict[str, object]:
        return {
            **self.__dict__,
            "_thread": None,
            "_command": None,
            "_error": None,
            "_revoked": None,
        }
