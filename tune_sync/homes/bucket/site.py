"""An experiment directory that is a prefix of a bucket."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from tune_sync import layout
from tune_sync.buckets.bucket import Bucket
from tune_sync.buckets.environment import environment_options
from tune_sync.buckets.opening import CHECK_TRIES_COUNT, check_bucket, open_bucket
from tune_sync.buckets.retry import Retry
from tune_sync.buckets.url import BucketUrl
from tune_sync.errors import ConfigError
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.bucket.lease import BucketLease, live_holder
from tune_sync.homes.bucket.staging import group
from tune_sync.homes.lease import Holder
from tune_sync.homes.nested import LEVELS_COUNT, OR_REMOVE_IT
from tune_sync.homes.sites import check_format, format_json


class BucketSite:
    """See `sites.Site`.

    Args:
        url: The experiment directory.
        options: `SyncConfig.storage_options`.
        leased: Rooted at the directory with the lease, if that is another one; see `LocalHome`.
    """

    def __init__(
        self, url: BucketUrl, options: Mapping[str, Any] | None = None,
        leased: Bucket | None = None,
    ) -> None:  # fmt: skip
        self.where = str(url)
        self.ways_out = "choose another name, or delete it first"
        self._url = url
        self._options = dict(options or {})
        self._bucket, self._leased = open_bucket(url, self._options), leased

    @property
    def root(self) -> PurePosixPath:
        """See `Site.root`."""
        return PurePosixPath(self._url.path)

    def check(self) -> None:
        """See `Site.check`. Puts and deletes an object.

        Raises:
            ConfigError: It is inside of another experiment, or cannot be used.
            StoreDeniedError, StoreUnreachableError: See `check_bucket`.
        """
        check_bucket(self._url, self._options, write=True)
        self._refuse_inside_another()

    def _refuse_inside_another(self) -> None:
        """As `nested.refuse_nested`; what is below would take a request for each directory."""
        above_it = [above for above in PurePosixPath(self._url.prefix).parents if above.name]
        if not above_it or self._leased is not None or self.holds_experiment():
            return
        url = BucketUrl(self._url.scheme, self._url.bucket)
        quick = {"request_timeout_s": 10.0, **(self._options or environment_options())}
        top = open_bucket(url, quick, Retry(CHECK_TRIES_COUNT))
        for above in above_it[:LEVELS_COUNT]:
            is_one = False
            with suppress(Exception):  # who may not look there, in whatever library, sees none
                is_one = top.info(f"{above}/{layout.FORMAT_KEY}") is not None
            if is_one:
                raise ConfigError(
                    f"{self.where} is inside of {self._url.scheme}://{self._url.bucket}/{above}, "
                    f"which is an experiment; choose another upload_dir, or name{OR_REMOVE_IT}"
                )

    def look(self) -> list[str]:
        """See `Site.look`."""
        check_bucket(self._url, self._options, write=False)
        objects, directories = self._bucket.list_dir("")
        return [*(found.key for found in objects), *directories]

    def prepare(self) -> None:
        """See `Site.prepare`."""
        if self._bucket.info(layout.FORMAT_KEY) is None:
            self.put(layout.FORMAT_KEY, format_json())
            return
        file = f"{self.where}/{layout.FORMAT_KEY}"
        check_format(self._bucket.get(layout.FORMAT_KEY), file, self.where)

    def put(self, key: str, data: bytes) -> None:
        """See `Site.put`."""
        self._bucket.put(key, data)

    def is_ours(self) -> bool:
        """See `Site.is_ours`."""
        if self._bucket.info(layout.FORMAT_KEY) is None:
            return False
        self.prepare()
        return True

    def holds_experiment(self) -> bool:
        """See `Site.holds_experiment`."""
        objects, _ = self._bucket.list_dir("")
        names = [found.key for found in objects]
        if any(layout.is_state(n) or n == "trainer.pkl" for n in names):
            return True
        if self._bucket.list(layout.MANIFESTS_DIR):
            return True
        staged = group(o.key for o in self._bucket.list(layout.STAGING_DIR))
        return any(found.sealed() for found in staged.values())

    def live_holder(self) -> Holder | None:
        """See `Site.live_holder`."""
        return live_holder(self._bucket)

    def move_aside(self, seen: Holder | None) -> str:
        """See `Site.move_aside`: a bucket cannot rename."""
        raise ConfigError(
            f"{self.where} cannot be moved aside, as buckets rename nothing: choose another name, "
            "or delete it first"
        )

    def inside(self, key: str) -> BucketSite:
        """See `Site.inside`."""
        path = f"{self._url.path}/{layout.check_key(key)}"
        return BucketSite(BucketUrl(self._url.scheme, path), self._options, self._bucket)

    def home(self, owner: str, checkpoint_depth: int) -> BucketHome:
        """See `Site.home`."""
        return BucketHome(self._bucket, owner, checkpoint_depth, leased=self._leased)

    def lease(self, owner: str) -> BucketLease:
        """See `Site.lease`."""
        return BucketLease(self._bucket, owner, where=self.where)
