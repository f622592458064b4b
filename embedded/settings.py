"""The settings of `runai up`, passed to the hub as environment variables.

`runai up` executes JupyterHub, which parses its own arguments: hence the environment. The service
reads most of these variables, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runai.hub_service.processes.shell_environment import SHARE_PROXY_PASSWORD

DEFAULT_PORT = 8000
ANSWERS_WITHIN_S = 60


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of `runai up`, checked."""

    data_dir: Path
    ip: str = "127.0.0.1"
    """Address that the proxy listens on; "": every address."""
    port: int = DEFAULT_PORT
    base_url: str = "/"
    """URL prefix, with a slash at both ends."""
    domain: str = ""
    """Public name to get a certificate for over ACME."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_internal: bool = False
    """True if the proxy's own authority certifies this machine."""
    gpus: int | None = None
    """None: the machine's GPUs, else simulated ones."""
    simulate: int | None = None
    """Number of simulated GPUs, used instead of the machine's."""
    projects: Path | None = None
    policy: Path | None = None
    system_users: bool = False
    gpu_sharing: str = "timeslice"
    """`timeslice` or `mps`."""
    share_proxy_password: bool = False
    """True if sessions and jobs get proxy addresses with a user or password."""
    answers_within: int = ANSWERS_WITHIN_S
    """Seconds without an answer after which the service is restarted. 0: never."""

    def environment(self) -> dict[str, str]:
        """Return the variables that carry these settings to the hub and the service."""
        return {
            "RUNAI_DATA_DIR": str(self.data_dir),
            "RUNAI_IP": self.ip,
            "RUNAI_PORT": str(self.port),
            "RUNAI_BASE_URL": self.base_url,
            "RUNAI_DOMAIN": self.domain,
            "RUNAI_TLS_CERT": str(self.tls_cert or ""),
            "RUNAI_TLS_KEY": str(self.tls_key or ""),
            "RUNAI_TLS_INTERNAL": "1" if self.tls_internal else "",
            "RUNAI_GPUS": "auto" if self.gpus is None else str(self.gpus),
            "RUNAI_SIMULATE": "" if self.simulate is None else str(self.simulate),
            "RUNAI_PROJECTS": "" if self.projects is None else str(self.projects),
            "RUNAI_POLICY": "" if self.policy is None else str(self.policy),
            "RUNAI_SYSTEM_USERS": "1" if self.system_users else "",
            "RUNAI_GPU_SHARING": self.gpu_sharing,
            SHARE_PROXY_PASSWORD: "1" if self.share_proxy_password else "",
            "RUNAI_ANSWERS_WITHIN": str(self.answers_within),
        }

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Settings":
        """Parse the variables of `environment`."""
        gpus, simulate = environ.get("RUNAI_GPUS", "auto"), environ.get("RUNAI_SIMULATE", "")
        return cls(
            data_dir=Path(environ["RUNAI_DATA_DIR"]),
            ip=environ.get("RUNAI_IP", "127.0.0.1"),
            port=int(environ.get("RUNAI_PORT", DEFAULT_PORT)),
            base_url=environ.get("RUNAI_BASE_URL", "/"),
            domain=environ.get("RUNAI_DOMAIN", ""),
            tls_cert=_path("RUNAI_TLS_CERT", environ),
            tls_key=_path("RUNAI_TLS_KEY", environ),
            tls_internal=environ.get("RUNAI_TLS_INTERNAL", "") == "1",
            gpus=None if gpus in {"", "auto"} else int(gpus),
            simulate=int(simulate) if simulate else None,
            projects=_path("RUNAI_PROJECTS", environ),
            policy=_path("RUNAI_POLICY", environ),
            system_users=environ.get("RUNAI_SYSTEM_USERS", "") == "1",
            gpu_sharing=environ.get("RUNAI_GPU_SHARING") or "timeslice",
            share_proxy_password=environ.get(SHARE_PROXY_PASSWORD, "") == "1",
            answers_within=int(environ.get("RUNAI_ANSWERS_WITHIN") or ANSWERS_WITHIN_S),
        )


def _path(name: str, environ: Mapping[str, str]) -> Path | None:
    return Path(value) if (value := environ.get(name, "")) else None
