"""The end of a run: what is left is published, and its directory is given back."""

from __future__ import annotations

from collections.abc import Callable

from tune_sync.errors import LeaseLostError, NotStoredError
from tune_sync.filesystem import SyncHandler
from tune_sync.run import Run


def end_run(
    handler: SyncHandler, run: Run, keep_saves: Callable[[], None], between: Callable[[], None],
    go_on: Callable[[], None],
) -> None:  # fmt: skip
    """Publish what is left, and give the directory back.

    Args:
        handler: The run's.
        run: It has not been closed.
        keep_saves: Publishes saves that Ray has dropped.
        between: Called again and again while this waits for other nodes.
        go_on: Has the last state not name what cannot be published.

    Raises:
        NotStoredError: Something accepted is not stored; Ray's fit() raises it.
        LeaseLostError: Another run took over; the directory is not ours to complete.
    """
    timeout_s = handler.spec.options.timeout_s
    try:
        run.lease.look()
        run.check_lease()
        keep_saves()
        run.publisher.wait_recorded(timeout_s)
        if run.publisher.left_out:  # a trial's latest may be published after all
            run.publisher.try_again()
        go_on()
        run.retire_unused()
        handler.files.ended()
        handler.files.flush(timeout_s)
        run.flush(timeout_s, between)
        handler.files.check(lambda: handler.connector.unstored(handler.spec))
    except LeaseLostError:
        raise
    except KeyboardInterrupt:  # the second one: Ray takes the first for "end the run"
        run.is_told_twice = True
        raise
    except Exception as error:
        raise NotStoredError(
            f"the run ended, but not all is stored in {run.where}: {error}; what is stored can be "
            f"resumed with {handler.resume_by.replace('{where}', run.where)}"
        ) from error
    finally:
        run.close()
