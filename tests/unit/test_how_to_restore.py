"""What messages tell to call for a restore is what works there."""

from __future__ import annotations

from typing import Any

import pytest

from tune_sync import RunConfig, SyncConfig


@pytest.mark.parametrize(
    ("url", "fields", "call"),
    [
        ("s3://b/x", {}, 'tune.Tuner.restore("{where}", trainable=...)'),
        (
            "s3://b/x",
            {"storage_options": {"key": "k"}},
            'tune.Tuner.restore(trainable=..., **restore_kwargs("{where}", storage_options))',
        ),
        (
            "abfs://b/x",
            {},
            'tune.Tuner.restore(trainable=..., **restore_kwargs("{where}"))',
        ),
    ],
)
def test_the_call_that_is_told_for_a_restore_is_one_that_works(
    url: str, fields: dict[str, Any], call: str
) -> None:
    handler = RunConfig(
        name="exp", sync_config=SyncConfig(upload_dir=url, **fields)
    ).storage_filesystem.handler
    assert handler.resume_by == call
    assert f"resume it with {call}, " in handler.ways_out
    assert handler.site().where == handler.spec.where == f"{url}/exp"


def test_it_knows_of_options_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNE_SYNC_STORAGE_OPTIONS", '{"key": "k"}')
    config = SyncConfig(upload_dir="s3://b/x")
    assert (
        'restore_kwargs("{where}"))'
        in RunConfig(name="exp", sync_config=config).storage_filesystem.handler.resume_by
    )
