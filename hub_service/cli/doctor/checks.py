"""Checks of the installation and the connection to the platform, one function for each.

Each returns Findings and raises nothing: an error is a finding.
"""

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from typing import Final, Literal

import httpx

from runai.hub_service.cli.doctor import Finding
from runai.hub_service.cli.doctor.gpu_checks import check_driver, check_mps, check_mps_daemons
from runai.hub_service.cli.doctor.platform_checks import (
    check_account_limits,
    check_accounts,
    check_command,
    check_command_lines,
    check_descriptors,
    check_expired,
    check_groups,
    check_hub_version,
    check_ownership,
    check_requests,
    check_settings,
    check_shell_environment,
    check_start,
    check_storage,
    check_tmp_dirs,
)
from runai.hub_service.cli.framework.hub_login import hub_root, is_this_machine
from runai.hub_service.client import Client
from runai.hub_service.client.connection import Connection, config_path, find_connection
from runai.hub_service.client.tls_trust import untrusted, verification
from runai.hub_service.processes import own_process
from runai.hub_service.processes.accounts.home_folder import expanded
from runai.hub_service.processes.requirements import in_words, install_command, unmet_here
from runai.hub_service.wire.device_schemas import NodeView
from runai.hub_service.wire.errors import Forbidden, InvalidRequest, RunaiError, Unauthenticated

_NOT_READY: Final = {
    "database": (
        "it cannot store anything: its last write failed",
        "Make room on the disk of its data directory, or make its databases writable again.",
    ),
    "scheduler": (
        "it does not decide: its last cycle failed, or none was run of late",
        "Look into hub.log (`runai.controller`); on Kubernetes, at its rights and the API server.",
    ),
    "leaving": ("it is about to end", "Look again in a few seconds."),
}
_UNAVAILABLE: Final = {
    "history": (
        "its database (RUNAI_LEDGER) does not answer: the past cannot be shown; jobs go on",
        "Start that PostgreSQL, or mend the way to it: hub.log says how it fails.",
    ),
}
_NON_OWNER_BITS: Final = stat.S_IRWXG | stat.S_IRWXO
_TIMEOUT_S: Final = 5.0


def examine(data_dir: str | None) -> list[Finding]:
    """Run all checks; skip the ones that depend on a failed check."""
    return [
        check_provider(),
        check_command(),
        check_versions(),
        *check_libraries(),
        *(cluster := [*check_cluster()]),
        *(() if _is_not_leader(cluster) else check_service_access()),
        check_driver(),
        check_groups(),
        *check_hub_version(),
        *check_data_directory(data_dir),
    ]


def check_provider() -> Finding:
    """Check that no other `runai` package hides ours, such as the library on PyPI."""
    subject = "packages"
    mend = "pip uninstall runai && pip install --force-reinstall --no-deps jupyter-runai"
    try:
        other = distribution("runai")
    except PackageNotFoundError:
        pass
    else:
        text = f"the library `runai` {other.version} of PyPI is installed beside ours and hides it"
        return Finding("failure", subject, text, mend)
    spec = find_spec("runai")
    if spec is not None and spec.origin is not None:
        return Finding("failure", subject, f"{spec.origin} hides our `runai`", mend)
    return Finding("ok", subject, "one provider of `runai`")


def check_versions() -> Finding:
    """Report the versions of the package and Python."""
    python = ".".join(str(part) for part in sys.version_info[:3])
    ours = version("jupyter-runai")
    return Finding("ok", "versions", f"jupyter-runai {ours}, Python {python} at {sys.executable}")


def check_libraries() -> Iterator[Finding]:
    """Check that no library is missing or too old."""
    if lacking := unmet_here():
        yield Finding("failure", "libraries", in_words(lacking), install_command(lacking))


def check_cluster() -> Iterable[Finding]:
    """Check the cluster and the hub, in the pod of a service on Kubernetes."""
    if not _is_service_over_kubernetes():
        return ()
    from runai.hub_service.cli.doctor.kubernetes_checks import examine_cluster  # noqa: PLC0415

    return examine_cluster(os.environ)


def _is_not_leader(cluster: Iterable[Finding]) -> bool:
    # Only the leader listens.
    return any(finding.subject == "leader" and finding.verdict != "ok" for finding in cluster)


def _is_service_over_kubernetes() -> bool:
    return os.environ.get("RUNAI_CLUSTER") == "kubernetes"


def _connection_to_check() -> Connection:
    """Return the connection to check; in the service's pod its own, with the hub's token."""
    if _is_service_over_kubernetes():
        from runai.hub_service.cli.doctor.kubernetes_checks import own_service  # noqa: PLC0415

        return own_service(os.environ) or find_connection()
    return find_connection()


def check_service_access() -> Iterator[Finding]:
    """Check login, hub, health of the service, token and devices."""
    try:
        connection = _connection_to_check()
        verification(connection.url, connection.ca)  # raises if the authority's file is gone
    except RunaiError as error:
        yield Finding("failure", "login", error.message, error.hint)
        return
    yield check_login(connection)
    if not _is_service_over_kubernetes():  # `check_cluster` includes the hub
        yield check_hub_answers(connection)
    health = check_health(connection)
    yield from health
    if health[0].verdict != "failure":
        yield from check_token(connection)


def check_login(connection: Connection) -> Finding:
    """Check that only the owner can read the stored token."""
    path = config_path()
    if path.exists() and path.stat().st_mode & _NON_OWNER_BITS:
        return Finding("failure", "login", f"{path} can be read by others", f"chmod 600 {path}")
    return Finding("ok", "login", f"the service is {connection.url}")


def check_hub_answers(connection: Connection) -> Finding:
    """Check that JupyterHub answers at the service's address."""
    subject = "hub"
    try:
        # Inside a session, hub and service have different addresses.
        inside = os.environ.get("JUPYTERHUB_API_URL", "") if os.environ.get("RUNAI_API_URL") else ""
        reply = _get_reply(inside or f"{hub_root(connection.url)}hub/api", connection)
    except (httpx.HTTPError, httpx.InvalidURL, InvalidRequest) as failed:
        if refused := untrusted(connection.url, failed):
            return Finding("failure", subject, refused.message, refused.hint)
        text = f"JupyterHub does not answer ({type(failed).__name__})"
        mend = "Does it run (`runai up`)? The end of hub.log in its data directory says how it was."
        return Finding("failure", subject, text, mend)
    if reply.is_server_error:
        text = f"JupyterHub answers with status {reply.status_code}"
        mend = "Behind a proxy of its own: does it run? Else the end of its log says what is wrong."
        return Finding("failure", subject, text, mend)
    version_of_hub = _json_object(reply).get("version", "")
    if reply.status_code != httpx.codes.OK or not version_of_hub:
        return Finding("note", subject, "not looked at: this is the service's own address")
    return Finding("ok", subject, f"JupyterHub {version_of_hub} answers")


def check_health(connection: Connection) -> list[Finding]:
    """Check the service's health; the first finding is about the service itself."""
    subject = "service"
    mend = "Is the hub running (`runai up`), and the address right (`runai login URL`)?"
    try:
        reply = _get_reply(f"{connection.url.rstrip('/')}/health", connection)
    except (httpx.HTTPError, httpx.InvalidURL) as failed:
        if refused := untrusted(connection.url, failed):
            return [Finding("failure", subject, refused.message, refused.hint)]
        text = f"{connection.url} cannot be reached ({type(failed).__name__})"
        return [Finding("failure", subject, text, mend)]
    if reply.status_code != httpx.codes.OK:
        text = f"it answers with status {reply.status_code}"
        return [Finding("failure", subject, text, "Look into hub.log in its data directory.")]
    health = _json_object(reply)
    findings = check_ready(connection)
    if worker := str(health.get("decision_worker", "")):
        findings.append(_check_decision_worker(worker))
    if proxy := health.get("proxy"):
        findings.append(Finding("ok", "proxy", str(proxy)))
    return findings


def _check_decision_worker(state: str) -> Finding:
    """Return the finding about the process that decides."""
    subject, text = "scheduler", f"the decision worker {state}"
    if state == "runs":
        return Finding("ok", subject, text)
    mend = "The service's log says why each one ended."
    return Finding("failure" if state.startswith("fails") else "note", subject, text, mend)


def check_ready(connection: Connection) -> list[Finding]:
    """Check the service's readiness: database, scheduler, usage history."""
    subject = "service"
    try:
        reply = _get_reply(f"{connection.url.rstrip('/')}/health/ready", connection)
    except httpx.HTTPError as failed:
        text = f"it does not say whether it is ready ({type(failed).__name__})"
        return [Finding("failure", subject, text, "Look into hub.log in its data directory.")]
    fields = _json_object(reply)
    if reply.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        text, mend = _NOT_READY.get(
            fields.get("because", ""), ("it is not ready", "Look into hub.log.")
        )
        return [Finding("failure", subject, text, mend)]
    ready = Finding("ok", subject, "it is well: it stores what is asked for, and decides")
    if without := fields.get("without", ""):
        text, mend = _UNAVAILABLE.get(without, ("it is away", "Look into hub.log."))
        return [ready, Finding("failure", without, text, mend)]
    return [ready]


def _get_reply(url: str, connection: Connection) -> httpx.Response:
    return httpx.get(
        url,
        timeout=_TIMEOUT_S,
        trust_env=not is_this_machine(url),
        verify=verification(url, connection.ca),
    )


def _json_object(reply: httpx.Response) -> dict[str, str]:
    """Return the JSON object of a reply; {} for another body, as from a proxy."""
    try:
        fields = reply.json()
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def check_token(connection: Connection) -> Iterator[Finding]:
    """Check token, version, devices, MPS and agents, through the API."""
    try:
        with Client(connection.url, connection.token, ca=connection.ca) as client:
            me = client.whoami()
            nodes = client.nodes()
    except (Unauthenticated, Forbidden) as error:
        yield Finding("failure", "token", error.message, "Run `runai login URL` again.")
        return
    except RunaiError as error:
        yield Finding("failure", "token", error.message, error.hint)
        return
    yield Finding("ok", "token", f"you are {me.name}; projects: {', '.join(me.projects) or 'none'}")
    ours = version("jupyter-runai")
    if me.version != ours:
        text = f"the service has version {me.version}, this command {ours}"
        yield Finding("note", "versions", text, f"pip install jupyter-runai=={me.version}")
    yield check_devices(nodes)
    yield from check_mps(nodes)
    yield from check_agents(nodes)


def check_devices(nodes: list[NodeView]) -> Finding:
    """Check that the cluster has healthy GPUs; report simulated ones."""
    devices = [d for node in nodes for d in node.devices]
    broken = [f"{d.uuid} ({d.fault})" for d in devices if not d.healthy]
    if not devices and not any(node.loss for node in nodes):
        return Finding("note", "devices", "the cluster has no GPU", "runai up --simulate 5")
    text = f"{len(devices)} on {len(nodes)} node(s)"
    if broken:
        mend = "nvidia-smi and the kernel's log say more; broken ones are not used."
        return Finding("failure", "devices", f"{text}, not healthy: {', '.join(broken)}", mend)
    if losses := [node.loss for node in nodes if node.loss]:
        mend = "The logs of the node's device plugin say more; what runs there goes on."
        return Finding("failure", "devices", f"{text}; {'; '.join(losses)}", mend)
    simulated = sum(d.simulated for d in devices)
    return Finding("ok", "devices", f"{text}, {simulated} of them simulated" if simulated else text)


def check_agents(nodes: list[NodeView]) -> Iterator[Finding]:
    """Check that every node's agent reports."""
    silent = [
        node.name
        for node in nodes
        # Before Hopper the driver has no utilization of MIG devices; memory shows that the agent
        # reports.
        if node.devices
        and all(d.utilized is None and d.memory_used_mib is None for d in node.devices)
    ]
    if silent:
        text = f"nothing is measured on {', '.join(silent)}: no agent reports"
        mend = "The service starts it, its trouble is in hub.log; on Kubernetes see its pods' logs."
        yield Finding("failure", "agents", text, mend)
    elif nodes:
        yield Finding("ok", "agents", "every node's agent reports")


def check_data_directory(named: str | None) -> Iterator[Finding]:
    """Check the data directory of a platform on this machine: private secrets, sound databases."""
    subject = "data directory"
    if find_spec("sqlalchemy") is None:
        if named:
            text = f"{named} is not looked at: only the client is installed here"
            yield Finding("note", subject, text)
        return
    # Needs the hub extra, which a client lacks.
    from runai.embedded.backup.backups import DATABASES  # noqa: PLC0415
    from runai.embedded.data_directory import DataDirectory  # noqa: PLC0415
    from runai.embedded.up import DEFAULT_DATA_DIR  # noqa: PLC0415

    try:
        root = expanded(named or DEFAULT_DATA_DIR)
    except InvalidRequest as no_home:
        verdict: Literal["failure", "note"] = "failure" if named else "note"
        yield Finding(verdict, subject, no_home.message.rstrip("."), no_home.hint)
        return
    try:
        if not root.exists():
            if named:
                mend = "--data-dir names the directory of `runai up`."
                yield Finding("failure", subject, f"there is no {root}", mend)
            return
        directory = DataDirectory(root)
        secret = (directory.secrets, *directory.secrets.glob("*"))
        open_paths = [
            path for path in secret if path.exists() and path.stat().st_mode & _NON_OWNER_BITS
        ]
    except PermissionError:
        yield Finding("note", subject, f"{root} belongs to somebody else")
        return
    if directory.is_of_system_users:
        yield check_command_lines()
        yield check_account_limits()
        yield from check_expired(root)
    yield from check_accounts(root)
    yield from check_storage(root, DATABASES)
    yield from check_ownership(root)
    yield from check_requests(root)
    yield from check_start(root)
    yield from check_settings(root)
    yield from check_shell_environment(root)
    yield from check_tmp_dirs(root)
    yield check_descriptors(own_process.max_descriptors())
    yield from check_mps_daemons(root / "mps")
    if open_paths:
        names = " ".join(str(path) for path in open_paths)
        text = f"others can read {names}"
        yield Finding("failure", subject, text, f"chmod go-rwx {names}")
        return
    yield Finding("ok", subject, f"{root} is private")
