"""Volume topology: nodes that a pod's volumes allow, and volume binding.

These are the rules of kube-scheduler's VolumeBinding: a bound volume limits the nodes that may
mount it; a claim with a class that waits for its first consumer is bound, or provisioned, once its
pod's node has been chosen. Pure.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from runai.hub_service.clusters.kubernetes.client.api import Object
from runai.hub_service.clusters.kubernetes.objects.amounts import memory_mib
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.node_eligibility import (
    Term,
    any_term,
    may_mount,
    on_nodes,
    read_terms,
)

SELECTED_NODE = "volume.kubernetes.io/selected-node"
VOLUMES = "/api/v1/persistentvolumes"
_BOUND_BY_US = "pv.kubernetes.io/bound-by-controller"
_NOBODY_PROVIDES = "kubernetes.io/no-provisioner"


@dataclass(frozen=True, slots=True)
class Claim:
    """A persistent volume claim."""

    uid: str
    namespace: str
    name: str
    class_name: str
    modes: frozenset[str]
    mib: int
    volume_mode: str
    is_bound: bool
    volume: str = ""
    node: str = ""
    """The node for which a volume is being provisioned; "" if none was chosen."""

    @property
    def path(self) -> str:
        """Return the path of the claim in the API."""
        return f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims/{self.name}"


@dataclass(frozen=True, slots=True)
class Volume:
    """A persistent volume."""

    name: str
    version: str = field(compare=False)
    class_name: str
    modes: frozenset[str]
    mib: int
    volume_mode: str
    terms: tuple[Term, ...] | None
    """Terms of which one must hold for the node that mounts it; None: any node."""
    claim: str = ""
    """UID of its claim; "" if free, "?" if reserved."""

    def suits(self, claim: Claim) -> bool:
        """Return True if it is free for a claim and satisfies it."""
        return (
            self.claim in ("", claim.uid)
            and self.class_name == claim.class_name
            and self.volume_mode == claim.volume_mode
            and self.mib >= claim.mib
            and self.modes >= claim.modes
        )


@dataclass(frozen=True, slots=True)
class StorageClass:
    """Provisioning rules of one storage class."""

    waits: bool
    """True if a volume is bound only after its first pod has a node."""
    is_provided: bool
    """True if a provisioner creates its volumes."""
    terms: tuple[Term, ...] | None = None
    """Nodes where its volumes may be; None: anywhere."""


@dataclass(frozen=True, slots=True)
class Storage:
    """All claims (by `namespace/name`), volumes and classes (by name)."""

    claims: Mapping[str, Claim]
    volumes: Mapping[str, Volume]
    classes: Mapping[str, StorageClass]

    def waiting(self, pod: Pod) -> list[Claim]:
        """Return the claims of a pod that are bound once its node is chosen."""
        found = (self.claims.get(f"{pod.namespace}/{name}") for name in pod.claims)
        return [c for c in found if c is not None and not c.is_bound and self._waits(c)]

    def choose(
        self, claim: Claim, name: str, labels: Mapping[str, str], taken: Collection[str]
    ) -> Volume | None:
        """Return the smallest free volume for a claim on a node, or None."""
        if claim.node:
            return None  # one is being provisioned
        free = [
            volume
            for volume in self.volumes.values()
            if volume.suits(claim)
            and volume.name not in taken
            and may_mount(volume.terms, name, labels)
        ]
        return min(free, key=lambda volume: (volume.mib, volume.name), default=None)

    def terms(self, claim: Claim) -> tuple[Term, ...] | None:
        """Return where a waiting claim may be bound; None: anywhere."""
        if claim.node:
            return on_nodes(claim.node)
        of_class = self.classes[claim.class_name]
        there = [v.terms for v in self.volumes.values() if v.suits(claim)]
        if of_class.is_provided:
            there.append(of_class.terms)
        return any_term(there)

    def _waits(self, claim: Claim) -> bool:
        of_class = self.classes.get(claim.class_name)
        return of_class is not None and of_class.waits


def placed(pod: Pod, storage: Storage) -> Pod:
    """Return a waiting pod with its volumes' node demands, or why it must wait."""
    demanded = []
    for name in pod.claims:
        claim = storage.claims.get(f"{pod.namespace}/{name}")
        if claim is None:
            continue  # the kubelet reports it; claims without a class are unaffected
        if claim.is_bound:
            volume = storage.volumes.get(claim.volume)
            terms = None if volume is None else volume.terms
        elif (of_class := storage.classes.get(claim.class_name)) is None:
            continue
        elif of_class.waits:
            terms = storage.terms(claim)
        else:
            return replace(pod, unsupported=f"its volume {name} is not there yet")
        if terms is not None:
            demanded.append(terms)
    if not demanded:
        return pod
    return replace(pod, demands=replace(pod.demands, volumes=tuple(demanded)))


def selected(claim: Claim, node: str) -> Mapping[str, object]:
    """Return the patch that requests a volume for a claim on a node."""
    return {"metadata": {"uid": claim.uid, "annotations": {SELECTED_NODE: node}}}


def bind_patch(volume: Volume, claim: Claim) -> Mapping[str, object]:
    """Return the patch that binds a volume to a claim, for the volume's current version."""
    owner = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": claim.uid,
    }
    notes = {_BOUND_BY_US: "yes"}
    return {
        "metadata": {"resourceVersion": volume.version, "annotations": notes},
        "spec": {"claimRef": owner},
    }


def read_claim(found: Object) -> Claim:
    """Parse a claim."""
    metadata, spec = found["metadata"], found["spec"]
    notes = metadata.get("annotations", {})
    return Claim(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        class_name=str(spec.get("storageClassName") or ""),
        modes=frozenset(spec.get("accessModes", ())),
        mib=memory_mib(spec.get("resources", {}).get("requests", {}).get("storage", "0")),
        volume_mode=spec.get("volumeMode", "Filesystem"),
        is_bound=found.get("status", {}).get("phase") == "Bound",
        volume=spec.get("volumeName", ""),
        node=notes.get(SELECTED_NODE, ""),
    )


def read_volume(found: Object) -> Volume:
    """Parse a persistent volume; a released or failed one suits no claim."""
    metadata, spec = found["metadata"], found["spec"]
    required = spec.get("nodeAffinity", {}).get("required")
    owner = spec.get("claimRef")
    is_free = found.get("status", {}).get("phase", "Pending") in ("Available", "Pending")
    taken = "" if owner is None and is_free else "?"
    return Volume(
        name=metadata["name"],
        version=metadata["resourceVersion"],
        class_name=str(spec.get("storageClassName") or ""),
        modes=frozenset(spec.get("accessModes", ())),
        mib=memory_mib(spec.get("capacity", {}).get("storage", "0")),
        volume_mode=spec.get("volumeMode", "Filesystem"),
        terms=None if required is None else read_terms(required.get("nodeSelectorTerms", ())),
        claim=taken if owner is None else owner.get("uid", "?"),
    )


def read_class(found: Object) -> StorageClass:
    """Parse a storage class."""
    allowed = found.get("allowedTopologies")
    rules = (
        {"matchExpressions": [{**e, "operator": "In"} for e in t.get("matchLabelExpressions", ())]}
        for t in allowed or ()
    )
    return StorageClass(
        waits=found.get("volumeBindingMode") == "WaitForFirstConsumer",
        is_provided=found["provisioner"] != _NOBODY_PROVIDES,
        terms=read_terms(rules) if allowed else None,
    )
