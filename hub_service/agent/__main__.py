"""Start the agent of one node: `python -m runai.hub_service.agent`, configured by environment.

RUNAI_API_URL (the service's root), RUNAI_AGENT_TOKEN, RUNAI_NODE; devices as for the service:
RUNAI_GPUS ("auto" or a number), RUNAI_SIMULATE (a number overrides it); RUNAI_AGENT_METRICS
(HOST:PORT) for Prometheus. On a Kubernetes node: RUNAI_AGENT_TOKEN_FILE, its pod's token, instead
of RUNAI_AGENT_TOKEN; RUNAI_POD_RESOURCES, the kubelet's socket. Exits at SIGTERM and when its
parent process has ended (RUNAI_AGENT_PARENT: its PID, optional).
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runai.hub_service.agent.agent import Agent
from runai.hub_service.agent.devices.sources import open_devices
from runai.hub_service.agent.enforcement.hard_limits import HardLimits
from runai.hub_service.agent.enforcement.memory_enforcer import MemoryEnforcer
from runai.hub_service.agent.reporting import HttpReporter
from runai.hub_service.limits.driver_limits import DriverLimits, DriverLimitsUnavailable
from runai.hub_service.model.device import Device
from runai.hub_service.processes.log_lines import LogFormat, begin_logging
from runai.hub_service.processes.own_process import end_with_parent
from runai.hub_service.wire.errors import InvalidRequest, RunaiError

if TYPE_CHECKING:
    from runai.hub_service.agent.processes.pod_resources import PodResources

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Configuration of one agent, from environment variables."""

    url: str
    node: str
    gpus: int | Literal["auto"]
    simulate: int | None
    parent: int | None
    metrics: tuple[str, int] | None
    token: str | Path = field(repr=False)
    pod_resources: str = ""
    """Path of the kubelet's socket; "" outside Kubernetes."""

    @classmethod
    def parse(cls, environ: Mapping[str, str]) -> "AgentSettings":
        """Parse the environment.

        Raises:
            InvalidRequest: a variable is missing or not a number; the message names the variable
                and never contains a token.
        """
        gpus = environ.get("RUNAI_GPUS") or "auto"
        simulate = environ.get("RUNAI_SIMULATE")
        parent = environ.get("RUNAI_AGENT_PARENT")
        return cls(
            url=_required(environ, "RUNAI_API_URL"),
            node=_required(environ, "RUNAI_NODE"),
            gpus="auto" if gpus == "auto" else _number("RUNAI_GPUS", gpus),
            simulate=_number("RUNAI_SIMULATE", simulate) if simulate else None,
            parent=_number("RUNAI_AGENT_PARENT", parent) if parent else None,
            metrics=_address(environ.get("RUNAI_AGENT_METRICS", "")),
            token=Path(file)
            if (file := environ.get("RUNAI_AGENT_TOKEN_FILE", ""))
            else _required(environ, "RUNAI_AGENT_TOKEN"),
            pod_resources=environ.get("RUNAI_POD_RESOURCES", ""),
        )


def _required(environ: Mapping[str, str], name: str) -> str:
    if value := environ.get(name, ""):
        return value
    raise InvalidRequest(f"{name} is not set.", hint="The service sets it when it starts an agent.")


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidRequest(f"{name} is {text!r}.", hint="Give a number.") from None


def _address(text: str) -> tuple[str, int] | None:
    host, _, port = text.rpartition(":")
    if not text:
        return None
    is_port = port.isdecimal() and len(port) <= 5 and 0 < int(port) < 2**16
    if not host or not is_port:
        raise InvalidRequest(
            f"RUNAI_AGENT_METRICS is {text!r}.", hint="Give HOST:PORT, as in 127.0.0.1:9410."
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def _memory_enforcer(devices: Sequence[Device]) -> MemoryEnforcer:
    """Return the enforcer of memory limits, with the driver's hard limits if available."""
    uuids = [device.uuid for device in devices if not device.simulated]
    if not uuids:
        return MemoryEnforcer(no_hard_limit="its devices are simulated")
    try:
        return MemoryEnforcer(hard=HardLimits(DriverLimits.open(uuids)))
    except DriverLimitsUnavailable as error:
        return MemoryEnforcer(no_hard_limit=str(error))


def _kubelet(settings: AgentSettings) -> "PodResources | None":
    """Return a client of the kubelet; None outside Kubernetes."""
    if not settings.pod_resources:
        return None
    # grpc is installed for Kubernetes only.
    from runai.hub_service.agent.processes.pod_resources import PodResources  # noqa: PLC0415

    return PodResources(settings.pod_resources)


def _serve_metrics(settings: AgentSettings, agent: Agent) -> Callable[[], None]:
    """Start the metrics server if an address is set; return the function that stops it."""
    if settings.metrics is None:
        return lambda: None
    # Imported on demand: prometheus_client costs memory.
    from runai.hub_service.agent.metrics import serve  # noqa: PLC0415

    host, port = settings.metrics
    try:
        return serve(host, port, settings.node, agent.tally)
    except OSError as error:
        # Continue without metrics: limits and charts depend on the measuring itself.
        log.warning("cannot serve metrics on %s:%d: %s", host, port, error)
        return lambda: None


async def _run(settings: AgentSettings) -> None:
    """Run the agent until a signal, or the end of its parent process."""
    # A PID set by the parent also reveals a parent that ended before this line.
    parent = settings.parent or os.getppid()
    end_with_parent()  # immediate on Linux; elsewhere the loop compares the parent's PID
    source = open_devices(settings.gpus, settings.simulate, node=settings.node)
    reporter = HttpReporter(settings.url, settings.token)
    agent = Agent(
        settings.node,
        source,
        reporter,
        should_run=lambda: os.getppid() == parent,
        enforcer=_memory_enforcer(source.devices()),
        kubelet=_kubelet(settings),
    )
    main_task = asyncio.current_task()
    assert main_task is not None

    def cancel_run() -> None:
        signal.set_wakeup_fd(-1)  # ignore further signals during shutdown (`running.on_signal`)
        main_task.cancel()

    for stop in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(stop, cancel_run)
    end_metrics = _serve_metrics(settings, agent)
    # Modules live until exit: exempt them from garbage collection, which runs every few seconds.
    gc.freeze()
    try:
        await agent.run()
    finally:
        end_metrics()
        source.close()
        reporter.close()


def main() -> int:
    """Run the agent; return its exit status."""
    form: LogFormat = "json" if os.environ.get("RUNAI_LOG_FORMAT") == "json" else "text"
    begin_logging("WARNING", form, text="agent: %(message)s")
    try:
        settings = AgentSettings.parse(os.environ)
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(_run(settings))
    except RunaiError as error:
        sys.stderr.write(f"agent: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
