"""The composition root for a Kubernetes cluster, with leader election between replicas.

`RUNAI_CLUSTER=kubernetes python -m runai.hub_service`. Only the leader listens, so that no request
reaches another replica; a new leader lists the whole cluster again.
"""

import asyncio
import logging
import secrets
import socket

from kubernetes_asyncio.config import ConfigException

from runai.hub_service.api.auth.authentication import SharedTokenAuthenticator
from runai.hub_service.api.auth.hub_auth import HubAuthenticator
from runai.hub_service.api.auth.node_tokens import NodeTokenAuthenticator
from runai.hub_service.api.services.former_members import FormerMembers
from runai.hub_service.clusters.kubernetes.client.api import Api
from runai.hub_service.clusters.kubernetes.client.leader_election import LeaderElection
from runai.hub_service.clusters.kubernetes.client.leader_label import (
    LeaderLabel,
    serve_liveness_probe,
)
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_pods import IMAGE
from runai.hub_service.clusters.kubernetes.informers.node_pool import NodePool
from runai.hub_service.clusters.kubernetes.kubernetes_cluster import KubernetesCluster
from runai.hub_service.clusters.kubernetes.objects.job_manifest import Confinement
from runai.hub_service.clusters.kubernetes.workloads.pod_exec import PodExec
from runai.hub_service.controller.decision_worker import DecisionWorker
from runai.hub_service.model.admin_files import read_policy, read_projects
from runai.hub_service.model.cluster import Cluster
from runai.hub_service.processes.own_process import raise_descriptor_limit
from runai.hub_service.scheduler.model.snapshot import Policy
from runai.hub_service.server.background_work import (
    accept_any_workdir,
    hub_users,
    on_signal,
    run_until,
    url_of,
)
from runai.hub_service.server.composition import compose
from runai.hub_service.server.listener import listen
from runai.hub_service.server.settings import Config, KubernetesConfig
from runai.hub_service.wire.errors import InvalidRequest, Unavailable

LOG = logging.getLogger("runai.service")


async def serve_kubernetes(config: Config, kube_config: KubernetesConfig) -> None:
    """Wait for the Lease, then run the service for a Kubernetes cluster while it leads.

    Raises:
        RunaiError: it cannot start; the sentence says why.
    """
    raise_descriptor_limit()
    config.data_dir.mkdir(parents=True, exist_ok=True)
    stopped, serves, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    on_signal(stopped.set)
    policy = read_policy(config.policy_file)
    pool_of(kube_config)  # report a wrong value before the wait for the Lease
    identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    liveness_probe = serve_liveness_probe(config.host, kube_config.alive_port)
    async with (
        liveness_probe,
        await connected() as api,
        api.clone() as reviewing,
        hub_users(config) as users,
    ):
        pod = LeaderLabel(api, kube_config.own_namespace, kube_config.pod)

        async def work() -> None:
            ended.clear()
            try:
                async with DecisionWorker() as decision_worker:
                    arguments = config, kube_config, api, reviewing, users, decision_worker, policy
                    await lead(*arguments, stopped, serves, pod)
            finally:
                ended.set()

        leadership = LeaderElection(api, namespace=kube_config.own_namespace, identity=identity)

        async def run_for_leadership() -> None:
            await pod.update(leads=False)  # the previous container may have left the label
            LOG.info("%s waits to become the leader", identity)
            await leadership.lead(work)

        leading = asyncio.create_task(run_for_leadership())
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait({leading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not leading.done() and serves.is_set():
            await ended.wait()  # a serving leader shuts down in order by itself
        for task in (leading, stopping):
            task.cancel()
        failed, _stopped = await asyncio.gather(leading, stopping, return_exceptions=True)
        await leadership.resign()
        if isinstance(failed, Exception):
            raise failed
    LOG.info("stopped; jobs keep running")


async def connected() -> Api:
    """Connect to kubectl's current API server, or to this pod's own.

    Raises:
        Unavailable: there is no configuration of either.
    """
    try:
        return await Api.connect()
    except ConfigException as error:
        raise Unavailable(
            f"There is no Kubernetes cluster to be found: {error}.",
            hint="Set KUBECONFIG, or run it in a pod with a service account.",
        ) from error


async def lead(
    config: Config,
    kube_config: KubernetesConfig,
    api: Api,
    reviewing: Api,
    users: HubAuthenticator | None,
    decision_worker: DecisionWorker,
    policy: Policy,
    stopped: asyncio.Event,
    serves: asyncio.Event,
    pod: LeaderLabel,
) -> None:
    """Schedule and serve requests until stopped, starting from a fresh list of the cluster.

    Once `serves` is set, `stopped` ends it in order; before that the caller cancels it.
    """
    cluster = KubernetesCluster(
        api,
        namespace=kube_config.namespace,
        image=kube_config.image,
        api_url=config.api_url,
        ttl_s=kube_config.jobs_ttl_s,
        bounds=Confinement(kube_config.jobs_limits, has_token=kube_config.jobs_token),
        default_project=kube_config.default_project,
        reservation_image=kube_config.reservation_image or IMAGE,
        elastic=config.elastic,
        pool=pool_of(kube_config),
    )
    authenticator = NodeTokenAuthenticator(
        reviewing, kube_config.agent_account, SharedTokenAuthenticator(config.hub_token, {}, users)
    )
    # Other pods of the cluster were never asked for a membership; submissions have a key.
    members = FormerMembers(cluster, authenticator.person, was_checked=lambda spec: bool(spec.key))
    platform, server, work = await compose(
        config,
        cluster,
        decision_worker,
        policy,
        authenticator=authenticator,
        users=users,
        members=members,
        releases_idle_gpus=False,
        workdir_exists=accept_any_workdir,
        images=True,
        workers=cluster.elastic,
        programs=PodExec(api, cluster.lookup.pods_of),
    )
    listening = await listen(config.host, config.port)
    LOG.info("leader; listening at %s", url_of(config, listening))
    try:
        await pod.update(leads=True)
        projects = apply_projects(cluster, config)  # before users are told they have none
        serves.set()
        await run_until(stopped, platform, server, listening, work, first=projects)
    finally:
        serves.clear()
        listening.close()
        platform.ledger.close()
        await pod.update(leads=False)


def pool_of(kube_config: KubernetesConfig) -> NodePool:
    """Return the node pool of this platform.

    Raises:
        InvalidRequest: RUNAI_NODE_POOL is invalid.
    """
    try:
        return NodePool.parse(kube_config.node_pool)
    except ValueError as error:
        raise InvalidRequest(
            f"RUNAI_NODE_POOL: {error}.", hint="Name a label of nodes: runai/node-pool=a"
        ) from error


async def apply_projects(cluster: Cluster, config: Config) -> None:
    """Apply the projects file, if there is one."""
    if config.projects_file is not None:
        for spec in read_projects(config.projects_file):
            await cluster.put_project(spec)
