"""CPU, memory and disk that a job's pod may use, and whether it gets a token of the API. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runai.hub_service.clusters.kubernetes.amounts import smaller, times
from runai.hub_service.clusters.records import WorkloadSpec
from runai.hub_service.scheduler.quantity import WHOLE_GPU

_BOUNDED = ("cpu", "memory", "ephemeral-storage")


@dataclass(frozen=True, slots=True)
class Confinement:
    """What the admin says of the pods of all jobs; by default they may do what notebooks may."""

    limits: Mapping[str, str] = field(default_factory=dict)
    """Limits of each pod, such as `{"cpu": "8"}`, in place of those of its notebook."""
    has_token: bool = False
    """Whether pods get the token of their service account, which the API server believes."""

    def resources(self, spec: WorkloadSpec, notebook: Mapping[str, Any]) -> dict[str, Any]:
        """Return limits and requests of a worker's container, but for its devices.

        A notebook's limits count once for each GPU of the worker. Requests are the notebook's own,
        once: Kubernetes would take the limits for them, and a job would wait for idle CPUs.
        """
        count = max(1, (spec.gpus_max or spec.gpus) // WHOLE_GPU)
        allowed, asked = (notebook.get(kind) or {} for kind in ("limits", "requests"))
        limits = {name: times(str(allowed[name]), count) for name in _BOUNDED if name in allowed}
        limits |= {name: amount for name, amount in self.limits.items() if amount}
        requests = dict.fromkeys(limits, "0")
        requests |= {name: str(asked[name]) for name in _BOUNDED if name in asked}
        for name in limits.keys() & requests.keys():
            requests[name] = smaller(requests[name], limits[name])
        return {"limits": limits, "requests": requests}


AS_NOTEBOOKS = Confinement()
