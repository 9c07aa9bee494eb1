# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, ANN204
"""A syncer as people wrote them for Ray 2.0 to 2.6. Only its import was changed."""

import shutil
import threading

from tune_sync import Syncer


class OldSyncer(Syncer):
    """In the background, with a retry, and skipping what comes while it is busy."""

    def __init__(self, sync_period: float = 300.0):
        super().__init__(sync_period=sync_period)
        self._process = None
        self._current_cmd = None

    def sync_up(self, local_dir, remote_dir, exclude=None):
        return self._spawn(shutil.copytree, local_dir, remote_dir, dirs_exist_ok=True)

    def sync_down(self, remote_dir, local_dir, exclude=None):
        return self._spawn(shutil.copytree, remote_dir, local_dir, dirs_exist_ok=True)

    def delete(self, remote_dir):
        return self._spawn(shutil.rmtree, remote_dir)

    def _spawn(self, function, *args, **kwargs):
        if self._process and self._process.is_alive():
            return False  # Ray's own skipped what came while a sync was running
        self._current_cmd = (function, args, kwargs)
        self.retry()
        return True

    def retry(self):
        function, args, kwargs = self._current_cmd
        self.error = None

        def run():
            try:
                function(*args, **kwargs)
            except Exception as error:
                self.error = error

        self._process = threading.Thread(target=run)
        self._process.start()

    def wait(self):
        if self._process:
            self._process.join()
            self._process = None
            if self.error:
                raise self.error

    def __getstate__(self):
        return {**self.__dict__, "_process": None}
