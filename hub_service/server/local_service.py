"""The composition root for a single machine, and the service's main function.

JupyterHub starts `python -m runai.hub_service` with the settings in the environment. The service
ends with its hub or at SIGTERM; jobs continue without it, and the next service adopts them.
"""

import asyncio
import logging
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from runai.hub_service.agent.devices.sources import open_devices
from runai.hub_service.api.auth.authentication import SharedTokenAuthenticator
from runai.hub_service.api.services.former_members import FormerMembers
from runai.hub_service.api.views.latest_agent_reports import AgentReports
from runai.hub_service.clusters.local.data_dir_checks import check_place
from runai.hub_service.clusters.local.local_cluster import open_local_cluster
from runai.hub_service.clusters.local.processes.request_groups import RequestGroups
from runai.hub_service.controller.decision_worker import DecisionWorker
from runai.hub_service.controller.forgotten_sessions import ForgottenSessions
from runai.hub_service.limits.sharing import MpsSharing, Sharing, TimeSliced
from runai.hub_service.model.admin_files import read_policy, read_projects
from runai.hub_service.model.cluster import Cluster
from runai.hub_service.model.device import Device, NodeCapacity
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.processes.accounts.account_directory import directory_of
from runai.hub_service.processes.log_lines import begin_logging
from runai.hub_service.processes.own_process import end_with_parent, raise_descriptor_limit
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.server.agent_process import agent_environment, supervise_agent
from runai.hub_service.server.background_work import (
    accept_any_workdir,
    hub_users,
    on_signal,
    run_until,
    url_of,
)
from runai.hub_service.server.composition import compose
from runai.hub_service.server.listener import listen
from runai.hub_service.server.settings import Config
from runai.hub_service.wire.errors import InvalidRequest, RunaiError


def first_projects(devices: int, *, with_members: bool = True) -> list[ProjectSpec]:
    """Return the initial projects for this number of GPUs; admins add real accounts.

    >>> [(p.name, p.quota) for p in first_projects(5)]
    [('vision', 2500), ('nlp', 2500)]
    """
    half = MilliGpu(1000 * devices // 2)
    members = {"vision": ("bob",), "nlp": ("patty",)}
    return [
        ProjectSpec(name, quota=half, members=who if with_members else ())
        for name, who in members.items()
    ]


LOG = logging.getLogger("runai.service")


def node_name() -> str:
    """Return this machine's host name, or `localhost` if it is no valid DNS label."""
    name = socket.gethostname().partition(".")[0].lower()
    is_dns_label = name and all(c.isascii() and (c.isalnum() or c == "-") for c in name)
    return name[:63] if is_dns_label else "localhost"


def devices_of(config: Config, node: str) -> list[Device]:
    """Return this machine's devices for the platform, as configured."""
    source = open_devices(
        "auto" if config.gpus is None else config.gpus, config.simulate, node=node
    )
    try:
        return source.devices()
    finally:
        source.close()


CPUS_PER_SIMULATED_GPU = 8
RESERVED_PART = 8
"""One part in so many is kept back; of fewer CPUs than that, none."""


def capacity_of(config: Config, devices: Sequence[Device]) -> NodeCapacity:
    """Return the CPU and memory that this machine's workloads may request together.

    An eighth of both stays with the system, the hub, and notebooks without a project. Simulated
    GPUs stand for a machine larger than this one.
    """
    if devices and all(device.simulated for device in devices):
        cpus, memory = CPUS_PER_SIMULATED_GPU * len(devices), None
    else:
        cpus_here = len(os.sched_getaffinity(0))
        cpus = cpus_here - cpus_here // RESERVED_PART
        memory = psutil.virtual_memory().total // 2**20
        memory -= memory // RESERVED_PART
    return NodeCapacity(
        1000 * (cpus if config.cpus is None else config.cpus),
        memory if config.memory_mib is None else config.memory_mib,
    )


def sharing_of(config: Config, devices: Sequence[Device]) -> Sharing:
    """Return the configured way to share devices. Without MPS, stop its daemons."""
    real = [d.uuid for d in devices if not d.simulated and not d.uuid.startswith("MIG-")]
    refused = ""
    if config.system_users:
        # An MPS daemon serves one account at a time; other accounts could wait forever.
        refused = "users have Unix accounts of their own, and MPS serves one at a time"
    elif not real:
        refused = "no device here can have it"
    mps = MpsSharing(config.data_dir / "mps", real, refused=refused)
    if config.gpu_sharing == "mps":
        mps.begin()
        return mps
    mps.end()
    return TimeSliced()


async def set_projects(cluster: Cluster, config: Config, devices: int) -> None:
    """Apply the projects file; without a file, create the initial projects if there are none."""
    if config.projects_file is not None:
        specs = read_projects(config.projects_file)
    else:
        known = await cluster.projects()
        specs = [] if known else first_projects(devices, with_members=not config.system_users)
    for spec in specs:
        await cluster.put_project(spec)


async def serve(config: Config) -> None:
    """Run the service until SIGTERM or SIGINT.

    Raises:
        RunaiError: it cannot start; the sentence says why.
    """
    if config.kube_config is None:
        await serve_here(config)
        return
    try:
        # The Kubernetes client is an optional dependency.
        from runai.hub_service.server.kubernetes_service import serve_kubernetes  # noqa: PLC0415
    except ImportError as missing:
        raise InvalidRequest(
            f"Kubernetes cannot be spoken with: {missing}.",
            hint="Install it: pip install 'jupyter-runai[kubernetes]'.",
        ) from missing
    await serve_kubernetes(config, config.kube_config)


async def serve_here(config: Config) -> None:
    """Run the service for this machine's GPUs.

    Raises:
        RunaiError: it cannot start; the sentence says why.
    """
    open_files = raise_descriptor_limit()
    starting = asyncio.current_task()
    assert starting is not None
    # Until this service has the cluster's lock, a signal may simply cancel the start.
    on_signal(starting.cancel)
    policy = read_policy(config.policy_file)
    node = node_name()
    devices = devices_of(config, node)
    # A random port must be known before jobs get the address; a configured one may be in use until
    # the previous service has released the cluster's lock.
    listening = await listen(config.host, 0) if config.port == 0 else None
    api_url = config.api_url or url_of(config, listening)
    check_place(config.data_dir)  # before MPS daemons are stopped, which a copy shares
    sharing = sharing_of(config, devices)
    accounts = directory_of(config.data_dir, config.pam_service) if config.system_users else None
    opened = open_local_cluster(
        config.data_dir,
        devices,
        node,
        accounts=accounts,
        api_url=api_url,
        sharing=sharing,
        elastic=config.elastic,
        retention=config.retention,
        job_files=config.job_files,
        capacity=capacity_of(config, devices),
        requests=RequestGroups.enable(),
        open_files=open_files,
    )
    async with opened as cluster, hub_users(config) as users, DecisionWorker() as scheduler:
        listening = listening or await listen(config.host, config.port)
        await set_projects(cluster, config, len(devices))
        agent_token = config.agent_token or secrets.token_urlsafe(32)
        authenticator = SharedTokenAuthenticator(
            config.hub_token, {node: agent_token}, users, accounts
        )
        platform, server, work = await compose(
            config,
            cluster,
            scheduler,
            policy,
            authenticator=authenticator,
            users=users,
            members=FormerMembers(cluster, authenticator.person),
            releases_idle_gpus=True,
            proxy=config.proxy,
            workdir_exists=accept_any_workdir if config.system_users else is_directory,
            accounts=accounts,
            agent_reports=AgentReports(sharing),
        )
        platform.checks = {"database": cluster.executor.unhealthy_reason, **platform.checks}
        own_url = url_of(config, listening)
        if not config.agent_token:
            agent = agent_environment(os.environ, url=own_url, token=agent_token, node=node)
            work.append(supervise_agent(agent))
        if users is not None:
            work.append(ForgottenSessions(cluster, users.servers).run())
        stopped = asyncio.Event()
        on_signal(stopped.set)
        LOG.info("%d GPUs on %s; listening at %s", len(devices), node, own_url)
        try:
            await run_until(stopped, platform, server, listening, work)
        finally:
            platform.ledger.close()
    LOG.info("stopped; jobs keep running")


def is_directory(path: str) -> bool:
    """Return True if the service's account can see a directory at this path.

    Jobs run as the same account, so they see it too.
    """
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):  # too long, or not permitted
        return False


def main() -> int:
    """Run the service; return its exit status."""
    try:
        config = Config.from_environment(os.environ)
        end_with_parent(config.hub_pid)
        begin_logging(config.log_level, config.log_format)
        asyncio.run(serve(config))
    except asyncio.CancelledError:
        return 0
    except RunaiError as error:
        sys.stderr.write(f"The GPU service cannot start. {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
