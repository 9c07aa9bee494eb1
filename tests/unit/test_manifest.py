"""Manifests and seals: what is read is checked as data from a stranger."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tune_sync.errors import DamagedError, PathRefusedError
from tune_sync.manifest import (
    FileEntry,
    Manifest,
    Seal,
    manifest_from_json,
    seal_from_json,
    to_json,
)

FIXTURES = Path(__file__).parent.parent / "fixtures"
FILES = tuple(
    FileEntry(path, len(data), xxhash.xxh3_128_hexdigest(data))
    for path, data in (("a b/ä.txt", b"odd"), ("empty", b""), ("weights.bin", b"weights"))
)
DIRECTORIES = ("a b", "empty dir")
MANIFEST = Manifest("trial_a/checkpoint_000003", "run-1", 1767225600.5, FILES, DIRECTORIES)
SEAL = Seal("attempt-1", 2, 1767225600.5, FILES, DIRECTORIES)

BAD_PATHS = ("../x", "a/../../x", "/etc/passwd", "a//b", ".", "", "a/", "nul\0", "d/" * 40 + "f")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3)
    ),
    max_leaves=8,
)


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(to_json(MANIFEST)), **fields}).encode()


def file(path: str, size_bytes: Any = 1, digest: Any = "0" * 32) -> dict[str, Any]:
    return {"path": path, "size_bytes": size_bytes, "digest": digest}


def test_records_of_format_version_1_are_read() -> None:
    assert manifest_from_json((FIXTURES / "manifest_v1.json").read_bytes(), "m") == MANIFEST
    assert seal_from_json((FIXTURES / "seal_v1.json").read_bytes(), "s") == SEAL


def test_records_are_written_as_format_version_1() -> None:
    assert to_json(MANIFEST) == (FIXTURES / "manifest_v1.json").read_bytes().strip()
    assert to_json(SEAL) == (FIXTURES / "seal_v1.json").read_bytes().strip()


def test_metrics_are_optional_and_come_back() -> None:
    with_metrics = replace(MANIFEST, metrics={"score": 0.5, "inner": {"a": [1, None]}})
    assert manifest_from_json(to_json(with_metrics), "m") == with_metrics
    assert manifest_from_json(to_json(MANIFEST), "m").metrics is None
    assert b"metrics" not in to_json(MANIFEST)
    with pytest.raises(DamagedError, match=r"place.*metrics"):
        manifest_from_json(changed(metrics=[1]), "place")


@pytest.mark.parametrize("path", BAD_PATHS)
def test_paths_that_leave_the_checkpoint_are_refused(path: str) -> None:
    for bad in ({"files": [file(path)]}, {"directories": [path]}):
        with pytest.raises(PathRefusedError, match="place"):
            manifest_from_json(changed(**bad), "place")
    if path:
        with pytest.raises(PathRefusedError):
            manifest_from_json(changed(checkpoint=path), "place")


def test_a_name_that_occurs_twice_is_damage() -> None:
    for bad in (
        {"files": [file("a"), file("a")]},
        {"directories": ["a", "a"]},
        {"files": [file("a")], "directories": ["a"]},
    ):
        with pytest.raises(DamagedError, match=r"place.*twice"):
            manifest_from_json(changed(**bad), "place")


@pytest.mark.parametrize(
    ("files", "directories", "below"),
    [(["a", "a/b"], [], "a/b"), (["a/b/c", "a"], ["a/b"], "a/b/c"), (["a"], ["a/b"], "a/b")],
)
def test_a_file_with_others_below_it_is_damage_and_both_are_named(
    files: list[str], directories: list[str], below: str
) -> None:
    bad = changed(files=[file(path) for path in files], directories=directories)
    with pytest.raises(DamagedError, match=rf"place.*'a' is a file, and '{below}' would be below"):
        manifest_from_json(bad, "place")
    manifest_from_json(changed(files=[file("a"), file("a.b"), file("ab/c")]), "place")


def test_another_format_version_is_refused_and_both_are_named() -> None:
    with pytest.raises(DamagedError, match=r"place has format version 99.* reads 1"):
        manifest_from_json(changed(format_version=99), "place")
    with pytest.raises(DamagedError, match="None"):
        manifest_from_json(b"{}", "place")


def test_a_pickle_is_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, tuple[Path]]:
            return Path.touch, (tmp_path / "ran",)

    bomb = pickle.dumps(Bomb())
    hidden = {"files": [{**file("a"), "py/reduce": bomb.hex()}], "__class__": bomb.hex()}
    with pytest.raises(DamagedError, match="not JSON"):
        manifest_from_json(bomb, "place")
    manifest_from_json(changed(**hidden), "place")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"files": None}, {"files": {}, "directories": 3}, {"files": ["a"]}, {"files": [{}]},
        {"files": [file("a", "x")]}, {"files": [file("a", None)]}, {"files": [file("a", [])]},
        {"files": [file("a", float("inf"))]}, {"files": [file("a", float("nan"))]},
        {"files": [{**file("a"), "path": 3}]}, {"directories": [["a"]]}, {"directories": [{}]},
        {"published_s": "soon"}, {"published_s": None}, {"checkpoint": 7}, {"checkpoint": None},
    ],
)  # fmt: skip
def test_wrong_fields_are_damage(fields: dict[str, Any]) -> None:
    with pytest.raises((DamagedError, PathRefusedError), match="place"):
        manifest_from_json(changed(**fields), "place")


@pytest.mark.parametrize("field", ["files", "directories", "checkpoint", "owner", "published_s"])
def test_a_missing_field_is_damage_and_named(field: str) -> None:
    body = json.loads(to_json(MANIFEST))
    del body[field]
    with pytest.raises(DamagedError, match=field):
        manifest_from_json(json.dumps(body).encode(), "place")


def test_deep_nesting_is_damage() -> None:
    with pytest.raises(DamagedError):
        manifest_from_json(b"[" * 200_000, "place")


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_garbage_raises_nothing_but_damage(data: bytes) -> None:
    with pytest.raises(DamagedError):
        manifest_from_json(data, "place")
    with pytest.raises(DamagedError):
        seal_from_json(data, "place")


@given(st.dictionaries(st.sampled_from(sorted(json.loads(to_json(MANIFEST)))), JSON))
def test_any_json_is_read_or_refused_by_name(fields: dict[str, Any]) -> None:
    try:
        manifest_from_json(changed(**fields), "place")
    except (DamagedError, PathRefusedError) as error:
        assert "place" in str(error)


@given(st.integers(0, len(to_json(MANIFEST)) - 1))
def test_a_truncated_manifest_is_damage(end: int) -> None:
    with pytest.raises(DamagedError):
        manifest_from_json(to_json(MANIFEST)[:end], "place")
