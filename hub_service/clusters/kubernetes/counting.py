"""Whether Kubernetes' Job controller counts how a pod ends, and how a pause is kept from its count.

The controller has a finalizer on each pod that it is still to count. From those that it stops for
its own reasons (a suspended Job's, a smaller one's) it takes it, and deletes them then: they are no
failures, and others are made at once, not after a back-off of up to ten minutes. Whoever is paused
by us leaves the same way (ADR 0023). Pure; `acting` and `doubts` send what is written here.
"""

from collections.abc import Mapping
from typing import Any, Literal

from runai.hub_service.clusters.kubernetes.api import Object

FINALIZER = "batch.kubernetes.io/job-tracking"
LEAVING = "runai/leaving"
"""Annotation: we took the finalizer, since the pod is about to be evicted."""

Counting = Literal["", "counted", "left out"]
"""By no Job controller; by one; by none any more, since we are about to evict it."""


def read_counting(metadata: Object) -> Counting:
    """Say who counts how a pod ends."""
    if FINALIZER in metadata.get("finalizers", ()):
        return "counted"
    annotations: Mapping[str, str] = metadata.get("annotations", {})
    return "left out" if LEAVING in annotations else ""


def left_out(uid: str) -> dict[str, Any]:
    """Return the change (strategic merge) by which a pod's end is not counted any more."""
    taken = {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}
    return {"metadata": {"uid": uid, "annotations": {LEAVING: "1"}, **taken}}


def counted_again(uid: str) -> dict[str, Any]:
    """Return the change that takes that back: the pod stays after all."""
    return {"metadata": {"uid": uid, "annotations": {LEAVING: None}, "finalizers": [FINALIZER]}}
