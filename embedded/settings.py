"""What `runai up` was asked for, as a type; handed to the hub's process by environment.

`runai up` becomes JupyterHub (exec), whose arguments are its own: the environment is the way
between the two. Written by `up`, read by `hub`; the service reads most of the same variables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_PORT = 8000
ANSWERS_WITHIN_S = 60


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of `runai up`, checked."""

    data_dir: Path
    ip: str = "127.0.0.1"
    """Where the proxy listens; "": on every address."""
    port: int = DEFAULT_PORT
    base_url: str = "/"
    """Path of everything, with a slash at both ends."""
    domain: str = ""
    """Public name to get a certificate for over ACME."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_internal: bool = False
    """Whether an authority of the proxy's own certifies this machine."""
    gpus: int | None = None
    """None: those that the machine has, else simulated ones."""
    simulate: int | None = None
    """That many simulated GPUs, whatever the machine has."""
    projects: Path | None = None
    policy: Path | None = None
    system_users: bool = False
    gpu_sharing: str = "timeslice"
    """`timeslice` or `mps`."""
    answers_within: int = ANSWERS_WITHIN_S
    """Seconds; a service that answers nothing for longer is started anew. 0: never."""

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
            "RUNAI_ANSWERS_WITHIN": str(self.answers_within),
        }

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Settings":
        """Read back what `environment` wrote."""
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
            answers_within=int(environ.get("RUNAI_ANSWERS_WITHIN") or ANSWERS_WITHIN_S),
        )


def _path(name: str, environ: Mapping[str, str]) -> Path | None:
    return Path(value) if (value := environ.get(name, "")) else None
