"""A new experiment in the directory of another one, or around it, is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import ConfigError
from tune_sync.homes import nested
from tune_sync.homes.bucket.site import BucketSite
from tune_sync.homes.shared.site import SharedSite
from tune_sync.homes.sites import LocalSite
from tune_sync.run import Run

STATE = "experiment_state-2026.json"


def begun(root: Path) -> Path:
    """An experiment."""
    LocalSite(root).prepare()
    (root / STATE).write_text("{}")
    return root


@pytest.mark.parametrize("site", [LocalSite, SharedSite])
@pytest.mark.parametrize("inner", ["exp", "more/exp"])
def test_one_around_another_one_is_refused(
    tmp_path: Path, site: type[LocalSite], inner: str
) -> None:
    there = begun(tmp_path / "group" / inner)
    with pytest.raises(ConfigError, match=f"group is around {there}, .*choose another .* or name"):
        Run.open(site(tmp_path / "group"), "error", 30.0, 1)
    assert not (tmp_path / "group" / ".tune_sync").exists()
    site(tmp_path / "group" / "other").check()
    site(there).check()


def test_one_that_is_there_already_goes_on(tmp_path: Path) -> None:
    begun(tmp_path / "group")
    begun(tmp_path / "group" / "exp")
    LocalSite(tmp_path / "group").check()
    LocalSite(tmp_path / "group" / "exp").check()


def test_not_all_of_a_large_tree_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path / "a/b/c/d/exp")
    (tmp_path / "loop").symlink_to(tmp_path)
    for number in range(20):
        (tmp_path / f"many/{number}").mkdir(parents=True)
    assert len(list(nested._below(tmp_path))) == 24  # a, b, c, and all that is in "many"
    monkeypatch.setattr(nested, "LOOKED_AT_COUNT", 5)
    assert len(list(nested._below(tmp_path))) == 9
    LocalSite(tmp_path).check()


def test_in_a_bucket_one_inside_of_another_one_is_refused() -> None:
    top = f"memory://nested-{os.urandom(4).hex()}/runs"

    def site(name: str) -> BucketSite:
        return BucketSite(parse_bucket_url(f"{top}/{name}"))

    exp = site("exp")
    exp.prepare()
    exp.put(STATE, b"{}")
    exp.check()
    for name in ("exp/more", "exp/group/more"):
        with pytest.raises(ConfigError, match=f"{top}/{name} is inside of {top}/exp, which is"):
            Run.open(site(name), "error", 30.0, 1)
        assert not site(name).look()
    site("exp2").check()
    exp.inside("trial").check()
    older = site("exp/older")  # of an older version, or copied there
    older.put(STATE, b"{}")
    older.check()
