"""Obstacles to the start of a bound pod's containers: image, volumes, device.

The kubelet reports them in the pod's status. A pod that runs has none.
"""

import time
from collections.abc import Sequence
from typing import Final

from runai.hub_service.clusters.kubernetes.client.api import Object
from runai.hub_service.clusters.kubernetes.objects.amounts import when

LONGEST: Final = 300
"""Characters of a kubelet's message; a runtime's may have a page."""
_PROGRESS: Final = frozenset({"", "ContainerCreating", "PodInitializing"})


def obstacle(status: Object, claims: Sequence[str] = ()) -> str:
    """Return why a bound pod's containers do not run, as a clause; "" if they do.

    `claims`: names of its volume claims.
    """
    if status.get("phase") != "Pending":
        return ""
    found = [
        (each.get("image", ""), waiting)
        for kind in ("initContainerStatuses", "containerStatuses")
        for each in status.get(kind, ())
        if (waiting := each.get("state", {}).get("waiting")) is not None
    ]
    for _image, waiting in found:
        if (word := waiting.get("reason", "")) not in _PROGRESS:
            message = waiting.get("message", "")[:LONGEST]
            return f"it does not run yet: {word}{': ' if message else ''}{message}"
    for each in status.get("conditions", ()):
        # Volumes are mounted and the network is set up before the first image is pulled.
        if found and each["type"] == "PodReadyToStartContainers" and "lastTransitionTime" in each:
            since = time.strftime("%H:%M", time.localtime(when(each["lastTransitionTime"])))
            if each.get("status") == "True":
                return f"its image {found[0][0]} is being pulled since {since}"
            names = f" ({', '.join(claims)})" if claims else ""
            return f"its volumes{names} or its network are not ready since {since}"
    return ""
