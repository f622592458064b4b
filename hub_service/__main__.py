"""The composition root: the one place that names concrete classes and puts the service together.

`python -m runai.hub_service`, started by JupyterHub with its settings in the environment. Ends with
its hub, or at SIGTERM; jobs go on without it, and the next service takes them over.
"""

import asyncio
import logging
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from runai.hub_service.agent.devices import Device, open_devices
from runai.hub_service.agent_process import agent_environment, keep_agent_running
from runai.hub_service.api.app import create_app
from runai.hub_service.api.auth import SharedTokens
from runai.hub_service.api.job_limit import JobLimit
from runai.hub_service.api.platform import Platform
from runai.hub_service.api.present import Present
from runai.hub_service.api.request_limits import Callers
from runai.hub_service.bookkeeping import Bookkeeping
from runai.hub_service.clusters.base import Cluster
from runai.hub_service.clusters.local.cluster import LocalCluster
from runai.hub_service.config import Config
from runai.hub_service.controller import Controller
from runai.hub_service.descriptors import take_all
from runai.hub_service.errors import InvalidRequest, RunaiError
from runai.hub_service.first_projects import first_projects
from runai.hub_service.forgotten_sessions import ForgottenSessions
from runai.hub_service.garbage import Aside, collect_seldom
from runai.hub_service.idle.watch import IdleWatch
from runai.hub_service.ledger import Ledger
from runai.hub_service.limits.sharing import MpsSharing, Sharing, TimeSliced
from runai.hub_service.log_lines import begin_logging
from runai.hub_service.metrics import Metrics
from runai.hub_service.parent import end_with_parent
from runai.hub_service.policy_file import read_policy
from runai.hub_service.projects_file import read_projects
from runai.hub_service.running import (
    Work,
    hub_users,
    no_opinion,
    notifier,
    on_signal,
    run_until,
    share_the_interpreter,
    url_of,
)
from runai.hub_service.scheduler import decide
from runai.hub_service.serving import Server, listen
from runai.hub_service.usage_history import UsageHistory

LOG = logging.getLogger("runai.service")


def node_name() -> str:
    """Return this machine's name, or `localhost` where it has none that reads as one."""
    name = socket.gethostname().partition(".")[0].lower()
    fits = name and all(c.isascii() and (c.isalnum() or c == "-") for c in name)
    return name[:63] if fits else "localhost"


def devices_of(config: Config, node: str) -> list[Device]:
    """Return the devices that the platform is to use on this machine."""
    source = open_devices(
        "auto" if config.gpus is None else config.gpus, config.simulate, node=node
    )
    try:
        return source.devices()
    finally:
        source.close()


def sharing_of(config: Config, devices: Sequence[Device]) -> Sharing:
    """Return how devices are shared; what was begun for another way is ended."""
    real = [d.uuid for d in devices if not d.simulated and not d.uuid.startswith("MIG-")]
    refused = ""
    if config.system_users:
        # A daemon serves one account at a time; the others would wait for it, for ever perhaps.
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
    """Bring the projects to what the file says; without one, begin with something."""
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
    if config.kubernetes is None:
        await serve_here(config)
        return
    try:
        # Its client is an extra that a single machine does without.
        from runai.hub_service.kubernetes_service import serve_kubernetes  # noqa: PLC0415
    except ImportError as missing:
        raise InvalidRequest(
            f"Kubernetes cannot be spoken with: {missing}.",
            hint="Install it: pip install 'jupyter-runai[kubernetes]'.",
        ) from missing
    await serve_kubernetes(config, config.kubernetes)


async def serve_here(config: Config) -> None:
    """Run the service over this machine's GPUs.

    Raises:
        RunaiError: it cannot start; the sentence says why.
    """
    collect_seldom()
    share_the_interpreter()
    open_files = take_all()
    starting = asyncio.current_task()
    assert starting is not None
    # While another service has the cluster open there is nothing yet to end in good order.
    on_signal(starting.cancel)
    policy = None if config.policy_file is None else read_policy(config.policy_file)
    node = node_name()
    devices = devices_of(config, node)
    # An address that nobody chose must be known before jobs are told of it; a chosen one is free
    # only when the service before this one has let go of the cluster.
    listening = await listen(config.host, 0) if config.port == 0 else None
    api_url = config.api_url or url_of(config, listening)
    sharing = sharing_of(config, devices)
    opened = LocalCluster.open(
        config.data_dir,
        devices,
        node,
        system_users=config.system_users,
        api_url=api_url,
        sharing=sharing,
        elastic=config.elastic,
        keeping=config.keeping,
        job_files=config.job_files,
        open_files=open_files,
    )
    async with opened as cluster, hub_users(config) as users:
        listening = listening or await listen(config.host, config.port)
        await set_projects(cluster, config, len(devices))
        agent_token = config.agent_token or secrets.token_urlsafe(32)
        metrics = Metrics()
        ledger = Ledger(config.ledger or config.data_dir / "ledger.sqlite")
        past = UsageHistory(cluster, ledger)
        platform = Platform(
            cluster=cluster,
            controller=Controller(
                cluster,
                decide,
                policy=policy,
                history=past.told,
                on_cycle=metrics.count,
                rests=1.0,
            ),
            ledger=ledger,
            idle=IdleWatch(cluster, ledger),
            authenticator=SharedTokens(config.hub_token, {node: agent_token}, users),
            prefix=config.prefix,
            version=version("jupyter-runai"),
            proxy=config.proxy,
            workdir_exists=no_opinion if config.system_users else is_directory,
            present=Present(sharing),
            callers=Callers(config.allowance),
            jobs=JobLimit(config.allowance.unfinished_jobs),
            cpu_jobs=cluster.cpu_jobs,
        )
        platform.checks = {"database": cluster.trouble, "scheduler": platform.controller.trouble}
        own_url = url_of(config, listening)
        work: list[Work] = [
            cluster.run(),
            platform.controller.run(),
            Aside().run(platform.controller.changes.after(0)),
            notifier(config, platform).run(),
            Bookkeeping(
                cluster,
                platform.ledger,
                platform.controller.changes,
                seen=lambda: platform.controller.last.snapshot,
            ).run(),
            platform.ledger.run(),
        ]
        if not config.agent_token:
            agent = agent_environment(os.environ, url=own_url, token=agent_token, node=node)
            work.append(keep_agent_running(agent))
        if policy is not None and policy.history_weight:
            await past.begin()  # before anything is decided
            work.append(past.run())
        if users is not None:
            work += [users.warm(), ForgottenSessions(cluster, users.servers).run()]
        server = Server(create_app(platform, metrics=metrics, login=users))
        stopped = asyncio.Event()
        on_signal(stopped.set)
        LOG.info("%d GPUs on %s; listening at %s", len(devices), node, own_url)
        try:
            await run_until(stopped, platform, server, listening, work)
        finally:
            platform.ledger.close()
    LOG.info("stopped; jobs go on")


def is_directory(path: str) -> bool:
    """Tell whether jobs, which run under the service's account, could begin there."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):  # longer than any name, or not to be looked at
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
