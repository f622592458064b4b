"""Kubeflow's PyTorchJob, parsed as a Job: master and workers are one gang and one workload.

The training-operator creates the pods, and deletes them while `spec.runPolicy.suspend` is set, so
it is suspended and resumed like a batch Job. With an elasticPolicy it runs with as many workers as
fit: torchrun finds the members. Pods inherit project, kind and priority from the object unless they
have their own. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice

from runai.hub_service.clusters.kubernetes.client.api import Object
from runai.hub_service.clusters.kubernetes.objects.amounts import when
from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    PRIORITIES,
    PYTORCH_JOB,
    QUEUE_REASON,
    ROLE,
    Pod,
)
from runai.hub_service.clusters.kubernetes.objects.jobs import (
    MOVED,
    PAUSES,
    STARTS,
    SUSPENDED_BY,
    Job,
    pod_from_template,
    queued_by_kueue,
    ran_noted,
    timed_out_noted,
    times_noted,
)
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.amounts import MOST_WORKERS

PYTORCH_JOBS = "/apis/kubeflow.org/v1/pytorchjobs"
PYTORCH_KIND = "pytorchjobs.kubeflow.org"
"""Name of its CustomResourceDefinition."""
_ROLES = ("Master", "Worker")
"""In the operator's order of ranks: the master is first."""
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
    min_workers = _min_workers(spec)
    pods = (pod for role in _ROLES for pod in _workers(found, role, is_fixed=not min_workers))
    # A PyTorchJob with more workers is refused, so these templates suffice.
    templates = tuple(islice(pods, MOST_WORKERS))
    roles = (spec["pytorchReplicaSpecs"].get(role) for role in _ROLES)
    number = sum(role.get("replicas", 1) for role in roles if role is not None)
    conditions = {c["type"]: c for c in status.get("conditions") or () if c["status"] == "True"}
    outcome: Object = next((conditions[kind] for kind in _OUTCOMES if kind in conditions), {})
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
        # A pause deletes finished pods, too.
        succeeded=0 if is_suspended else sum(each.get("succeeded", 0) for each in counts),
        # A master may ask for no GPU: the worker with the largest request represents all.
        template=max(templates, key=_gpus),
        templates=templates,
        min_workers=min_workers,
        kind=PYTORCH_JOB,
        is_queued=is_suspended and QUEUE_REASON in annotations,
        is_freed=not is_suspended and QUEUE_REASON in annotations,
        may_be_suspended=_can_be_suspended(metadata, policy),
        outcome=_OUTCOMES.get(outcome.get("type", ""), ""),
        why=outcome.get("message", ""),
        finished=when(outcome["lastTransitionTime"]) if outcome else None,
        deleted=when(deleted) if (deleted := metadata.get("deletionTimestamp")) else None,
        failed=sum(each.get("failed", 0) for each in counts),
        starts=times_noted(annotations, STARTS),
        pauses=times_noted(annotations, PAUSES),
        moved=annotations.get(MOVED, ""),
        ran=ran_noted(annotations),
        timed_out=timed_out_noted(annotations),
        suspended_by=annotations.get(SUSPENDED_BY, ""),
        has_notes="annotations" in metadata,
        has_policy="runPolicy" in spec,
        has_suspend="suspend" in policy,
    )


def adopted(pods: Iterable[Pod], jobs: Mapping[str, Job]) -> list[Pod]:
    """Return pods, with index and project of their PyTorchJob filled in; `jobs` are by UID.

    The operator numbers the pods of each role separately, and gives them only their template's
    labels.
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
    worker = job.template if index is None else job.templates[index]
    return replace(
        pod,
        index=index,
        project=worker.project,
        kind=worker.kind,
        # Only the pod has the number of its PriorityClass.
        priority=pod.priority if worker.priority == PRIORITIES[worker.kind] else worker.priority,
        is_elastic=worker.is_elastic,
        remark=worker.remark,
    )


def _min_workers(spec: Object) -> int:
    """Return the minimum of workers; 0: all of them are needed.

    With a master the operator gives each pod a fixed world size. Without restarts it takes a
    stopped worker for the failure of the whole job (training-operator 1.8).
    """
    min_replicas: int = (spec.get("elasticPolicy") or {}).get("minReplicas") or 0
    workers = spec["pytorchReplicaSpecs"].get("Worker", {})
    is_flexible = "Master" not in spec["pytorchReplicaSpecs"]
    may_restart = workers.get("restartPolicy", "Never") != "Never"
    return (
        min_replicas
        if is_flexible and may_restart and min_replicas < workers.get("replicas", 1)
        else 0
    )


def _workers(found: Object, role: str, *, is_fixed: bool) -> Iterable[Pod]:
    """Yield the workers of one role as pods that are not created yet."""
    replica_spec = found["spec"]["pytorchReplicaSpecs"].get(role)
    if replica_spec is None:
        return
    metadata = found["metadata"]
    labels = {**metadata.get("labels", {}), ROLE: role.lower()}
    template = pod_from_template(found, replica_spec["template"], PYTORCH_JOB, labels)
    remark = _NOT_ELASTIC if is_fixed and template.is_elastic else ""
    for number in range(replica_spec.get("replicas", 1)):
        yield replace(template, remark=remark, name=f"{metadata['name']}-{role.lower()}-{number}")


def _gpus(pod: Pod) -> MilliGpu:
    return pod.milli_gpus()


def _can_be_suspended(metadata: Object, policy: Object) -> bool:
    """Return True if no other controller, such as Kueue, decides when it runs."""
    owners = [o for o in metadata.get("ownerReferences", ()) if o.get("controller")]
    is_own = not owners and policy.get("managedBy", _OPERATOR) == _OPERATOR
    return is_own and not queued_by_kueue(metadata)
