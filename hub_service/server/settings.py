"""The service's settings, parsed once from its environment into types.

JupyterHub sets the `JUPYTERHUB_*` variables; `runai up` or the Helm chart sets `RUNAI_*`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit

from runai.hub_service.api.auth.hub_auth import HubConfig
from runai.hub_service.api.middleware.request_limits import Allowance
from runai.hub_service.clusters.states.retention import RetentionPolicy
from runai.hub_service.controller.notifications import NotificationSettings
from runai.hub_service.model.records import ElasticRules
from runai.hub_service.processes.log_lines import LogFormat
from runai.hub_service.wire.amounts import MOST_GPUS, size_mib
from runai.hub_service.wire.errors import InvalidRequest

T = TypeVar("T")
DAY_S = 86_400
MOST_PORT = 65_535
MOST_AT_ONCE = 1_000_000
MOST_JOB_FILES = 200_000
"""Ten times a job's files at 200 epochs with a checkpoint of 100 files each."""
MOST_EVER_FILES = 2**32
"""Maximum number of files on ext4."""
MOST_PID = 2**22
"""Linux's upper bound of a PID."""
_QUANTITY = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?(m|[kMGT]|[KMGT]i)?")
"""A Kubernetes quantity of CPU or memory, without exponents."""


@dataclass(frozen=True, slots=True)
class KubernetesConfig:
    """The platform's part of a Kubernetes cluster; kubectl's configuration selects the cluster."""

    namespace: str
    """Namespace of the notebooks and of the jobs."""
    own_namespace: str
    """Namespace of this service and its Lease."""
    image: str = ""
    """Container image for jobs of users without a notebook; "": such jobs are rejected."""
    jobs_ttl_s: int | None = None
    """Seconds for which finished jobs are kept; None: until their deletion by a user."""
    jobs_limits: Mapping[str, str] = field(default_factory=dict)
    """CPU and memory limits (quantities) of each pod of a job; {}: its notebook's limits."""
    jobs_token: bool = False
    """Whether pods of jobs get the API's token of their service account."""
    default_project: str = "default"
    """Project of workloads that name none."""
    pod: str = ""
    """Name of this service's pod; "": it runs outside of pods."""
    alive_port: int = 0
    """Port of the liveness probe; 0: none."""
    agent_account: str = "runai:runai-agent"
    """Service account of the nodes' agents, as `NAMESPACE:NAME`."""
    reservation_image: str = ""
    """Image of the pods that reserve shared devices; "": Kubernetes' pause image."""
    node_pool: str = ""
    """Label of our nodes, projects and pods: KEY=VALUE, or !KEY for the rest; "": all."""


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of one start of the service."""

    data_dir: Path
    host: str
    port: int
    """0: any free port."""
    prefix: str
    """Path under which the API is served, with a slash at both ends."""
    api_url: str
    """The service's root address for workloads; "" until the port is known."""
    simulate: int | None
    """Number of simulated GPUs, which replace the machine's GPUs."""
    gpus: int | None
    """None: the machine's GPUs, else simulated ones."""
    projects_file: Path | None
    policy_file: Path | None
    system_users: bool
    gpu_sharing: Literal["timeslice", "mps"]
    """Mechanism for several workloads on one device."""
    hub_token: str = field(repr=False)
    """Token shared with the hub's process; it authenticates the spawner."""
    hub: HubConfig | None
    """None: no JupyterHub; the service accepts the shared token only."""
    agent_token: str = field(repr=False, default="")
    """Token of an agent that another program starts; "": the service starts one itself."""
    ledger: str = field(repr=False, default="")
    """Address of the ledger's database, perhaps with a password; "": a file in `data_dir`."""
    log_level: str = "INFO"
    log_format: LogFormat = "text"
    elastic: ElasticRules = field(default_factory=ElasticRules)
    """Rules for growing elastic jobs."""
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    """Retention of finished workloads (single machine only)."""
    job_files: int = MOST_JOB_FILES
    """Maximum number of files in a job's own directory (single machine only); 0: no limit."""
    cpus: int | None = None
    """CPUs that workloads may request together (single machine only); None: by the machine."""
    memory_mib: int | None = None
    """Memory that they may request together, as `cpus`."""
    kube_config: KubernetesConfig | None = None
    """None: the cluster is this machine."""
    notify: NotificationSettings = field(default_factory=NotificationSettings)
    """Channels that notify users beside the pages; none by default."""
    allowance: Allowance = field(default_factory=Allowance)
    """Rate limits of each user."""
    proxy: str = ""
    """Description of the proxy in front of the hub; "": unknown."""
    pam_service: str = ""
    """Service of PAM that says whether a Unix account has expired; "": none does."""
    hub_pid: int | None = None
    """PID of JupyterHub if it is the parent: the service ends with it."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Config":
        """Parse the settings.

        Raises:
            InvalidRequest: a variable is missing or has an invalid value.
        """
        prefix = "/" + environ.get("JUPYTERHUB_SERVICE_PREFIX", "/services/runai/").strip("/") + "/"
        try:
            address = urlsplit(environ.get("JUPYTERHUB_SERVICE_URL", "http://127.0.0.1:0"))
            host, port = address.hostname or "127.0.0.1", address.port or 0
        except ValueError:
            raise _invalid("JUPYTERHUB_SERVICE_URL", environ, "http://HOST:PORT") from None
        api_url = environ.get("RUNAI_API_URL", "")
        if not api_url and port:
            api_url = f"http://{host}:{port}{prefix}"
        projects_file = environ.get("RUNAI_PROJECTS", "")
        policy_file = environ.get("RUNAI_POLICY", "")
        gpus = environ.get("RUNAI_GPUS", "auto")
        return cls(
            data_dir=Path(_required("RUNAI_DATA_DIR", environ)).absolute(),
            host=host,
            port=port,
            prefix=prefix,
            api_url=api_url,
            simulate=_count_or(None, "RUNAI_SIMULATE", environ),
            gpus=None if gpus in {"auto", ""} else _count("RUNAI_GPUS", environ),
            projects_file=Path(projects_file).absolute() if projects_file else None,
            policy_file=Path(policy_file).absolute() if policy_file else None,
            system_users=_flag("RUNAI_SYSTEM_USERS", environ),
            gpu_sharing=_gpu_sharing(environ),
            ledger=_database("RUNAI_LEDGER", environ),
            hub_token=_required("RUNAI_HUB_TOKEN", environ),
            agent_token=_agent_token(environ),
            hub=_hub(environ) if environ.get("JUPYTERHUB_API_URL") else None,
            log_level=_log_level(environ),
            log_format=log_format(environ),
            elastic=_elastic_rules(environ),
            retention=_retention(environ),
            job_files=_count_or(MOST_JOB_FILES, "RUNAI_JOB_FILES", environ, MOST_EVER_FILES),
            cpus=_count_or(None, "RUNAI_CPUS", environ, MOST_GPUS),
            memory_mib=_memory("RUNAI_MEMORY", environ),
            kube_config=_kubernetes(environ),
            notify=NotificationSettings.from_environment(environ),
            allowance=_allowance(environ),
            proxy=environ.get("RUNAI_PROXY", ""),
            pam_service=environ.get("RUNAI_PAM_SERVICE", ""),
            hub_pid=_count_or(None, "RUNAI_HUB_PID", environ, MOST_PID),
        )


def _hub(environ: Mapping[str, str]) -> HubConfig:
    name = environ.get("JUPYTERHUB_SERVICE_NAME", "runai")
    prefix = environ.get("JUPYTERHUB_SERVICE_PREFIX", f"/services/{name}/")
    # Accept tokens for this service only, even if they have other scopes.
    scopes = (f"access:services!service={name}",)
    return HubConfig(
        api_url=environ["JUPYTERHUB_API_URL"],
        api_token=_required("JUPYTERHUB_API_TOKEN", environ),
        service_name=name,
        client_id=environ.get("JUPYTERHUB_CLIENT_ID") or f"service-{name}",
        base_url=environ.get("JUPYTERHUB_BASE_URL", "/"),
        callback_url=environ.get("JUPYTERHUB_OAUTH_CALLBACK_URL") or f"{prefix}oauth_callback",
        access_scopes=scopes,
        public_url=environ.get("JUPYTERHUB_HOST", ""),
    )


def _kubernetes(environ: Mapping[str, str]) -> KubernetesConfig | None:
    """Return the settings of a cluster on Kubernetes; None for a local one."""
    value = environ.get("RUNAI_CLUSTER", "")
    if value in {"", "local"}:
        return None
    if value != "kubernetes":
        raise _invalid("RUNAI_CLUSTER", environ, "local or kubernetes")
    own = environ.get("RUNAI_NAMESPACE") or "runai"
    return KubernetesConfig(
        namespace=environ.get("RUNAI_JOBS_NAMESPACE") or own,
        own_namespace=own,
        image=environ.get("RUNAI_JOBS_IMAGE", ""),
        jobs_ttl_s=_jobs_ttl(environ),
        jobs_limits={
            resource: _quantity(name, environ)
            for resource, name in (
                ("cpu", "RUNAI_JOBS_CPU_LIMIT"),
                ("memory", "RUNAI_JOBS_MEMORY_LIMIT"),
            )
            if environ.get(name)
        },
        jobs_token=_flag("RUNAI_JOBS_API_TOKEN", environ),
        default_project=environ.get("RUNAI_DEFAULT_PROJECT") or "default",
        pod=environ.get("RUNAI_POD", ""),
        alive_port=_count_or(0, "RUNAI_ALIVE_PORT", environ, MOST_PORT),
        agent_account=environ.get("RUNAI_AGENT_ACCOUNT") or f"{own}:runai-agent",
        reservation_image=environ.get("RUNAI_RESERVATION_IMAGE", ""),
        node_pool=environ.get("RUNAI_NODE_POOL", ""),
    )


def _required(name: str, environ: Mapping[str, str]) -> str:
    value = environ.get(name, "")
    if not value:
        raise InvalidRequest(
            f"{name} is not set.",
            hint="`runai up` sets it; hub_service/server/settings.py says what it is.",
        )
    return value


def _count(name: str, environ: Mapping[str, str], max_value: int = 1024) -> int:
    value = environ.get(name, "")
    if not (value.isascii() and value.isdecimal() and int(value) <= max_value):
        raise _invalid(name, environ, f"a whole number from 0 to {max_value}")
    return int(value)


def _count_or(default: T, name: str, environ: Mapping[str, str], max_value: int = 1024) -> int | T:
    return _count(name, environ, max_value) if environ.get(name) else default


def _memory(name: str, environ: Mapping[str, str]) -> int | None:
    """Return MiB, from a whole number of them, of G or of T; None if the variable is unset."""
    value = environ.get(name, "")
    if not value:
        return None
    try:
        return size_mib(value)
    except ValueError:
        raise _invalid(name, environ, "a size such as 56G or 500M") from None


def _quantity(name: str, environ: Mapping[str, str]) -> str:
    value = environ[name]
    if not _QUANTITY.fullmatch(value):
        raise _invalid(name, environ, "an amount as Kubernetes writes it: 500m, 2, 16Gi")
    return value


def _agent_token(environ: Mapping[str, str]) -> str:
    """Return the agents' token, which must not be the hub's."""
    token = environ.get("RUNAI_AGENT_TOKEN", "")
    if token and token == environ["RUNAI_HUB_TOKEN"]:
        raise InvalidRequest(
            "RUNAI_AGENT_TOKEN is the hub's token.",
            hint="Make one of its own: an agent may do nothing but report.",
        )
    return token


def _database(name: str, environ: Mapping[str, str]) -> str:
    """Return SQLAlchemy's URL of a PostgreSQL database; "" if the variable is unset."""
    value = environ.get(name, "")
    if value.startswith("postgresql://"):
        value = value.replace("postgresql://", "postgresql+psycopg://", 1)
    if value and not value.startswith("postgresql+psycopg://"):
        # Not `_invalid`, which repeats the value: it may contain a password.
        raise InvalidRequest(
            f"{name} is no address of a PostgreSQL database.",
            hint="It looks like postgresql://USER:PASSWORD@HOST/DATABASE; unset, a file is used.",
        )
    return value


def _elastic_rules(environ: Mapping[str, str]) -> ElasticRules:
    rules = ElasticRules()
    grow, cost = rules.grow_every_s, rules.resize_cost_s
    return ElasticRules(
        grow_every_s=float(_count_or(grow, "RUNAI_ELASTIC_GROW_EVERY", environ, DAY_S)),
        resize_cost_s=_count_or(cost, "RUNAI_ELASTIC_RESIZE_COST", environ, DAY_S),
        pays_from=_part("RUNAI_ELASTIC_PAYS_FROM", environ)
        if environ.get("RUNAI_ELASTIC_PAYS_FROM")
        else rules.pays_from,
    )


def _jobs_ttl(environ: Mapping[str, str]) -> int | None:
    return _count_or(None, "RUNAI_JOBS_TTL", environ, 365 * DAY_S)


def _retention(environ: Mapping[str, str]) -> RetentionPolicy:
    retention = RetentionPolicy()
    if (seconds := _jobs_ttl(environ)) is not None:
        retention = replace(retention, max_age_s=max(float(seconds), retention.min_age_s))
    return replace(
        retention,
        max_finished=_count_or(retention.max_finished, "RUNAI_JOBS_KEPT", environ, MOST_AT_ONCE),
    )


def _allowance(environ: Mapping[str, str]) -> Allowance:
    return Allowance(
        calls_per_s=_count_or(30, "RUNAI_USER_CALLS", environ, MOST_AT_ONCE),
        open_at_once=_count_or(200, "RUNAI_USER_OPEN", environ, MOST_AT_ONCE),
        submissions_at_once=_count_or(256, "RUNAI_SUBMISSIONS_AT_ONCE", environ, MOST_AT_ONCE),
        unfinished_jobs=_count_or(20_000, "RUNAI_USER_JOBS", environ, MOST_AT_ONCE),
    )


def _part(name: str, environ: Mapping[str, str]) -> float | None:
    """Return a number from 0 to 1; None for "off"."""
    value = environ.get(name, "")
    if value == "off":
        return None
    try:
        part = float(value)
    except ValueError:
        part = -1.0
    if not 0 <= part <= 1:  # true for NaN too
        raise _invalid(name, environ, "a number from 0 to 1, such as 0.1, or off")
    return part


def _flag(name: str, environ: Mapping[str, str]) -> bool:
    value = environ.get(name, "")
    if value not in {"", "0", "1"}:
        raise _invalid(name, environ, "1 or 0")
    return value == "1"


def _gpu_sharing(environ: Mapping[str, str]) -> Literal["timeslice", "mps"]:
    value = environ.get("RUNAI_GPU_SHARING", "")
    if value == "mps":
        return "mps"
    if value in {"", "timeslice"}:
        return "timeslice"
    raise _invalid("RUNAI_GPU_SHARING", environ, "timeslice or mps")


def _log_level(environ: Mapping[str, str]) -> str:
    value = environ.get("RUNAI_LOG_LEVEL", "INFO").upper()
    if value not in {"DEBUG", "INFO", "WARNING", "ERROR"}:
        raise _invalid("RUNAI_LOG_LEVEL", environ, "DEBUG, INFO, WARNING or ERROR")
    return value


def log_format(environ: Mapping[str, str]) -> LogFormat:
    """Return the log format of the service and its agent.

    Raises:
        InvalidRequest: the variable has an invalid value.
    """
    value = environ.get("RUNAI_LOG_FORMAT", "") or "text"
    if value == "json":
        return "json"
    if value != "text":
        raise _invalid("RUNAI_LOG_FORMAT", environ, "text or json")
    return "text"


def _invalid(name: str, environ: Mapping[str, str], expected: str) -> InvalidRequest:
    return InvalidRequest(f"{name} is {environ.get(name, '')!r}.", hint=f"It must be {expected}.")
