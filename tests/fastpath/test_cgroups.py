"""Memory is what a container or a job has left of it, not what the machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tune_sync.fastpath.cgroups import _groups, left_bytes

GIB = 1 << 30
NONE = str((1 << 63) - 4096)


class Kernel:
    """What the kernel tells of a process, and of groups."""

    def __init__(self, root: Path) -> None:
        self.process, self.top = root / "proc", root / "the groups"
        self.process.mkdir()
        self.mounts: list[str] = ["23 1 0:21 / /proc rw - proc proc rw"]
        self.groups: list[str] = []

    def mount(self, version: int, below: str = "", root: str = "/") -> Path:
        at = self.top / below
        kind, options = ("cgroup2", "rw") if version == 2 else ("cgroup", "rw,memory")
        where = str(at).replace(" ", "\\040")
        self.mounts.append(f"35 31 0:32 {root} {where} rw shared:9 - {kind} {kind} {options}")
        return at

    def left_bytes(self) -> int:
        (self.process / "mountinfo").write_text("".join(f"{line}\n" for line in self.mounts))
        (self.process / "cgroup").write_text("".join(f"{line}\n" for line in self.groups))
        _groups.cache_clear()
        return left_bytes(self.process)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def second(group: Path, limit: str, used_bytes: int, *, read: int = 0, shared: int = 0) -> None:
    """A group of the second version; `read` of it are files that make way."""
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{used_bytes}\n")
    told = {"file": read + shared, "shmem": shared, "inactive_file": read // 4}
    told |= {"active_file": read - read // 4, "inactive_anon": shared}
    (group / "memory.stat").write_text("".join(f"{k} {v}\n" for k, v in told.items()))


def first(group: Path, limit: str, used_bytes: int, read: int = 0) -> None:
    """A group of the first version."""
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (group / "memory.usage_in_bytes").write_text(f"{used_bytes}\n")
    told = {"inactive_file": 1, "total_inactive_file": read, "total_active_file": 0}
    (group / "memory.stat").write_text("".join(f"{k} {v}\n" for k, v in told.items()))


def test_a_container_has_what_is_left_of_its_limit(kernel: Kernel) -> None:
    second(kernel.mount(2), str(16 * GIB), 5 * GIB)
    kernel.groups = ["0::/"]
    assert kernel.left_bytes() == 11 * GIB


def test_files_that_were_read_make_way_and_checkpoints_in_memory_do_not(kernel: Kernel) -> None:
    second(kernel.mount(2), str(16 * GIB), 16 * GIB, read=9 * GIB, shared=4 * GIB)
    kernel.groups = ["0::/"]
    assert kernel.left_bytes() == 9 * GIB


def test_a_job_is_bound_by_each_group_that_it_is_in(kernel: Kernel) -> None:
    top = kernel.mount(2)
    second(top / "slurm", "max", 99 * GIB)
    second(top / "slurm/job_7", str(32 * GIB), 4 * GIB)
    second(top / "slurm/job_7/step_0", "max", 4 * GIB)
    second(top / "slurm/job_8", str(GIB), GIB)
    kernel.groups = ["0::/slurm/job_7/step_0"]
    assert kernel.left_bytes() == 28 * GIB


def test_of_the_first_version_too(kernel: Kernel) -> None:
    kernel.mount(2, "unified")
    top = kernel.mount(1, "memory")
    first(top, NONE, 99 * GIB)
    first(top / "condor/slot1", str(8 * GIB), 6 * GIB, read=GIB)
    kernel.groups = ["4:cpu,memory:/condor/slot1", "1:cpu:/other", "0::/"]
    assert kernel.left_bytes() == 3 * GIB


def test_a_container_that_sees_only_its_own_groups(kernel: Kernel) -> None:
    top = kernel.mount(1, "memory", root="/docker/abc")
    first(top, str(8 * GIB), 6 * GIB)
    first(top / "inside", str(4 * GIB), 3 * GIB)
    for path, left in (("/docker/abc", 2), ("/docker/abc/inside", 1), ("/docker/other", 2)):
        kernel.groups = [f"4:memory:{path}"]
        assert kernel.left_bytes() == left * GIB
    kernel.groups = ["4:memory:/../elsewhere"]
    assert kernel.left_bytes() == 2 * GIB


def test_without_a_limit_nothing_is_known(kernel: Kernel, tmp_path: Path) -> None:
    assert left_bytes(tmp_path / "nothing") == -1
    kernel.groups = ["4:memory:/", "0::/"]
    assert kernel.left_bytes() == -1
    first(kernel.mount(1, "memory"), NONE, GIB)
    second(kernel.mount(2, "unified"), "max", GIB)
    (kernel.top / "unified/memory.stat").unlink()
    assert kernel.left_bytes() == -1
