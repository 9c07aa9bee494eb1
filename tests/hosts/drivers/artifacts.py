"""Trials on a worker that write into their trial directory; tells what is at home afterwards.

Takes one JSON argument, a list of runs:
    [{"name": …, "trial": name of a function below, "sync": fields of SyncConfig}, …]
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray import tune

import tune_sync
from tests.bed.tree import tree_digest
from tests.hosts.drivers.sent import note_sent

PAUSE_S, PERIOD_REPORTS = 0.5, 5
# After so many reports, the first after a sync is due: so many have to be at home.
DUE = {7: 4, 12: 9, 17: 14}
LOOK_EVERY_S, LOOKS = 0.05, 200

SENT = "sent.txt"  # in HOME of the trial's host
RAYS_OWN = ("result.json", "progress.csv", "params.json", "params.pkl", "error.txt", "error.pkl")


def plots(config: dict[str, Any]) -> None:
    """Ten plots, one a report, then a last file; and files in the making beside them."""
    note_sent(Path.home() / SENT)
    directory = Path.cwd()
    (directory / "out").mkdir()
    for number in range(10):
        (directory / f"out/plot_{number}.png").write_bytes(os.urandom(3000 + number))
        (directory / "steps.log").open("a").write(f"{number}\n")
        tune.report({"number": number, **where(directory)})
    temporary = directory / "checkpoint_tmp1a2b"
    temporary.mkdir()
    (temporary / "half").write_bytes(bytes(5000))
    for name in (".tmp_model", "tmp1234.tmp", "save_to_object_x", "model.lock", "out/half.tmp"):
        (directory / name).write_bytes(bytes(5000))
    (directory / "final.json").write_text('{"done": true}')
    note_digests(directory)


def with_checkpoints(config: dict[str, Any]) -> None:
    """Checkpoints and artifacts with names that patterns may match."""
    directory = Path.cwd()
    for name in ("keep/a.png", "keep/b.txt", "cache/c.png", "top.png", "top.txt"):
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(100))
    for step in range(2):
        with tempfile.TemporaryDirectory() as made:
            for name in ("model.pt", "model.txt", "cache/c.bin", "optimizer.cache"):
                path = Path(made, name)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(os.urandom(100))
            kind = tune.Checkpoint if step else tune_sync.Checkpoint
            tune.report({"step": step, **where(directory)}, checkpoint=kind.from_directory(made))
    note_digests(directory)


def no_checkpoints(config: dict[str, Any]) -> None:
    """One artifact a report, a report each half second, five in a period.

    Now and then it waits for those of the periods before: as it does not report, no sync begins.
    Only on a machine that is too busy for that it reports once more.
    """
    directory, home, more = Path.cwd(), ray.get_actor("home"), 0
    for number in range(20):
        (directory / f"artifact_{number:02}.bin").write_bytes(os.urandom(1000))
        tune.report({"number": number, **where(directory)})
        time.sleep(PAUSE_S)
        due, looks = DUE.get(number + 1, 0), itertools.count(1)
        while ray.get(home.count.remote(directory.name)) < due:
            time.sleep(LOOK_EVERY_S)
            if next(looks) % LOOKS == 0:
                more += 1
                tune.report({"number": number, **where(directory)})
    tune.report({"more": more, **where(directory)})
    note_digests(directory)


class Relative(tune.Trainable):  # type: ignore[misc]
    """A file relative to the working directory, and one in the trial directory."""

    def step(self) -> dict[str, Any]:
        os.makedirs("inside", exist_ok=True)
        Path("inside/rel.txt").write_text("relative")
        Path(self.logdir, "abs.txt").write_text("absolute")
        note_digests(Path(self.logdir))
        return {"cwd": os.getcwd(), "done": True, **where(Path(self.logdir))}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "state").touch()


def where(directory: Path) -> dict[str, str]:
    return {"host": os.uname().nodename, "made_in": str(directory)}


def note_digests(directory: Path) -> None:
    """Leave the digests of all that the trial made where the driver finds them."""
    found = {key: entry[2] for key, entry in tree_digest(directory).items() if entry[0] == "file"}
    (Path.home() / "made.json").write_text(json.dumps(found))


@ray.remote(num_cpus=0, resources={"w1": 0.01})
def read_notes() -> tuple[dict[str, str], list[str]]:
    """What the trial made, by name, and the sizes of what was sent from its host."""
    sent = Path.home() / SENT
    lines = sent.read_text().split() if sent.exists() else []
    sent.unlink(missing_ok=True)
    return json.loads((Path.home() / "made.json").read_text()), lines


@ray.remote(num_cpus=0, resources={"head": 0.01})
class AtHome:
    """Says how many artifacts of a trial are at home."""

    def count(self, trial: str) -> int:
        return len(list(Path.home().glob(f"ray_results/*/{trial}/artifact_*")))


class Said(logging.Handler):
    """Keeps what the driver's process says."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def run(asked: dict[str, Any]) -> dict[str, Any]:
    said = Said()
    logging.getLogger("ray.tune_sync").addHandler(said)
    tuner = tune.Tuner(
        tune.with_resources(globals()[asked["trial"]], {"cpu": 1, "w1": 1}),
        run_config=tune_sync.RunConfig(
            name=asked["name"], sync_config=tune_sync.SyncConfig(**asked["sync"])
        ),
    )
    result = tuner.fit()[0]
    logging.getLogger("ray.tune_sync").removeHandler(said)
    if result.error:
        raise result.error
    made, sent = ray.get(read_notes.remote())
    tree = tree_digest(result.path)
    return {
        "host": result.metrics["host"],
        "cwd": result.metrics.get("cwd"),
        "made_in": result.metrics["made_in"],
        "made": made,
        "at_home": {
            key: entry[2]
            for key, entry in tree.items()
            if entry[0] == "file" and key not in RAYS_OWN and not key.startswith("events.out")
        },
        "sent": sent,
        "more": result.metrics.get("more"),
        "said": said.lines,
    }


def main() -> None:
    ray.init()
    home = AtHome.options(name="home").remote()  # type: ignore[attr-defined]
    ray.get(home.count.remote("none"))
    found = {asked["name"]: run(asked) for asked in json.loads(sys.argv[1])}
    print("RESULT", json.dumps({"home": os.uname().nodename, "runs": found}))


if __name__ == "__main__":
    main()
