"""Checks of a platform on Kubernetes, run in the pod of its service.

    kubectl exec -n runai deploy/runai -- runai doctor

Read-only requests with the service's own account, to the API server and to the hub. The Kubernetes
client that this needs is missing in notebooks.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from itertools import groupby
from typing import Any, Final

import httpx
from kubernetes_asyncio.config import ConfigException

from runai.hub_service.api.auth.hub_auth import HubConfig
from runai.hub_service.cli.doctor import Finding
from runai.hub_service.client.connection import Connection
from runai.hub_service.clusters.kubernetes.client import access_rights
from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object
from runai.hub_service.server.settings import Config, KubernetesConfig
from runai.hub_service.wire.errors import RunaiError

_LEASE: Final = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/runai-scheduler"
_PROJECTS: Final = "/apis/jupyter-runai.dev/v1alpha1/projects"
_GPU: Final = "nvidia.com/gpu"
_TIMEOUT_S: Final = 5.0
_SCOPES: Final = frozenset(
    {"list:users", "read:users:groups", "read:roles:users", "read:servers", "read:groups"}
)
"""Scopes that the service needs in the hub (docs/kubernetes_notebooks.md: `loadRoles`)."""


def examine_cluster(environ: Mapping[str, str]) -> list[Finding]:
    """Run all checks of cluster and hub, except dependents of a failed check."""
    try:
        config = Config.from_environment(environ)
    except RunaiError as error:
        return [Finding("failure", "settings", error.message, "helm upgrade the chart, as it is.")]
    assert config.kube_config is not None, "asked where it is set"
    findings = asyncio.run(_examine_api_server(config.kube_config))
    return [*findings, *check_hub(config.hub)]


def own_service(environ: Mapping[str, str]) -> Connection | None:
    """Return a connection to this pod's service with the hub's token.

    None: the environment has no valid settings.
    """
    try:
        config = Config.from_environment(environ)
    except RunaiError:
        return None
    url = f"http://127.0.0.1:{config.port}{config.prefix}" if config.port else config.api_url
    return Connection(url, config.hub_token)


async def _examine_api_server(kube_config: KubernetesConfig) -> list[Finding]:
    """Check the API server, and what can be checked through it."""
    subject = "API server"
    try:
        connected = await Api.connect()
    except ConfigException as error:
        mend = "Run it in the service's pod, or set KUBECONFIG."
        return [Finding("failure", subject, f"none is known here: {error}", mend)]
    async with connected as api:
        try:
            lacking = await access_rights.missing(
                api, own=kube_config.own_namespace, jobs=kube_config.namespace
            )
        except ApiError as error:
            mend = "Is it up, and may this pod reach it (network policies)?"
            return [Finding("failure", subject, error.message, mend)]
        return [
            Finding("ok", subject, "it answers"),
            *check_rights(lacking, kube_config),
            *[found async for found in check_resource(api)],
            *[found async for found in check_leader(api, kube_config)],
            *[found async for found in check_pods_of_agents(api, kube_config)],
        ]


def check_rights(
    lacking: Iterable[access_rights.Right], kube_config: KubernetesConfig
) -> list[Finding]:
    """Check that the service's account has each right of the chart."""
    missing = list(lacking)
    if not missing:
        return [Finding("ok", "rights", f"all {len(access_rights.RIGHTS)} that the service needs")]
    namespaces = {
        "everywhere": "",
        "own": kube_config.own_namespace,
        "jobs": kube_config.namespace,
        "reservations": access_rights.RESERVATIONS,
    }
    findings = []
    by_role = groupby(missing, key=lambda right: right.where)
    for scope, rights_in_scope in by_role:
        for needed_to, same_purpose in groupby(rights_in_scope, key=lambda right: right.needed_to):
            rights = list(same_purpose)
            where = f" in {namespaces[scope]}" if namespaces[scope] else ""
            names = ", ".join(map(str, rights))
            text = f"it may not {names}{where}, which it needs to {needed_to}"
            mend = (
                f"{rights[0].role} or its binding is not the chart's:"
                f" helm upgrade runai … --namespace {kube_config.own_namespace}"
            )
            findings.append(Finding("failure", "rights", text, mend))
    return findings


async def check_resource(api: Api) -> AsyncIterator[Finding]:
    """Check that the cluster has the CRD of projects, and that all projects are valid."""
    subject = "projects"
    try:
        answer = await api.get(_PROJECTS)
    except ApiError as error:
        if error.status == httpx.codes.NOT_FOUND:
            text = "the cluster does not know the resource projects.jupyter-runai.dev"
            mend = "kubectl apply --server-side -f helm/crds/projects.yaml (helm upgrade does not)"
            yield Finding("failure", subject, text, mend)
        return  # `check_rights` reports missing rights
    names = [str(each["metadata"]["name"]) for each in answer["items"]]
    invalid = [
        str(each["metadata"]["name"])
        for each in answer["items"]
        if _condition(each, "Valid") == "False"
    ]
    if invalid:
        mend = f"kubectl describe project {invalid[0]} says what is wrong with it."
        yield Finding("failure", subject, f"not valid: {', '.join(invalid)}", mend)
    elif not names:
        yield Finding("note", subject, "there are none", "runai project create NAME --quota GPUS")
    else:
        yield Finding("ok", subject, f"{len(names)}, all valid")


async def check_leader(api: Api, kube_config: KubernetesConfig) -> AsyncIterator[Finding]:
    """Check that one of the replicas holds the Lease."""
    subject = "leader"
    mend = (
        f"kubectl logs -n {kube_config.own_namespace} deploy/runai says what keeps it from leading."
    )
    try:
        lease = await api.get(_LEASE.format(kube_config.own_namespace))
    except ApiError as error:
        if error.status == httpx.codes.NOT_FOUND:
            yield Finding("failure", subject, "none has ever led", mend)
        return  # `check_rights` reports missing rights
    holder = str(lease["spec"].get("holderIdentity") or "")
    if not holder:
        yield Finding("failure", subject, "nobody leads now", mend)
    elif holder.startswith(f"{socket.gethostname()}-"):
        yield Finding("ok", subject, f"{holder} leads: this one")
    else:
        hint = "Ask that one for the rest: kubectl exec -n NAMESPACE POD -- runai doctor"
        yield Finding("note", subject, f"{holder} leads; this one waits", hint)


async def check_pods_of_agents(api: Api, kube_config: KubernetesConfig) -> AsyncIterator[Finding]:
    """Check that an agent runs on each node with GPUs."""
    subject = "agents"
    try:
        nodes = (await api.get("/api/v1/nodes"))["items"]
        pods = await api.get(
            f"/api/v1/namespaces/{kube_config.own_namespace}/pods",
            labelSelector="app.kubernetes.io/component=agent",
        )
    except ApiError:
        return  # `check_rights` reports missing rights
    has_gpus = [str(node["metadata"]["name"]) for node in nodes if _gpus(node)]
    ready = {
        each["spec"].get("nodeName")
        for each in pods["items"]
        if _condition(each, "Ready") == "True"
    }
    without = sorted(set(has_gpus) - ready)
    if without:
        text = f"none runs on {', '.join(without)}: nothing is measured there, and no GPU shared"
        mend = (
            f"kubectl describe -n {kube_config.own_namespace} daemonset/runai-agent;"
            " are agent.nodeSelector and agent.tolerations those of the GPU nodes?"
        )
        yield Finding("failure", subject, text, mend)
    elif has_gpus:
        yield Finding("ok", subject, f"one runs on each of {len(has_gpus)} node(s) with GPUs")
    else:
        mend = f"Is the device plugin installed? `kubectl describe node` shows {_GPU}."
        yield Finding("note", "devices", "no node has GPUs to give", mend)


def check_hub(hub: HubConfig | None) -> Iterable[Finding]:
    """Check that JupyterHub accepts the service's token, with the needed scopes."""
    subject = "hub token"
    role = "hub.loadRoles in JupyterHub's values gives them (docs/kubernetes_notebooks.md)."
    if hub is None:
        text = "the service knows no JupyterHub: JUPYTERHUB_API_URL is not set"
        return [Finding("failure", subject, text, "helm upgrade the chart, as it is.")]
    try:
        reply = httpx.get(
            f"{hub.api_url.rstrip('/')}/user",
            headers={"Authorization": f"token {hub.api_token}"},
            timeout=_TIMEOUT_S,
            trust_env=False,
        )
    except (httpx.HTTPError, httpx.InvalidURL) as failed:
        text = f"JupyterHub cannot be reached at {hub.api_url} ({type(failed).__name__})"
        return [Finding("failure", subject, text, "jupyterhub.apiUrl names it; does it run?")]
    if reply.status_code != httpx.codes.OK:
        text = f"JupyterHub does not know the service's token (status {reply.status_code})"
        mend = "The Secret's key and hub.services.runai.apiToken must be the same."
        return [Finding("failure", subject, text, mend)]
    missing = sorted(_SCOPES - set(reply.json().get("scopes", ())))
    if missing:
        text = f"the service may not {', '.join(missing)} in JupyterHub"
        return [Finding("failure", subject, text, role)]
    return [Finding("ok", subject, f"JupyterHub knows the service as {hub.service_name}")]


def _condition(resource: Object, kind: str) -> str:
    """Return a condition's status; "" if the object has no such condition."""
    conditions: list[dict[str, Any]] = resource.get("status", {}).get("conditions", [])
    return next((str(each["status"]) for each in conditions if each["type"] == kind), "")


def _gpus(node: Object) -> int:
    return int(node.get("status", {}).get("capacity", {}).get(_GPU, "0"))
