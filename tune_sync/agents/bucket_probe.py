"""Looks from every node that may run trials whether a bucket can be used, before training starts.

The driver has looked by itself; its credentials, its libraries and its way to the store are not
those of others. Nodes that join later find out by their first report.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import ray

from tune_sync.agents.probe import PROBE_TIMEOUT_S, answer, ask, name_of, trial_nodes
from tune_sync.buckets.environment import of_each_trial
from tune_sync.buckets.opening import check_bucket
from tune_sync.buckets.url import BucketUrl
from tune_sync.errors import ConfigError, StoreError
from tune_sync.spec import Connector, Spec

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

WAYS_OUT = (
    "trials there could store nothing: give storage_options, which reach every node, or have each "
    "node find credentials, libraries and the store by itself"
)


def check_bucket_of_nodes(spec: Spec, connector: Connector) -> None:
    """Put an object, and delete it, from every node that may run trials.

    Those that do not answer in time are warned of. With `on_sync_error="continue"` so are the
    others: a run goes on without its bucket then.

    Args:
        spec: Of the run, with its address.
        connector: How workers come by the options of the bucket.

    Raises:
        ConfigError, StoreError: Nodes cannot use it, or have no tune_sync. Names all, and why.
    """
    nodes = trial_nodes()
    plain, env = spec.to_plain(), of_each_trial()
    asked = [(n, ask(_look, plain, connector, n["NodeID"], env_vars=env)) for n in nodes]
    end_s = time.monotonic() + PROBE_TIMEOUT_S
    troubles = [(node, _trouble(node, ref, end_s)) for node, ref in asked]
    found = [(node, error) for node, error in troubles if error is not None]
    if not found:
        return
    told = ". ".join(f"{name_of(node)}: {error}" for node, error in found)
    text = f"{spec.where} cannot be used by {len(found)} of {len(nodes)} nodes. {told}. {WAYS_OUT}"
    if spec.options.on_sync_error == "continue":
        logger.warning("%s", text)
        return
    raise type(found[0][1])(text)


def _trouble(node: Mapping[str, Any], ref: Any, end_s: float) -> ConfigError | StoreError | None:
    try:
        found: ConfigError | StoreError | None = answer(ref, end_s)
    except ray.exceptions.RayTaskError as error:  # it does not begin: tune_sync is not there
        return ConfigError(f"it cannot be asked: {error}")
    except ray.exceptions.RayError as error:
        logger.warning("%s: whether it can use the bucket is not known: %s", name_of(node), error)
        return None
    return found


def _look(
    plain: Mapping[str, Any], connector: Connector, node_id: str
) -> ConfigError | StoreError | None:
    """Why this node cannot use the bucket; None if it can, or has left the cluster meanwhile."""
    if ray.get_runtime_context().get_node_id() != node_id:
        return None
    spec = Spec.from_plain(plain)
    url = BucketUrl(spec.scheme, f"{spec.root}/{spec.experiment}")
    try:
        check_bucket(url, connector.storage_options(spec), write=True, by_node=True)
    except (ConfigError, StoreError) as error:
        return type(error)(str(error))  # without causes, which may be of no class of the driver's
    except Exception as error:
        return ConfigError(f"{type(error).__name__}: {error}")
    return None
