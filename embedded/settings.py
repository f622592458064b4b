"""What `runai up` was asked for, as a type; handed to the hub's process by environment.

`runai up` becomes JupyterHub (exec), whose arguments are its own: the environment is the way
between the two. Written by `up`, read by `hub`; the service reads most of the same variables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ANSWERS_WITHIN_S", "DEFAULT_PORT", "Settings"]

DEFAULT_PORT = 8000
ANSWERS_WITHIN_S = 60


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of `runai up`, checked."""

    data_dir: Path
    port: int = DEFAULT_PORT
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

    @property
    def url(self) -> str:
        """Return the address that a browser opens."""
        return f"http://127.0.0.1:{self.port}/"

    @property
    def api_url(self) -> str:
        """Return the service's root as sessions, jobs and the command line see it."""
        return f"{self.url}services/runai/"

    def environment(self) -> dict[str, str]:
        """Return the variables that carry these settings to the hub and the service."""
        return {
            "RUNAI_DATA_DIR": str(self.data_dir),
            "RUNAI_PORT": str(self.port),
            "RUNAI_GPUS": "auto" if self.gpus is None else str(self.gpus),
            "RUNAI_SIMULATE": "" if self.simulate is None else str(self.simulate),
            "RUNAI_PROJECTS": "" if self.projects is None else str(self.projects),
            "RUNAI_POLICY": "" if self.policy is None else str(self.policy),
            "RUNAI_SYSTEM_USERS": "1" if self.system_users else "",
            "RUNAI_GPU_SHARING": self.gpu_sharing,
            "RUNAI_API_URL": self.api_url,
            "RUNAI_ANSWERS_WITHIN": str(self.answers_within),
        }

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Settings":
        """Read back what `environment` wrote."""
        gpus, simulate = environ.get("RUNAI_GPUS", "auto"), environ.get("RUNAI_SIMULATE", "")
        projects, policy = environ.get("RUNAI_PROJECTS", ""), environ.get("RUNAI_POLICY", "")
        return cls(
            data_dir=Path(environ["RUNAI_DATA_DIR"]),
            port=int(environ.get("RUNAI_PORT", DEFAULT_PORT)),
            gpus=None if gpus in {"", "auto"} else int(gpus),
            simulate=int(simulate) if simulate else None,
            projects=Path(projects) if projects else None,
            policy=Path(policy) if policy else None,
            system_users=environ.get("RUNAI_SYSTEM_USERS", "") == "1",
            gpu_sharing=environ.get("RUNAI_GPU_SHARING") or "timeslice",
            answers_within=int(environ.get("RUNAI_ANSWERS_WITHIN") or ANSWERS_WITHIN_S),
        )
