"""What every `tune_sync.syncers.base.Syncer` has to do, as tests that a test class inherits.

```python
class TestMySyncer(SyncerContract):
    def make_syncer(self, tmp_path):
        return MySyncer()

    def remote_dir(self, tmp_path):
        return "s3://bucket/some/directory"
```
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from tune_sync.syncers.base import Syncer

# So many files that a sync of them is not over at once, and how long a late one is waited for.
MANY_COUNT, LATE_S = 100, 0.3

Tree = dict[str, bytes | None]  # relative path -> bytes, or None for a directory


class SyncerContract:
    """Inherit, and say how to make a syncer and where it shall put things."""

    # A store that has no directories of its own cannot keep one that is empty.
    keeps_empty_directories = True

    def make_syncer(self, tmp_path: Path) -> Syncer:
        """A syncer that works. May be called several times for one `tmp_path`."""
        raise NotImplementedError

    def remote_dir(self, tmp_path: Path) -> str:
        """A remote directory that does not exist yet; always the same for one `tmp_path`."""
        raise NotImplementedError

    def look(self, tmp_path: Path, remote_dir: str) -> Tree:
        """What is at a remote directory; override where it can be seen without the syncer."""
        syncer, copy = self.make_syncer(tmp_path), tmp_path / f"look-{os.urandom(4).hex()}"
        syncer.sync_down(remote_dir, str(copy))
        syncer.wait()
        syncer.close()
        return tree_of(copy)

    def local_dir(self, tmp_path: Path) -> Path:
        """A directory with all that a directory may hold."""
        local = tmp_path / "local"
        (local / "sub/deep").mkdir(parents=True)
        (local / "sub/deep/large").write_bytes(os.urandom(1 << 20))
        (local / "a b%20+#?'ä漢").write_bytes(b"odd name")
        (local / "a b").write_bytes(b"one")
        (local / "a%20b").write_bytes(b"another")
        (local / "sub/zero").touch()
        (local / ".hidden").write_bytes(b"hidden")
        if self.keeps_empty_directories:
            (local / "empty").mkdir()
        return local

    def test_a_directory_goes_up_and_comes_down_the_same(self, tmp_path: Path) -> None:
        syncer, local, remote = self._parts(tmp_path)
        assert syncer.sync_up(str(local), remote)
        syncer.wait()
        assert self.look(tmp_path, remote) == tree_of(local)
        assert syncer.sync_down(remote, str(tmp_path / "down"))
        syncer.wait()
        assert tree_of(tmp_path / "down") == tree_of(local)
        syncer.close()

    def test_a_second_sync_sends_what_changed(self, tmp_path: Path) -> None:
        syncer, local, remote = self._parts(tmp_path)
        for data in (b"first", b"2", b"the third and longest"):
            (local / "changing").write_bytes(data)
            (local / f"new {len(data)}").write_bytes(data)
            syncer.sync_up(str(local), remote)
            syncer.wait()
            assert self.look(tmp_path, remote) == tree_of(local)
        syncer.close()

    def test_what_is_excluded_stays(self, tmp_path: Path) -> None:
        syncer, local, remote = self._parts(tmp_path)
        syncer.sync_up(str(local), remote, exclude=["sub/*", "*%20*"])
        syncer.wait()
        found = self.look(tmp_path, remote)
        assert "a b" in found and not {"a%20b", "sub/zero", "sub/deep/large"} & set(found)
        syncer.close()

    def test_commands_follow_each_other_and_none_is_skipped(self, tmp_path: Path) -> None:
        syncer, local, remote = self._parts(tmp_path)
        for number in range(3):
            assert syncer.sync_up(str(local), f"{remote}/{number}")
        syncer.wait()
        for number in range(3):
            assert self.look(tmp_path, f"{remote}/{number}") == tree_of(local)
        syncer.close()

    def test_delete_removes_all_and_only_that(self, tmp_path: Path) -> None:
        syncer, local, remote = self._parts(tmp_path)
        for name in ("gone", "kept", "gone too"):
            syncer.sync_up(str(local), f"{remote}/{name}")
        assert syncer.delete(f"{remote}/gone")
        syncer.wait()
        found = self.look(tmp_path, remote)
        assert {name.split("/")[0] for name in found} == {"kept", "gone too"}
        syncer.sync_up(str(local), f"{remote}/gone")
        syncer.wait()
        assert self.look(tmp_path, f"{remote}/gone") == tree_of(local)
        syncer.close()

    def test_a_failure_is_raised_and_the_next_command_works(self, tmp_path: Path) -> None:
        syncer, local, remote = self._parts(tmp_path)

        def fetch_nothing() -> None:
            syncer.sync_down(f"{remote}/absent", str(tmp_path / "down"))
            syncer.wait()

        _raises(Exception, fetch_nothing)
        syncer.wait()
        assert syncer.sync_up(str(local), remote)
        syncer.wait()
        assert self.look(tmp_path, remote) == tree_of(local)
        syncer.close()

    def test_a_missing_local_directory_is_a_failure(self, tmp_path: Path) -> None:
        syncer, local, remote = self._parts(tmp_path)

        def send_nothing() -> None:
            syncer.sync_up(str(local / "absent"), remote)
            syncer.wait()

        _raises(Exception, send_nothing)
        syncer.close()

    def test_a_failure_lasts_through_its_retries(self, tmp_path: Path) -> None:
        syncer, _, remote = self._parts(tmp_path)
        syncer.sync_down(f"{remote}/absent", str(tmp_path / "down"))
        _raises(RuntimeError, lambda: syncer.wait_or_retry(max_retries=1, backoff_s=0))
        syncer.close()

    def test_syncs_if_needed_keep_their_period(self, tmp_path: Path) -> None:
        syncer, local, remote = self._parts(tmp_path)
        syncer.sync_period = 1_000.0
        assert syncer.sync_up_if_needed(str(local), remote)
        syncer.wait()
        assert not syncer.sync_up_if_needed(str(local), f"{remote}/not sent")
        assert syncer.sync_down_if_needed(remote, str(tmp_path / "down"))
        syncer.wait()
        assert not syncer.sync_down_if_needed(remote, str(tmp_path / "not fetched"))
        assert not (tmp_path / "not fetched").exists()
        syncer.reset()
        assert syncer.sync_up_if_needed(str(local), remote)
        syncer.wait()
        assert self.look(tmp_path, remote) == tree_of(local)
        syncer.close()

    def test_what_took_too_long_writes_nothing_over_what_came_later(self, tmp_path: Path) -> None:
        syncer, remote = self.make_syncer(tmp_path), self.remote_dir(tmp_path)
        local, limit_s = tmp_path / "many", syncer.sync_timeout
        local.mkdir()
        for data in (b"old", b"later"):
            for number in range(MANY_COUNT):
                (local / str(number)).write_bytes(data)
            syncer.sync_timeout = 0.0 if data == b"old" else limit_s
            try:
                syncer.sync_up(str(local), remote)
                syncer.wait()
            except Exception:
                if data != b"old":
                    raise
        for pause_s in (0.0, LATE_S):
            time.sleep(pause_s)
            assert self.look(tmp_path, remote) == tree_of(local)
        syncer.close()

    def test_wait_and_close_may_be_called_at_any_time(self, tmp_path: Path) -> None:
        syncer, local, remote = self._parts(tmp_path)
        syncer.wait()
        syncer.sync_up(str(local), remote)
        for _ in range(2):
            syncer.wait()
        for _ in range(2):
            syncer.close()

    def _parts(self, tmp_path: Path) -> tuple[Syncer, Path, str]:
        return self.make_syncer(tmp_path), self.local_dir(tmp_path), self.remote_dir(tmp_path)


def tree_of(top: Path) -> Tree:
    """What is in a directory of this machine."""
    return {
        path.relative_to(top).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in top.rglob("*")
    }


def _raises(kind: type[Exception], call: Callable[[], None]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")
