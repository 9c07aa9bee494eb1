"""The `storage_options` of a run are where its workers ask for them, and nowhere else."""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path

import psutil
import ray

from tune_sync.agents.home_agent import NAMESPACE
from tune_sync.agents.options_agent import OF_RUN, ask_options, start_options
from tune_sync.agents.options_keeper import keep_options

TIMEOUT_S = 150.0


def gcs_holds(secret: bytes) -> bool:
    """Whether the process of Ray that keeps what actors are made with has it in its memory.

    With Redis, all of that is on a disk.
    """
    (gcs,) = filter(is_gcs, psutil.Process(os.getpid()).children(recursive=True))
    maps = [line.split() for line in Path(f"/proc/{gcs.pid}/maps").read_text().splitlines()]
    with open(f"/proc/{gcs.pid}/mem", "rb", buffering=0) as memory:
        for where, rights, *_ in (found for found in maps if found[-1] != "[vvar]"):
            start, end = (int(at, 16) for at in where.split("-"))
            if rights.startswith("rw"):
                memory.seek(start)
                with suppress(OSError):  # it was given back meanwhile
                    if secret in memory.read(end - start):
                        return True
    return False


def is_gcs(process: psutil.Process) -> bool:
    try:
        return bool(process.name() == "gcs_server")
    except psutil.NoSuchProcess:  # it has just ended
        return False


class MadeWith:
    """An actor that is made with a secret, and told none."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def ping(self) -> None:
        pass


def test_ray_does_not_keep_what_options_and_keeper_are_told(local_ray: None) -> None:
    known, secret = (uuid.uuid4().hex for _ in range(2))
    actor = ray.remote(num_cpus=0)(MadeWith).remote(known)
    ray.get(actor.ping.remote(), timeout=TIMEOUT_S)
    assert gcs_holds(known.encode()), "else this test sees nothing"
    ray.kill(actor)
    name, keeper = start_options({"secret": secret}), f"options-of-{uuid.uuid4().hex}"
    keep_options(keeper, "nobody", {"secret": secret})
    for asked in (name, keeper):
        assert ask_options(asked, TIMEOUT_S) == {"secret": secret}
    assert not gcs_holds(secret.encode())


def test_an_agent_that_was_started_again_is_told_again(local_ray: None) -> None:
    names = {secret: start_options({"secret": secret}) for secret in "st"}
    assert ask_options(names["s"], TIMEOUT_S) == {"secret": "s"}
    agent = names["s"].partition(OF_RUN)[0]
    ray.kill(ray.get_actor(agent, namespace=NAMESPACE), no_restart=False)
    time.sleep(0.5)  # Ray ends it a moment later
    for secret, name in names.items():
        assert ask_options(name, TIMEOUT_S) == {"secret": secret}


def test_one_process_knows_the_options_of_all_runs_of_a_driver(local_ray: None) -> None:
    names = [start_options({"run": number}) for number in range(3)]
    assert [ask_options(n, TIMEOUT_S) for n in names] == [{"run": number} for number in range(3)]
    assert len({name.partition(OF_RUN)[0] for name in names}) == 1


def test_one_that_is_not_there_is_not_waited_for(local_ray: None) -> None:
    start_s = time.monotonic()
    assert ask_options(f"options-{uuid.uuid4().hex}", TIMEOUT_S) is None
    assert time.monotonic() - start_s < 30.0
