"""What is staged for a directory is found by each of its names, or else named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.test_left_behind import NODE, OWNER, NoAgent, Reached
from tests.unit.test_node_sender import FIRST, Shaky, report
from tune_sync.agents.left_on_nodes import Wanted, send_here
from tune_sync.agents.names import agent_name
from tune_sync.behind.left_behind import Claim
from tune_sync.behind.staging_home import StagingHome
from tune_sync.homes.home import LocalHome
from tune_sync.spec import Options, Spec

WANTED = Wanted(frozenset(), {"t": ""})


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    """By a link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    options = Options(staging_dir=str(tmp_path / "staging"), memory_dir=str(tmp_path), shared=True)
    return Spec("key", str(tmp_path / "link"), "exp", "1" * 32, None, options, begun_by="a")


@pytest.fixture
def home(tmp_path: Path) -> Shaky:
    return Shaky(tmp_path / "home")


def leave(spec: Spec, where: str, begun_by: str) -> Path:
    root = Path(spec.options.staging_dir, OWNER, NODE)
    report(StagingHome(LocalHome(root.parents[2] / "away"), root, NoAgent(), NODE), FIRST, b"x")
    Claim(root, where, begun_by).give_up()
    return root


@pytest.mark.parametrize(
    ("shared", "begun_by", "is_sent"), [(True, "", True), (False, "a", True), (False, "", False)]
)
def test_what_is_staged_for_the_directory_behind_a_link_is_sent(
    spec: Spec, tmp_path: Path, home: Shaky, caplog: pytest.LogCaptureFixture,
    begun_by: str, *, shared: bool, is_sent: bool,
) -> None:  # fmt: skip
    spec = replace(spec, options=replace(spec.options, shared=shared))
    root = leave(spec, f"{tmp_path}/real/exp", begun_by)
    assert send_here(spec.to_plain(), Reached(home), WANTED, []) == ([FIRST] * is_sent, "")
    assert root.exists() != is_sent
    assert (f"staged for {tmp_path}/real/exp, not for {spec.where}" in caplog.text) != is_sent


def test_that_of_a_live_agent_which_goes_by_another_name_is_named(
    spec: Spec, tmp_path: Path, home: Shaky
) -> None:
    real = f"{tmp_path}/real/exp"
    root = leave(spec, real, "a")
    busy = agent_name(replace(spec, root=f"{tmp_path}/real", owner=OWNER), NODE)
    assert send_here(spec.to_plain(), Reached(home), WANTED, [busy]) == (
        [], f"{root}: an agent that knows the experiment as {real} has it",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("where", "begun_by", "is_named"),
    [
        ("moved/exp", "a", True),
        ("moved/exp", "", True),
        ("moved/exp", "b", False),
        ("x", "a", True),  # it was renamed
        ("x", "", False),
    ],
)
def test_what_may_be_of_the_same_experiment_is_named_and_stays(
    spec: Spec, tmp_path: Path, home: Shaky, caplog: pytest.LogCaptureFixture,
    where: str, begun_by: str, *, is_named: bool,
) -> None:  # fmt: skip
    root = leave(spec, f"{tmp_path}/{where}", begun_by)
    assert send_here(spec.to_plain(), Reached(home), WANTED, []) == ([], "")
    assert root.exists()
    assert (f"{root} keeps what was reported in 't'" in caplog.text) == is_named
