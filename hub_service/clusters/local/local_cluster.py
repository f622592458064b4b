"""Cluster of this machine: rows in SQLite, workers as processes that outlive the service."""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TypedDict, Unpack

from runai.hub_service.clusters.local.data_dir_checks import (
    adapt_to_node,
    check_place,
    make_data_dir,
    moved_rows,
)
from runai.hub_service.clusters.local.local_executor import LocalCluster, LocalExecutor
from runai.hub_service.clusters.local.processes.reconciler import ProcessControl
from runai.hub_service.clusters.local.processes.request_groups import RequestGroups
from runai.hub_service.clusters.local.store.cluster_lock import LOCK, sole_owner
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore
from runai.hub_service.clusters.states.retention import RetentionPolicy
from runai.hub_service.clusters.workloads.stored_cluster import StoredCluster
from runai.hub_service.limits.sharing import Sharing
from runai.hub_service.model.device import Device, NodeCapacity
from runai.hub_service.model.records import ElasticRules
from runai.hub_service.processes.accounts.account_directory import AccountDirectory

UNBOUNDED = NodeCapacity()


class ExecutorOptions(TypedDict, total=False):
    """Settings of the processes; `LocalExecutor` has their defaults."""

    accounts: AccountDirectory | None
    """The users' Unix accounts; None: all workers run as the platform's account."""
    api_url: str
    """Address of the service, for workers."""
    sharing: Sharing | None
    """The way to share a device."""
    job_files: int
    """Files that a job may have in its own directory; 0: no limit."""
    open_files: int
    """Limit of descriptors with which a job starts; 0: the service's."""
    requests: RequestGroups | None
    """Control groups that enforce requests of CPU and memory; None: nothing does."""
    process_control: ProcessControl


class LocalOptions(ExecutorOptions, total=False):
    """Settings of a local cluster."""

    capacity: NodeCapacity
    """CPU and memory that workloads can request."""
    elastic: ElasticRules | None
    retention: RetentionPolicy | None
    clock: Callable[[], float]


def local_cluster(
    data_dir: Path,
    store: SqliteStore,
    devices: Sequence[Device],
    node_name: str,
    *,
    capacity: NodeCapacity = UNBOUNDED,
    elastic: ElasticRules | None = None,
    retention: RetentionPolicy | None = None,
    clock: Callable[[], float] = time.time,
    **options: Unpack[ExecutorOptions],
) -> LocalCluster:
    """Return the cluster of a data directory that nobody else has open."""
    cluster = StoredCluster(
        store,
        {node_name: devices},
        lambda cluster: LocalExecutor(cluster, data_dir, store, node_name, clock=clock, **options),
        capacities={node_name: capacity},
        elastic=elastic,
        retention=retention,
        clock=clock,
    )
    for row in list(cluster.index.values()):
        cluster.index[row.id] = adapt_to_node(row, node_name, len(devices))
    return cluster


@asynccontextmanager
async def open_local_cluster(
    data_dir: Path | str,
    devices: Sequence[Device],
    node_name: str,
    **options: Unpack[LocalOptions],
) -> AsyncGenerator[LocalCluster]:
    """Open the cluster of a data directory; wait while another service has it open.

    On exit, watching stops and files are closed; workers keep running.
    """
    data_dir = make_data_dir(Path(data_dir))
    check_place(data_dir)
    async with sole_owner(data_dir / LOCK):
        with closing(SqliteStore(data_dir / "cluster.sqlite")) as store:
            if moved := moved_rows(store.rows(), data_dir):
                store.replace(moved)
            cluster = local_cluster(data_dir, store, devices, node_name, **options)
            try:
                yield cluster
            finally:
                cluster.executor.stop_watching()
