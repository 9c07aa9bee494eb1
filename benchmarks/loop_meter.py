"""How long the control loop of a Tune run waits for tune_sync.

The methods of our callback and filesystem are wrapped, in this process: what they do on the loop's
thread counts, step by step. Nothing of Ray is touched.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ray import tune

from tune_sync.filesystem import SyncHandler
from tune_sync.ray_adapter import SyncCallback

HOOKS = (
    "on_step_begin", "on_step_end", "on_trial_start", "on_trial_result", "on_trial_save",
    "on_trial_recover", "on_trial_error", "on_trial_complete", "on_checkpoint", "get_state",
)  # fmt: skip
VERBS = (
    "get_file_info", "get_file_info_selector", "create_dir", "open_output_stream",
    "open_input_stream", "open_input_file", "delete_file", "delete_dir", "copy_file",
)  # fmt: skip

# Come in every step. One that does nothing would only make the other steps look rare.
EVERY_STEP, IDLE_S = ("on_step_begin", "on_step_end"), 1e-4

WRAPPED = {SyncCallback: HOOKS, SyncHandler: VERBS}


class LoopMeter(tune.Callback):  # type: ignore[misc]
    """Sums up what each step of the loop has waited for. Give it to the run's `callbacks`."""

    def __init__(self) -> None:
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin()

    def _begin(self) -> None:
        self._steps_s: list[float] = []
        self._now_s = 0.0
        self._depth = self._calls_count = 0
        self.longest_s: dict[str, float] = {}  # of each method
        self._thread: threading.Thread | None = None

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Wrap what runs of this process call on this thread, which is their loop's."""
        self._thread = threading.current_thread()
        plain = [(c, n, getattr(c, n)) for c, names in WRAPPED.items() for n in names]
        for target, name, call in plain:
            setattr(target, name, self._timed(call, name))
        try:
            yield
        finally:
            for target, name, call in plain:
                setattr(target, name, call)
        if not self._steps_s:
            raise AssertionError("nothing was measured: Ray calls other methods than these")

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """A step has ended; comes before the other callback's."""
        if self._calls_count or self._now_s > IDLE_S:
            self._steps_s.append(self._now_s)
        self._now_s, self._calls_count = 0.0, 0

    def steps_s(self) -> list[float]:
        """Seconds of each step in which tune_sync was called for more than to hear of the step."""
        return self._steps_s

    def _timed(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not self._thread or self._depth:
                return call(*args, **kwargs)
            self._depth += 1
            start_s = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                took_s = time.perf_counter() - start_s
                self._now_s += took_s
                self.longest_s[name] = max(took_s, self.longest_s.get(name, 0.0))
                self._calls_count += name not in EVERY_STEP
                self._depth -= 1

        return timed
