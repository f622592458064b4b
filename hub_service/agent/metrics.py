"""Prometheus metrics of an agent and its node, over HTTP if an address is set.

The address needs no authentication, so metrics contain no workload, user or process. A scrape reads
the loop's tally and triggers no measurement; between scrapes only the server's thread waits.
"""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from runai.hub_service.agent.agent import LoopCounters

MIB = 2**20


def serve(host: str, port: int, node: str, tally: LoopCounters) -> Callable[[], None]:
    """Serve scrapes in a separate thread; return the function that stops it.

    Raises:
        OSError: the server cannot listen on the address.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeMetricsCollector(node, tally))
    ProcessCollector(registry=registry)  # CPU and memory of the agent itself
    server, thread = start_http_server(port, host, registry)

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end


class NodeMetricsCollector(Collector):
    """Collector of the last report's devices and the loop's counters."""

    def __init__(self, node: str, tally: LoopCounters) -> None:
        self._node, self._tally = node, tally

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family with its current values."""
        yield from self._devices()
        tally = self._tally
        for name, text, count in (
            ("polls", "Polls of all devices of the node.", tally.polls),
            ("polls_failed", "Polls that failed as a whole.", tally.failed),
            ("poll_seconds", "Time spent in polls.", tally.seconds),
            ("reports_sent", "Reports that the service took.", tally.sent),
            ("reports_dropped", "Reports that nobody will get.", tally.dropped),
        ):
            counter = CounterMetricFamily(f"runai_agent_{name}", text, labels=["node"])
            counter.add_metric([self._node], count)
            yield counter
        waiting = GaugeMetricFamily(
            "runai_agent_reports_waiting", "Reports that wait for the service.", labels=["node"]
        )
        waiting.add_metric([self._node], tally.waiting)
        yield waiting

    def _devices(self) -> Iterator[Metric]:
        report = self._tally.last_report
        if report is None:
            return
        last = GaugeMetricFamily(
            "runai_agent_last_poll_timestamp_seconds", "When it measured last.", labels=["node"]
        )
        last.add_metric([self._node], report.at)
        yield last
        labels = ["node", "device"]
        busy = GaugeMetricFamily(
            "runai_agent_device_utilization_ratio", "Busy share of a device.", labels=labels
        )
        memory = GaugeMetricFamily(
            "runai_agent_device_memory_used_bytes", "Memory of a device in use.", labels=labels
        )
        healthy = GaugeMetricFamily(
            "runai_agent_device_healthy", "Whether a device can be used.", labels=labels
        )
        processes = GaugeMetricFamily(
            "runai_agent_device_processes", "Processes on a device.", labels=labels
        )
        number = dict.fromkeys((d.device for d in report.devices), 0)
        for process in report.processes:
            number[process.device] = number.get(process.device, 0) + 1
        for device in report.devices:
            names = [self._node, device.device]
            if device.utilization is not None:
                busy.add_metric(names, device.utilization)
            if device.memory_mib is not None:
                memory.add_metric(names, device.memory_mib * MIB)
            healthy.add_metric(names, float(not device.fault))
            processes.add_metric(names, number[device.device])
        yield from (busy, memory, healthy, processes)
