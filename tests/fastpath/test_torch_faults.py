"""Killed processes, a full disk and too little shared memory: real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.fastpath.forks import ends_well, fork
from tune_sync.fastpath import Slots
from tune_sync.fastpath.torch_saver import Saver

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}

SAVE_AND_DIE = """
import os, sys
from pathlib import Path
import torch
from tune_sync.fastpath import Slots
from tune_sync.fastpath.torch_saver import Saver

target, root, deadly = sys.argv[1:]
saver = Saver(Slots(Path(root)))
for step in range(3):
    saver.save({"step": step, "a": torch.full((300, 1000), step)}, target)

def die(event, args):
    if event == deadly and any(".state.pt." in str(a) for a in args):
        os.kill(os.getpid(), 9)

sys.addaudithook(die)
saver.save({"step": 3, "a": torch.full((300, 1000), 3)}, target)
"""


@pytest.mark.parametrize(
    ("folder", "deadly"),
    [("tmp_path", "open"), ("tmp_path", "os.rename"), ("shared_memory", "os.rename")],
)
def test_a_process_killed_in_a_save_leaves_the_file_before_it(
    folder: str, deadly: str, request: pytest.FixtureRequest, shared_memory: Path
) -> None:
    target = request.getfixturevalue(folder) / "state.pt"
    argv = [sys.executable, "-c", SAVE_AND_DIE, str(target), str(shared_memory), deadly]
    assert subprocess.run(argv, env=ENVIRONMENT, check=False).returncode == -9
    loaded = torch.load(target)
    assert loaded["step"] == 2
    assert loaded["a"].eq(2).all()

    saver = Saver(Slots(shared_memory))
    saver.save({"step": 4}, target)
    assert torch.load(target) == {"step": 4}
    saver.close()
    assert [p.name for p in target.parent.iterdir() if p.is_file()] == ["state.pt"]
    assert list(saver.slots.folder.iterdir()) == []


SMALL_MOUNTS = """
import os, subprocess, sys
from pathlib import Path
import torch
from tune_sync.errors import StoreFullError
from tune_sync.fastpath import Slots
from tune_sync.fastpath.torch_saver import Saver

disk = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", "/dev/shm"], check=True)
MIB = torch.zeros(1 << 18)

def refused(save, *args):
    try:
        save(*args)
    except StoreFullError as error:
        return str(error)
    raise SystemExit("not refused")
"""


def with_small_mounts(tmp_path: Path, body: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    argv = [*own, sys.executable, "-c", SMALL_MOUNTS + body, str(disk)]
    done = subprocess.run(argv, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_full_disk_says_so_and_the_file_before_is_intact(tmp_path: Path) -> None:
    with_small_mounts(
        tmp_path,
        """
for saver in (Saver(), Saver(Slots(memory_limit_bytes=1))):
    target = disk / "state.pt"
    saver.save({"old": MIB}, target)
    large = [MIB.clone() for _ in range(8)]
    for save in (saver.save, lambda *args: saver.save_async(*args).result()):
        text = refused(save, large, target)
        assert str(target) in text and "make room" in text and "(need 8" in text, text
        assert list(torch.load(target)) == ["old"]
        assert os.listdir(disk) == ["state.pt"]
    saver.save({"new": MIB}, target)
    assert list(torch.load(target)) == ["new"]
    saver.close()
""",
    )


def test_too_little_shared_memory_ends_no_process(tmp_path: Path) -> None:
    with_small_mounts(
        tmp_path,
        """
saver = Saver(Slots(memory_limit_bytes=1 << 40))
for count in (1, 8, 20, 25):
    value = [MIB + n for n in range(count)]
    target = Path("/dev/shm/state.pt")
    for _ in range(3):
        saver.save_async(value, target).result()
        assert all(torch.equal(a, b) for a, b in zip(torch.load(target), value, strict=True))
    target.unlink()
text = refused(saver.save, [MIB.clone() for _ in range(80)], Path("/dev/shm/large.pt"))
assert "make room" in text, text
assert [p.name for p in Path("/dev/shm").iterdir() if p.is_file()] == []
""",
    )


def test_forked_processes_save_beside_their_parent(shared_memory: Path) -> None:
    saver = Saver(Slots(shared_memory))

    # So small that PyTorch starts no threads for it: those of OpenMP do not live on in a fork.
    def save(who: int) -> bool:
        for step in range(5):
            saver.save(torch.full((1000,), who), shared_memory / f"{who}-{step}.pt")
        saver.close()
        return True

    saver.save({}, shared_memory / "before.pt")
    children = [fork(lambda who=who: save(who)) for who in (1, 2)]  # type: ignore[misc]
    assert save(0)
    assert [ends_well(child) for child in children] == [True, True]
    files = list(shared_memory.glob("?-?.pt"))
    assert len(files) == 15
    assert all(torch.load(file).eq(int(file.name[0])).all() for file in files)
