"""The parts of the service around its cluster, the same for both composition roots."""

from importlib.metadata import version
from typing import Any, NamedTuple

from runai.hub_service.api.app import create_app
from runai.hub_service.api.auth.authentication import Authenticator
from runai.hub_service.api.auth.hub_auth import HubAuthenticator
from runai.hub_service.api.metrics import Metrics
from runai.hub_service.api.middleware.job_limit import JobLimit
from runai.hub_service.api.middleware.request_limits import CallerLimits
from runai.hub_service.api.services.former_members import FormerMembers
from runai.hub_service.api.services.platform import Platform
from runai.hub_service.controller.controller import Controller
from runai.hub_service.controller.decision_worker import DecisionWorker
from runai.hub_service.controller.history_recorder import HistoryRecorder
from runai.hub_service.controller.idle.idle_watch import IdleWatch
from runai.hub_service.controller.usage_history import UsageHistory
from runai.hub_service.ledger import Ledger
from runai.hub_service.model.cluster import Cluster
from runai.hub_service.scheduler.model.snapshot import Policy
from runai.hub_service.server.background_work import Work, build_notifier
from runai.hub_service.server.listener import Server
from runai.hub_service.server.settings import Config


class Service(NamedTuple):
    """The platform, its server, and the tasks that run beside it."""

    platform: Platform
    server: Server
    work: list[Work]


async def compose(
    config: Config,
    cluster: Cluster,
    decision_worker: DecisionWorker,
    policy: Policy,
    *,
    authenticator: Authenticator,
    users: HubAuthenticator | None,
    members: FormerMembers,
    releases_idle_gpus: bool,
    **platform_fields: Any,  # noqa: ANN401  the rest of `Platform`, which one root alone has
) -> Service:
    """Wire the service around a cluster, with an open ledger."""
    metrics = Metrics()
    ledger = Ledger(config.ledger or config.data_dir / "ledger.sqlite")
    usage_history = UsageHistory(cluster, ledger)
    controller = Controller(
        cluster,
        decision_worker,
        policy=policy,
        history=usage_history.with_usage,
        members=members.marked,
        on_cycle=metrics.count,
    )
    platform = Platform(
        cluster=cluster,
        controller=controller,
        decision_worker=decision_worker,
        ledger=ledger,
        idle=IdleWatch(cluster, ledger, releases=releases_idle_gpus),
        authenticator=authenticator,
        former_members=members,
        prefix=config.prefix,
        version=version("jupyter-runai"),
        caller_limits=CallerLimits(config.allowance),
        job_limit=JobLimit(config.allowance.unfinished_jobs),
        **platform_fields,
    )
    platform.checks = {"scheduler": controller.unhealthy_reason}
    recorder = HistoryRecorder(cluster, ledger, controller.changes, elastic=config.elastic)
    work: list[Work] = [
        cluster.run(),
        controller.run(),
        members.run(),
        build_notifier(config, platform).run(),
        recorder.run(),
        ledger.run(),
    ]
    if policy.history_weight:
        await usage_history.begin()  # before the first scheduling cycle
        work.append(usage_history.run())
    if users is not None:
        work.append(users.warm())
    return Service(platform, Server(create_app(platform, metrics=metrics, login=users)), work)
