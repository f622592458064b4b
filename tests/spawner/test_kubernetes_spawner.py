"""Features of KubeSpawner work in ours: profiles, hooks, volumes, names, stops, failures.

Modelled on KubeSpawner's features, on a real API server, through a real JupyterHub.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kubernetes_hub import KubernetesHub, resources, sentence, spec_environment

pytestmark = [pytest.mark.hub, pytest.mark.kubernetes, pytest.mark.timeout(900)]

Eventually = Callable[..., Any]


def test_kubernetes_spawner_applies_hooks_and_pod_overrides_of_admins(
    kubernetes_hub: KubernetesHub, eventually: Eventually
):
    hub, hook_log = kubernetes_hub, kubernetes_hub.data_dir / "hooks"
    hook_log.unlink(missing_ok=True)
    with hub.spawned("ana", project="vision", gpus="0", image="large") as events:
        pass
    pod = hub.pod("ana")

    assert events[-1]["message"] == "Welcome, ana"
    assert hook_log.read_text().split() == ["created", "ana", pod["metadata"]["uid"]]
    assert hub.environment("ana")["AUTH_STATE"] == "None"  # this hub stores none
    assert hub.environment("ana")["FROM_THE_HOOK"] == "ana"
    assert pod["metadata"]["annotations"]["admins/project"] == "vision"  # it is applied last
    assert pod["spec"]["dnsPolicy"] == "Default"
    assert pod["spec"]["containers"][0]["image"] == "example/large:1"
    assert pod["metadata"]["labels"]["hub.jupyter.org/network-access-hub"] == "true"
    assert resources(pod)["requests"]["memory"] == "1073741824"
    assert "hub.jupyter.org/dedicated" in [t["key"] for t in pod["spec"]["tolerations"]]
    hub.stop_server("ana")
    eventually(
        lambda: hook_log.read_text().split()[3:] == ["stopped", "ana"], what="the stop hook ran"
    )


@pytest.mark.parametrize(
    ("options", "image"),
    [
        pytest.param({}, "example/small:1", id="default image"),
        pytest.param({"image": "large"}, "example/large:1", id="listed image"),
        pytest.param({"image--unlisted-choice": "example/own"}, "example/own", id="own image"),
    ],
)
def test_profile_options_apply_beside_project_and_gpus(
    kubernetes_hub: KubernetesHub, eventually: Eventually, options: dict[str, str], image: str
):
    hub = kubernetes_hub
    hub.spawn("ana", profile="plain", project="vision", gpus="1", **options).raise_for_status()
    pod = eventually(lambda: hub.pod("ana"))

    assert pod["spec"]["containers"][0]["image"] == image
    assert resources(pod)["limits"]["nvidia.com/gpu"] == "1"


def test_gpus_of_a_profile_are_allocated_by_our_scheduler(
    kubernetes_hub: KubernetesHub, eventually: Eventually
):
    hub = kubernetes_hub
    hub.spawn("ana", profile="one-gpu", project="vision", gpus="0").raise_for_status()
    hub.spawn("bo", profile="half", gpus="0").raise_for_status()
    whole, half = eventually(lambda: hub.pod("ana")), eventually(lambda: hub.pod("bo"))

    assert whole["spec"]["schedulerName"] == "runai-scheduler"
    assert resources(whole)["limits"]["nvidia.com/gpu"] == "1"
    assert "NVIDIA_VISIBLE_DEVICES" not in spec_environment(
        whole
    )  # despite the profile's environment
    assert half["metadata"]["annotations"]["gpu-fraction"] == "0.5"
    assert half["metadata"]["labels"]["runai/project"] == "vision"


def test_server_start_does_not_request_gpus_of_an_earlier_failed_start(
    kubernetes_hub: KubernetesHub, eventually: Eventually
):
    hub = kubernetes_hub
    with hub.spawned("ana", profile="broken", project="vision", gpus="1") as broken:
        pass
    eventually(lambda: hub.pod("ana") == {})
    hub.start_server("ana", project="vision", gpus="0")

    assert (
        "Your server ended before it answered (exit code 128: it could not be started)."
        in broken[-1]["message"]
    )
    assert "No such file or directory: '/nowhere'" in broken[-1]["message"]
    assert "nvidia.com/gpu" not in resources(hub.pod("ana")).get("limits", {})
    assert hub.environment("ana")["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.parametrize("profile", ["ends", "ends-at-request"])
def test_server_that_ends_before_it_answers_ends_its_start_with_its_last_lines(
    kubernetes_hub: KubernetesHub, eventually: Eventually, profile: str
):
    """The kubelet starts the server again, but its first end counts."""
    hub = kubernetes_hub
    with hub.spawned("ana", profile=profile, project="vision", gpus="1") as events:
        pass
    sentence = "Your server ended before it answered (exit code 3)."
    log = hub.new_log()

    assert events[-1]["failed"]
    assert f"{sentence} Its last lines:\nit <b>broke</b>\n…" in events[-1]["message"]
    assert sentence in log
    assert "broke" not in log
    eventually(lambda: hub.pod("ana") == {})
    eventually(lambda: hub.sessions() == {})


def test_server_that_is_deleted_before_it_answers_ends_its_start(
    kubernetes_hub: KubernetesHub, eventually: Eventually
):
    hub = kubernetes_hub
    request_marker = hub.kubelet.volume("claim-ana") / "asked"
    request_marker.unlink(missing_ok=True)
    with hub.spawned("ana", profile="silent", project="vision", gpus="1") as events:
        eventually(request_marker.exists)
        pod = hub.pod("ana")["metadata"]
        hub.lab.plane.kubectl("-n", pod["namespace"], "delete", "pod", pod["name"], "--wait=false")

    assert "The session was deleted while it waited." in events[-1]["message"]


def test_server_that_does_not_start_within_its_profiles_timeout_is_removed(
    kubernetes_hub: KubernetesHub, eventually: Eventually
):
    hub = kubernetes_hub
    with hub.spawned("ana", profile="never", project="vision", gpus="1") as events:
        pass

    assert events[-1]["failed"]
    assert "The server has its place on processes, but did not start" in events[-1]["message"]
    assert "within 2 seconds" in events[-1]["message"]
    eventually(lambda: hub.pod("ana") == {})
    eventually(lambda: hub.sessions() == {})


def test_home_is_a_volume_claim_that_survives_a_stop_of_the_server(kubernetes_hub: KubernetesHub):
    hub = kubernetes_hub
    hub.start_server("ana", project="vision", gpus="0")
    pod = hub.pod("ana")
    [volume] = [v for v in pod["spec"]["volumes"] if "persistentVolumeClaim" in v]
    claim = volume["persistentVolumeClaim"]["claimName"]
    hub.stop_server("ana")
    path = f"/api/v1/namespaces/{hub.lab.namespace.name}/persistentvolumeclaims/{claim}"
    after_stop = hub.lab.plane.request("GET", path)
    hub.start_server("ana", project="vision", gpus="0")
    after_restart = hub.lab.plane.request("GET", path)

    assert after_stop["metadata"]["uid"] == after_restart["metadata"]["uid"]
    assert after_stop["spec"]["resources"]["requests"]["storage"] == "10Gi"


def test_named_servers_have_allocations_of_their_own(
    kubernetes_hub: KubernetesHub, eventually: Eventually
):
    hub = kubernetes_hub
    hub.start_server("ana", project="vision", gpus="0")
    hub.spawn_named("ana", "big", project="vision", gpus="1").raise_for_status()
    eventually(lambda: hub.servers("ana")["big"]["ready"], within=120)
    with hub.service() as client:

        def holds_both() -> bool:  # the service has a watch of its own
            running = [w for w in client.workloads() if w.state == "running"]
            return {w.server: w.allocated for w in running} == {"": 0, "big": 1}

        eventually(holds_both)
    hub.http.delete("/hub/api/users/ana/servers/big")
    eventually(lambda: hub.pod("ana", "big") == {})

    assert hub.server("ana")["ready"]


def test_stopped_waiting_server_start_leaves_no_pod_and_no_allocation(
    kubernetes_hub: KubernetesHub, eventually: Eventually
):
    hub = kubernetes_hub
    hub.start_server("ana", project="vision", gpus="1")
    with hub.spawned("bo", project="vision", gpus="1") as events:
        eventually(lambda: sentence(events, "Waiting: "))
        hub.http.delete("/hub/api/users/bo/server")
    eventually(lambda: hub.pod("bo") == {})

    eventually(lambda: {u: s.allocated for u, s in hub.sessions().items()} == {"ana": 1})


def test_waiting_server_start_continues_after_a_kubernetes_api_restart(
    kubernetes_hub: KubernetesHub, eventually: Eventually
):
    hub = kubernetes_hub
    hub.start_server("ana", project="vision", gpus="1")
    with hub.spawned("bo", project="vision", gpus="1") as events:
        eventually(lambda: sentence(events, "Waiting: "))
        hub.lab.plane.restart("kube-apiserver")
        hub.stop_server("ana")
        hub.wait_ready("bo")

    assert events[-1]["ready"]


def test_running_servers_survive_a_hub_restart_and_pending_starts_end(
    kubernetes_hub: KubernetesHub, eventually: Eventually
):
    hub = kubernetes_hub
    hub.start_server("ana", project="vision", gpus="1")
    hub.spawn("bo", project="vision", gpus="1").raise_for_status()
    eventually(lambda: hub.pod("bo"))
    before = hub.pod("ana")["metadata"]["uid"]
    hub.kill()
    hub.start()
    eventually(lambda: hub.server("ana").get("ready"), within=120)
    assert hub.pod("ana")["metadata"]["uid"] == before
    # The hub waits as long as a server may take to answer, then gives up.
    eventually(lambda: hub.pod("bo") == {}, within=300)
    eventually(lambda: hub.server("bo") == {})

    eventually(lambda: {u: s.allocated for u, s in hub.sessions().items()} == {"ana": 1})


def test_hub_marks_a_server_as_stopped_after_its_pod_is_deleted(
    kubernetes_hub: KubernetesHub, eventually: Eventually
):
    hub = kubernetes_hub
    hub.start_server("ana", project="vision", gpus="0")
    pod = hub.pod("ana")["metadata"]
    hub.lab.plane.kubectl("-n", pod["namespace"], "delete", "pod", pod["name"], "--wait=false")
    eventually(lambda: hub.pod("ana") == {})
    response = hub.http.get("/user/ana/api")
    eventually(lambda: not hub.server("ana"), within=120, what="the hub has noticed")

    assert response.status_code in (424, 503)
