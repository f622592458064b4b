"""Kubeflow's PyTorchJob, read as a Job: its master and its workers are one gang, and one workload.

The training-operator makes the pods and, while `spec.runPolicy.suspend` stands, takes them away:
so it is held and let go as a batch Job is. One with an elasticPolicy runs with as many of its
workers as there is room for: torchrun finds out who is there. What the object says (project, kind,
priority) its pods are taken to say too, where they do not. Pure; called by `following`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice

from runai.hub_service.clusters.kubernetes.client.api import Object
from runai.hub_service.clusters.kubernetes.objects.amounts import when
from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    HELD,
    PRIORITIES,
    PYTORCH_JOB,
    ROLE,
    Pod,
)
from runai.hub_service.clusters.kubernetes.objects.jobs import (
    PAUSES,
    STARTS,
    SUSPENDED_BY,
    Job,
    drawn_pod,
    queued_by_kueue,
    times_noted,
)
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.amounts import MOST_WORKERS

PYTORCH_JOBS = "/apis/kubeflow.org/v1/pytorchjobs"
PYTORCH_KIND = "pytorchjobs.kubeflow.org"
"""What its CustomResourceDefinition is called."""
_ROLES = ("Master", "Worker")
"""As the operator counts ranks: the master is the first."""
_OPERATOR = "kubeflow.org/training-operator"
_OUTCOMES = {"Succeeded": "Complete", "Failed": "Failed"}


_NOT_ELASTIC = (
    "It keeps all of its workers. To run with fewer, give the PyTorchJob an elasticPolicy with"
    " minReplicas below its workers' replicas, no master, restartPolicy OnFailure, and torchrun."
)


def read_pytorch_job(found: Object) -> Job:
    """Parse a PyTorchJob."""
    metadata, spec, status = found["metadata"], found["spec"], found.get("status", {})
    annotations, policy = metadata.get("annotations", {}), spec.get("runPolicy", {})
    least = _least(spec)
    drawn = (pod for role in _ROLES for pod in _workers(found, role, is_fixed=not least))
    # One of more workers is refused: those that stand for all of them are enough.
    templates = tuple(islice(drawn, MOST_WORKERS))
    roles = (spec["pytorchReplicaSpecs"].get(role) for role in _ROLES)
    number = sum(role.get("replicas", 1) for role in roles if role is not None)
    said = {c["type"]: c for c in status.get("conditions") or () if c["status"] == "True"}
    outcome: Object = next((said[kind] for kind in _OUTCOMES if kind in said), {})
    is_suspended = bool(policy.get("suspend"))
    counts = (status.get("replicaStatuses") or {}).values()
    return Job(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        created=when(metadata["creationTimestamp"]),
        completions=number,
        parallelism=number,
        is_indexed=True,
        is_suspended=is_suspended,
        # A pause takes the pods of those away too that are done.
        succeeded=0 if is_suspended else sum(each.get("succeeded", 0) for each in counts),
        # A master may ask for no GPU: whoever asks for most stands for all.
        template=max(templates, key=_gpus),
        templates=templates,
        least=least,
        kind=PYTORCH_JOB,
        is_held=is_suspended and HELD in annotations,
        is_freed=not is_suspended and HELD in annotations,
        may_be_held=_may_be_held(metadata, policy),
        outcome=_OUTCOMES.get(outcome.get("type", ""), ""),
        why=outcome.get("message", ""),
        finished=when(outcome["lastTransitionTime"]) if outcome else None,
        deleted=when(deleted) if (deleted := metadata.get("deletionTimestamp")) else None,
        failed=sum(each.get("failed", 0) for each in counts),
        starts=times_noted(annotations, STARTS),
        pauses=times_noted(annotations, PAUSES),
        suspended_by=annotations.get(SUSPENDED_BY, ""),
        has_notes="annotations" in metadata,
        has_policy="runPolicy" in spec,
        has_suspend="suspend" in policy,
    )


def adopted(pods: Iterable[Pod], jobs: Mapping[str, Job]) -> list[Pod]:
    """Return pods; those of PyTorchJobs as their job's: its numbers, its project. `jobs` by UID.

    The operator numbers the pods of each role by themselves, and gives them the labels of their
    template alone.
    """
    return [
        pod
        if pod.owner is None or pod.owner.kind != PYTORCH_JOB or pod.owner.uid not in jobs
        else _adopted(pod, jobs[pod.owner.uid])
        for pod in pods
    ]


def _adopted(pod: Pod, job: Job) -> Pod:
    of_role = [i for i, template in enumerate(job.templates) if template.role == pod.role]
    is_known = pod.index is not None and pod.index < len(of_role)
    index = of_role[pod.index or 0] if is_known else None
    said = job.template if index is None else job.templates[index]
    return replace(
        pod,
        index=index,
        project=said.project,
        kind=said.kind,
        # Its PriorityClass is known of the pod alone.
        priority=pod.priority if said.priority == PRIORITIES[said.kind] else said.priority,
        is_elastic=said.is_elastic,
        remark=said.remark,
    )


def _least(spec: Object) -> int:
    """Return how many workers suffice; 0: all of them are needed.

    With a master the operator tells each pod of a fixed number; and where a worker is never
    restarted, it takes one that was stopped for the failure of all (training-operator 1.8).
    """
    least: int = (spec.get("elasticPolicy") or {}).get("minReplicas") or 0
    workers = spec["pytorchReplicaSpecs"].get("Worker", {})
    is_told = "Master" not in spec["pytorchReplicaSpecs"]
    may_go = workers.get("restartPolicy", "Never") != "Never"
    return least if is_told and may_go and least < workers.get("replicas", 1) else 0


def _workers(found: Object, role: str, *, is_fixed: bool) -> Iterable[Pod]:
    """Yield the workers of one role, none of which is made yet."""
    wanted = found["spec"]["pytorchReplicaSpecs"].get(role)
    if wanted is None:
        return
    metadata = found["metadata"]
    labels = {**metadata.get("labels", {}), ROLE: role.lower()}
    drawn = drawn_pod(found, wanted["template"], PYTORCH_JOB, labels)
    remark = _NOT_ELASTIC if is_fixed and drawn.is_elastic else ""
    for number in range(wanted.get("replicas", 1)):
        yield replace(drawn, remark=remark, name=f"{metadata['name']}-{role.lower()}-{number}")


def _gpus(pod: Pod) -> MilliGpu:
    return pod.milli_gpus()


def _may_be_held(metadata: Object, policy: Object) -> bool:
    """Tell whether nobody else, such as Kueue, says when it runs."""
    owners = [o for o in metadata.get("ownerReferences", ()) if o.get("controller")]
    is_own = not owners and policy.get("managedBy", _OPERATOR) == _OPERATOR
    return is_own and not queued_by_kueue(metadata)
