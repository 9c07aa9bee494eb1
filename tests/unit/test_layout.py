"""What a path is, and that none leaves its root."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_sync import layout
from tune_sync.errors import ConfigError, PathRefusedError
from tune_sync.layout import (
    MAX_DEPTH,
    Kind,
    Place,
    check_experiment,
    check_inside,
    check_key,
    check_trial,
    classify,
    is_checkpoint_name,
)

C = "trial_a/checkpoint_000000"


@pytest.mark.parametrize(
    "key",
    [
        "",
        "a",
        "a/b",
        "a b",
        "a%20b",
        "..a",
        "a..",
        "...",
        "~",
        "a\\b",
        "ä/漢字",
        "-",
        "\n",
        "\udcff",
    ],
)
def test_keys_that_stay_inside_are_left_alone(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize(
    "key",
    [
        "..",
        "../x",
        "a/..",
        "a/../b",
        ".",
        "./a",
        "a/./b",
        "/",
        "/a",
        "//a",
        "a//b",
        "a/",
        "a\0b",
        "\ud800",
    ],
)
def test_keys_that_leave_or_could_mean_two_things_are_refused(key: str) -> None:
    with pytest.raises(PathRefusedError, match="refused"):
        check_key(key)
    with pytest.raises(PathRefusedError):
        classify(key)


def test_deep_keys_are_refused_with_the_usual_cause() -> None:
    deepest = "/".join(["d"] * MAX_DEPTH)
    classify(deepest)
    check_key(f"{layout.STAGING_DIR}/{deepest}")  # the deepest one fits into staging
    with pytest.raises(PathRefusedError, match="symbolic link"):
        classify(f"{deepest}/d")


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("", Place(Kind.STATE)),
        ("tuner.pkl", Place(Kind.STATE)),
        ("experiment_state-2026-01-01_00-00-00.json", Place(Kind.STATE)),
        (C, Place(Kind.CHECKPOINT, "trial_a", C)),
        (f"{C}/model.bin", Place(Kind.CHECKPOINT, "trial_a", C, "model.bin")),
        (f"{C}/sub/model.bin", Place(Kind.CHECKPOINT, "trial_a", C, "sub/model.bin")),
        (f"{C}/checkpoint_000001", Place(Kind.CHECKPOINT, "trial_a", C, "checkpoint_000001")),
        ("trial_a/result.json", Place(Kind.TRIAL_FILE, "trial_a")),
        ("trial_a/plots/a.png", Place(Kind.TRIAL_FILE, "trial_a")),
        ("trial_a/checkpoint_tmp_ab12/x", Place(Kind.TRIAL_FILE, "trial_a")),
        ("trial_a/plots/checkpoint_000000/x", Place(Kind.TRIAL_FILE, "trial_a")),
        (".tune_sync", Place(Kind.INTERNAL)),
        (".tune_sync/staging/trial_a/checkpoint_000000", Place(Kind.INTERNAL)),
        (".tune_sync_not_ours/x", Place(Kind.TRIAL_FILE, ".tune_sync_not_ours")),
    ],
)
def test_places_of_a_tune_experiment(key: str, place: Place) -> None:
    assert classify(key) == place


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("checkpoint_2026-01-01_00-00-00.123/a", Kind.CHECKPOINT),
        ("checkpoint_000000", Kind.CHECKPOINT),
        ("checkpoint_manager_snapshot.json", Kind.STATE),
        ("sub/checkpoint_000000/a", Kind.TRIAL_FILE),
    ],
)
def test_places_of_a_train_run(key: str, place: Kind) -> None:
    assert classify(key, checkpoint_depth=0).kind is place


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("checkpoint_000000", True), ("checkpoint_1000000", True),
        ("checkpoint_2026-01-01_00-00-00.123456", True), ("checkpoint_tmp_ab12", False),
        ("checkpoint_", False), ("checkpoint", False), ("my_checkpoint_000000", False),
        ("checkpoint_3.pt", False), ("checkpoint_000000.pt", False), ("checkpoint_00001", False),
        ("checkpoint_000000 copy", False), ("checkpoint_000000\n", False),
    ],
)  # fmt: skip
def test_names_of_checkpoints(name: str, expected: bool) -> None:
    assert is_checkpoint_name(name) is expected


PARTS = st.sampled_from(["..", ".", "", "a", "checkpoint_000000", ".tune_sync", "x y", "\0"])
KEYS = st.lists(PARTS, max_size=6).map("/".join) | st.text(max_size=30)


@given(KEYS, st.integers(0, 2))
def test_no_classified_key_leaves_the_root(key: str, depth: int) -> None:
    try:
        place = classify(key, checkpoint_depth=depth)
    except PathRefusedError:
        return
    joined = posixpath.normpath(posixpath.join("/root", key))
    assert joined == "/root" + (f"/{key}" if key else "")
    if place.kind is Kind.CHECKPOINT:
        assert "/".join(filter(None, [place.checkpoint, place.inner])) == key
        assert is_checkpoint_name(place.checkpoint.rpartition("/")[2])
    else:
        assert place.checkpoint == "" and place.inner == ""


def test_a_file_in_place_of_a_checkpoint_is_named() -> None:
    path = "trial/checkpoint_000000"
    with pytest.raises(PathRefusedError, match=r"000000: a file was reported.*from_directory"):
        check_inside(path, classify(path))


@pytest.mark.parametrize(
    "name", ["", "x" * 300, "ä" * 128, "new\nline", "nul\0", "\udc80", "a/\t", ".tune_sync"]
)
def test_what_no_directory_can_be_called_is_no_name_of_an_experiment(name: str) -> None:
    with pytest.raises(ConfigError, match="an experiment cannot be named") as failure:
        check_experiment(name)
    assert repr(name[:80]) in str(failure.value)


@pytest.mark.parametrize("name", ["x", "x" * 255, "a b", "ä", "group/x", "a\\b"])
def test_any_other_is(name: str) -> None:
    assert check_experiment(name) == name


@pytest.mark.parametrize(
    "name",
    ["checkpoint_000000", "checkpoint_1000000", "checkpoint_2026-01-31_10-20-30.5", ".tune_sync",
     "tuner.pkl", "trainable.pkl", ".validate_storage_marker", "checkpoint_manager_snapshot.json",
     "experiment_state-9999.json", "basic-variant-state-9.json", "search_gen_state-9.json",
     "searcher-state-9.pkl", "callback-states-9.pkl"],
)  # fmt: skip
def test_a_trial_is_not_named_as_what_else_a_run_keeps(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name!r}.*trial_dirname_creator"):
        check_trial(name)


@pytest.mark.parametrize(
    "name",
    ["", "checkpoint", "checkpoint_0", "train_checkpoint_000000", "experiment_state", "tuner"],
)
def test_a_trial_may_have_any_other_name(name: str) -> None:
    assert check_trial(name) == name


def test_a_directory_of_that_name_in_a_report_is_not_told_to_be_this_run() -> None:
    with pytest.raises(PathRefusedError, match="or a directory of that name") as refused:
        classify("t/checkpoint_000000/mine/.tune_sync/x")
    assert "give one of your own another name" in str(refused.value)
