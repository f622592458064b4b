"""Routes of measurements: usage over a range, and the agents' samples."""

import asyncio
import json
from collections.abc import Container, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from runai.hub_service.api.auth.permissions import Action, Actor, authorise, may
from runai.hub_service.api.services.platform import Caller, Platform, PlatformDep
from runai.hub_service.api.views.device_views import agent_reply
from runai.hub_service.ledger import Usage, UsageFilter
from runai.hub_service.model.cluster import NodeReport
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import WorkloadId, WorkloadSpec
from runai.hub_service.wire.base_schema import Time
from runai.hub_service.wire.errors import Forbidden, InvalidRequest, NotFound
from runai.hub_service.wire.reports import AgentReply, AgentReport, PodDevices
from runai.hub_service.wire.usage_schemas import (
    PastWorkload,
    UsageKind,
    UsageOf,
    UsagePoint,
    UsageSeries,
)

router = APIRouter(tags=["usage"])

NOW_S = 10.0
"""Maximum age in seconds of a report's device faults. Older reports only add usage."""
SKEW_S = 2.0
"""Tolerated clock difference of a node in seconds, which includes the report's travel time."""

DEFAULT_RANGE = timedelta(hours=1)

LAST_S = 253_370_764_800.0
"""Start of the year 9999 in UTC, as Unix time."""
ONE_STEP_S = 86_400
"""Longest step in seconds: totals without a chart read fewer points."""


@router.get("/usage")
async def usage(
    platform: PlatformDep,
    caller: Caller,
    workload: str | None = None,
    project: str | None = None,
    user: str | None = None,
    node: str | None = None,
    since: Time | None = None,
    until: Time | None = None,
    step_s: Annotated[int | None, Query(ge=1, le=86400)] = None,
) -> UsageSeries:
    """Return allocated and utilized GPUs; by default of the whole cluster, over the last hour."""
    await _authorise(platform, caller, workload, project, user)
    if node is not None and (workload or project or user):
        raise InvalidRequest(
            "node is asked for together with something else.", hint="Ask for the node alone."
        )
    end = _seconds(until) if until else platform.clock()
    start = _start_of_range(since, end)
    usage_filter = UsageFilter(workload, project, user, node)
    ledger_usage = await platform.ledger.usage(usage_filter, start, end, step_s)
    return await _series(platform, ledger_usage)


@router.get("/usage/by/{kind}")
async def usage_by(
    kind: UsageKind,
    platform: PlatformDep,
    caller: Caller,
    since: Time | None = None,
    until: Time | None = None,
) -> list[UsageOf]:
    """Return averages of each project, node or visible user; by default over the last hour."""
    end = _seconds(until) if until else platform.clock()
    return await usage_of_each(platform, caller, kind, _start_of_range(since, end), end)


async def usage_of_each(
    platform: Platform, caller: Actor, kind: UsageKind, start: float, end: float
) -> list[UsageOf]:
    """Return the averages of each project, node, or user that the caller may see."""
    authorise(caller, Action.SEE_CLUSTER)
    names = platform.ledger.names(kind)
    if kind == "user" and not _may_see_all_users(caller):
        names = [name for name in names if name == caller.name]
    usages = []
    for name in names:
        usage = await platform.ledger.usage(UsageFilter(**{kind: name}), start, end, ONE_STEP_S)
        if usage.allocated_gpu_hours > 0:
            usages.append(
                UsageOf(
                    name=name,
                    allocated_average=usage.allocated_average,
                    utilized_average=usage.utilized_average,
                    allocated_gpu_hours=usage.allocated_gpu_hours,
                    used_gpu_hours=usage.used_gpu_hours,
                    idle_gpu_hours=usage.idle_gpu_hours,
                )
            )
    return usages


@router.get("/history")
async def history(platform: PlatformDep, caller: Caller, since: Time) -> list[PastWorkload]:
    """List every workload that held GPUs after a time, deleted ones too: a simulation's trace."""
    authorise(caller, Action.READ_PAST)
    kinds = {record.id: record.spec.kind for record in await platform.cluster.workloads()}
    return [
        PastWorkload(
            id=past.workload,
            project=past.project,
            user=past.user,
            kind=kinds.get(past.workload, "session" if past.is_session else "job"),
            submitted=_time(past.submitted),
            gpus=past.allocated_s / past.runtime_s,
            held_s=past.runtime_s,
            starts=past.starts,
            asked=json.loads(past.request) if past.request else None,
        )
        for past in await platform.ledger.past(_seconds(since))
        if past.runtime_s > 0 and past.allocated_s > 0
    ]


@router.post("/nodes/{node}/samples")
async def samples(
    node: str, report: AgentReport, platform: PlatformDep, caller: Caller
) -> AgentReply:
    """Store one interval of measurements from a node's agent; return what to measure next."""
    authorise(caller, Action.REPORT)
    if node != caller.name:
        raise Forbidden(f"The token of node {caller.name} reports about that node alone.")
    await asyncio.sleep(0)  # validating hundreds of holders took milliseconds: yield
    devices = await platform.cluster.devices()
    if node != report.node or node not in devices:
        raise NotFound(f"There is no node {node}.", hint=f"Nodes: {', '.join(devices)}.")
    report = _with_service_time(report, platform.clock())
    # Delayed reports describe the past, and a current one follows.
    if platform.clock() - report.at < NOW_S:
        faults = {device.device: device.fault for device in report.devices}
        await platform.cluster.note_faults(node, faults)
    if report.pods is not None:
        node_report = _node_report(report, report.pods, platform.clock())
        await platform.cluster.note_holders(node, node_report)
        devices = await platform.cluster.devices()
    uuids = {device.uuid for device in devices.get(node, ())}
    report = _without_foreign_entries(report, uuids, await platform.cluster.names())
    platform.ledger.record(platform.clock(), report.interval, await platform.holdings.now(), report)
    # Yield again. The ledger has the whole report by now; all that follows reads the current
    # holders and skips workloads that hold no device any more. If the agent sends the report again
    # meanwhile, the ledger counts it once, and so does the idle watch.
    await asyncio.sleep(0)
    await platform.idle.observe(report)
    allocations = await platform.cluster.allocations(node)
    workloads = {a.workload for a in allocations}
    for notice in platform.agent_reports.store(platform.clock(), report, workloads):
        with suppress(NotFound):  # deleted since
            await platform.cluster.note(notice.workload, notice.text)
    releasing = platform.idle.all_releasing((await platform.cluster.holders()).values())
    node_devices = (await platform.cluster.devices()).get(node, ())
    return agent_reply(node_devices, allocations, releasing)


async def usage_between(
    platform: Platform, usage_filter: UsageFilter, start: float, end: float
) -> UsageSeries:
    """Return the averages over a range, with as few points as possible."""
    found = await platform.ledger.usage(usage_filter, start, end, ONE_STEP_S)
    return await _series(platform, found)


def _node_report(report: AgentReport, pods: Sequence[PodDevices], now: float) -> NodeReport:
    """Return the agent's view, timed by the service's clock; outdated without an age."""
    age = report.age if report.pods_age is None else report.pods_age
    return NodeReport(
        0.0 if age is None else now - age,
        {pod_devices.pod: tuple(pod_devices.devices) for pod_devices in pods},
        tuple(
            Device(index, device.uuid, device.name, device.memory_mib, simulated=device.simulated)
            for index, device in enumerate(report.inventory)
        ),
    )


def _without_foreign_entries(
    report: AgentReport, uuids: AbstractSet[str], workloads: Container[WorkloadId]
) -> AgentReport:
    """Drop samples of unknown workloads, and entries of other nodes' devices."""
    reported = {sample.workload for sample in report.samples}
    known = {workload for workload in reported if workload == "" or workload in workloads}
    return report.model_copy(
        update={
            "devices": [d for d in report.devices if d.device in uuids],
            "samples": [s for s in report.samples if s.device in uuids and s.workload in known],
            "processes": tuple(p for p in report.processes if p.device in uuids),
        }
    )


def _with_service_time(report: AgentReport, now: float) -> AgentReport:
    """Return the report with its time corrected if the node's clock is wrong."""
    if report.age is None or abs(now - report.age - report.at) <= SKEW_S:
        return report
    return report.model_copy(update={"at": now - report.age})


async def _authorise(
    platform: Platform, caller: Actor, workload: str | None, project: str | None, user: str | None
) -> None:
    """Authorise a usage query: totals of projects and the cluster are public, users' are not."""
    authorise(caller, Action.SEE_CLUSTER)
    projects = await platform.project_specs()
    if project is not None and project not in projects:
        raise NotFound(f"There is no project {project}.", code="unknown_project")
    if workload is not None:
        # The history outlives the workload: access follows its project.
        try:
            spec = (await platform.cluster.workload(workload)).spec
        except NotFound:
            project_name, _, name = workload.partition("/")
            spec = WorkloadSpec(project_name, name, user="", kind="job", command=None)
        authorise(caller, Action.SEE_WORKLOAD, projects.get(spec.project), spec)
    elif user not in {None, caller.name} and not _may_see_all_users(caller):
        raise Forbidden(f"Only hub admins may see the usage of {user}.", hint="Ask for your own.")


def _may_see_all_users(caller: Actor) -> bool:
    return caller.kind == "hub" or may(caller, Action.READ_PAST)


def _start_of_range(since: datetime | None, end: float) -> float:
    """Return the start of a range, by default an hour before its end; raise if it is later."""
    start = _seconds(since) if since else end - DEFAULT_RANGE.total_seconds()
    if start >= end:
        raise InvalidRequest("The range ends before it begins.", hint="Give since before until.")
    return start


async def _series(platform: Platform, ledger_usage: Usage) -> UsageSeries:
    """Convert a usage to the wire schema, with the cluster's capacity."""
    read_model = await platform.shared_read_model()
    return UsageSeries(
        since=_time(ledger_usage.since),
        until=_time(ledger_usage.until),
        step_s=ledger_usage.step_s,
        capacity=read_model.capacity / 1000,
        points=[
            UsagePoint(at=_time(p.at), allocated=p.allocated, utilized=p.utilized)
            for p in ledger_usage.points
        ],
        allocated_average=ledger_usage.allocated_average,
        utilized_average=ledger_usage.utilized_average,
        allocated_gpu_hours=ledger_usage.allocated_gpu_hours,
        used_gpu_hours=ledger_usage.used_gpu_hours,
        idle_gpu_hours=ledger_usage.idle_gpu_hours,
        measured=ledger_usage.measured,
        simulated=read_model.simulated,
    )


def _seconds(at: datetime) -> float:
    """Convert a time to Unix seconds within the years that all zones can show."""
    # Times without a zone are UTC, like all times of the API. There is no data before 1970, and the
    # first and last day of the calendar overflow in some zones.
    seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return min(max(seconds, 0.0), LAST_S)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
