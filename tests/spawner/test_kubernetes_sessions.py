"""Sessions on Kubernetes end to end: JupyterHub, spawner, scheduler and API server, all real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kubernetes_hub import KubernetesHub, resources, sentence, spec_environment

pytestmark = [pytest.mark.hub, pytest.mark.kubernetes, pytest.mark.timeout(900)]

Eventually = Callable[..., Any]


# -- GPUs ------------------------------------------------------------------------------------------


def test_session_gets_a_whole_gpu_and_the_next_waits_with_a_reason(
    kubernetes_hub: KubernetesHub, eventually: Eventually
):
    hub = kubernetes_hub
    hub.start_server("ana", project="vision", gpus="1")
    pod = hub.pod("ana")
    hub.spawn("bo", project="vision", gpus="1").raise_for_status()
    with hub.progress("bo") as events:
        waiting = eventually(lambda: sentence(events, "Waiting: "))
        allocated = {user: session.allocated for user, session in hub.sessions().items()}
        hub.stop_server("ana")
        hub.wait_ready("bo")

    assert (
        waiting
        == "Waiting: the build quota of vision is 1 GPU, and its notebooks hold 1: ana 1 (Q1)"
    )
    assert allocated == {"ana": 1, "bo": 0}
    assert events[-1]["ready"]
    bars = [event["progress"] for event in events if "progress" in event]
    assert bars == sorted(bars)
    earlier_messages = [event["message"] for event in events[:-1]]
    assert not [text for text in earlier_messages if "[Normal] vision uses" in text]  # only once
    assert pod["spec"]["schedulerName"] == "runai-scheduler"
    assert pod["metadata"]["labels"]["runai/project"] == "vision"
    assert pod["metadata"]["labels"]["runai/kind"] == "build"
    assert pod["metadata"]["annotations"]["runai/priority"] == "100"
    assert resources(pod)["limits"]["nvidia.com/gpu"] == "1"
    assert resources(pod)["requests"]["nvidia.com/gpu"] == "1"


def test_session_environment_names_its_project_workload_and_device(
    kubernetes_hub: KubernetesHub,
):
    hub = kubernetes_hub
    hub.start_server("ana", project="vision", gpus="1")
    environment = hub.environment("ana")
    [session] = hub.sessions().values()

    assert environment["RUNAI_PROJECT"] == "vision"
    assert environment["RUNAI_WORKLOAD"] == session.id
    assert environment["RUNAI_KIND"] == "session"
    assert environment["RUNAI_GPU_FRACTION"] == "1"
    assert environment["RUNAI_API_URL"].endswith("/services/runai/")
    assert environment["GREETING"] == "hello"
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"  # despite the hub's `environment`
    assert "RUNAI_HUB_TOKEN" not in environment
    with hub.service(environment["JUPYTERHUB_API_TOKEN"]) as client:
        assert (client.whoami().name, client.whoami().projects) == ("ana", ["vision"])


def test_session_without_project_is_left_to_the_configured_scheduler(
    kubernetes_hub: KubernetesHub, eventually: Eventually
):
    hub = kubernetes_hub
    hub.spawn("cy").raise_for_status()
    pod = eventually(lambda: hub.pod("cy"))
    space, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    target = {"apiVersion": "v1", "kind": "Node", "name": "processes"}
    binding = {"metadata": {"name": name}, "target": target}
    hub.lab.plane.request("POST", f"/api/v1/namespaces/{space}/pods/{name}/binding", binding)
    hub.wait_ready("cy")

    assert pod["spec"]["schedulerName"] == "release-user-scheduler"
    assert "runai/project" not in pod["metadata"]["labels"]
    assert spec_environment(pod)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "RUNAI_PROJECT" not in spec_environment(pod)


def test_two_half_gpu_sessions_share_a_device_and_a_third_waits(
    kubernetes_hub: KubernetesHub, eventually: Eventually
):
    hub = kubernetes_hub
    hub.start_server("ana", project="vision", gpus="½")
    hub.start_server("bo", project="vision", gpus="0.5")
    devices = [hub.environment(user)["NVIDIA_VISIBLE_DEVICES"] for user in ("ana", "bo")]
    hub.spawn("cy", project="vision", gpus="50%").raise_for_status()
    with hub.progress("cy") as events:
        waiting = eventually(lambda: sentence(events, "Waiting: "))
        allocated = {user: session.allocated for user, session in hub.sessions().items()}
        hub.stop_server("ana")
        hub.wait_ready("cy")

    assert devices == ["GPU-0", "GPU-0"]
    assert allocated == {"ana": 0.5, "bo": 0.5, "cy": 0}
    assert waiting.startswith(
        "Waiting: the build quota of vision is 1 GPU, and its notebooks hold 1: ana 0.5, bo 0.5"
    )
    assert hub.environment("cy")["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
    hub.stop_all()
    reservations = "/api/v1/namespaces/runai-reservation/pods"
    eventually(lambda: not hub.lab.plane.request("GET", reservations)["items"])


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        pytest.param({"project": "nope", "gpus": 1}, "There is no project nope.", id="project"),
        pytest.param({"project": "vision", "gpus": 2}, "its build quota is 1", id="over quota"),
        pytest.param({"profile": "none"}, "No such profile: none.", id="unknown profile"),
        pytest.param({"image": "huge"}, "There is no choice 'huge' of image.", id="unknown image"),
        pytest.param({"image": ["large"]}, "The option 'image' is not text.", id="list of images"),
        pytest.param({"image--unlisted-choice": "other/x"}, "'other/x' is not allowed", id="own"),
        pytest.param(
            {"profile": "plain", "image--unlisted-choice": "other/x"},
            "failed validation regex",
            id="own image, named profile",
        ),
    ],
)
def test_spawn_refuses_invalid_options_with_a_sentence(
    kubernetes_hub: KubernetesHub, options: dict[str, Any], sentence: str
):
    hub = kubernetes_hub
    with hub.spawned("ana", **options) as events:
        pass

    assert sentence in events[-1]["message"]
    assert events[-1]["failed"]
    assert hub.pod("ana") == {}
    assert "Unhandled error" not in hub.new_log()  # a refusal, not a failure of the hub


def test_spawn_refused_by_kubernetes_displays_the_reason_and_logs_no_token(
    kubernetes_hub: KubernetesHub, eventually: Eventually
):
    hub = kubernetes_hub
    path = f"/api/v1/namespaces/{hub.lab.namespace.name}/resourcequotas"
    quota = {"metadata": {"name": "no-memory"}, "spec": {"hard": {"requests.memory": "1Mi"}}}
    hub.lab.plane.request("POST", path, quota)

    def is_in_force() -> bool:  # the message differs until the quota's controller has counted
        status = hub.lab.plane.request("GET", f"{path}/no-memory").get("status", {})
        return "requests.memory" in status.get("used", {})

    try:
        eventually(is_in_force, what="the quota is in force")
        with hub.spawned("ana", project="vision", gpus="1") as events:
            pass
    finally:
        hub.lab.plane.request("DELETE", f"{path}/no-memory")

    assert "Kubernetes refuses the pod: " in events[-1]["message"]
    assert "exceeded quota: no-memory" in events[-1]["message"]
    assert "JUPYTERHUB_API_TOKEN" not in hub.new_log()


def test_session_start_that_waits_beyond_the_queue_timeout_fails_with_its_reason(
    kubernetes_hub: KubernetesHub, eventually: Eventually
):
    hub = kubernetes_hub
    hub.start_server("ana", project="vision", gpus="1")
    with hub.spawned("bo", server="hurried", project="vision", gpus="1") as events:
        pass

    assert events[-1]["failed"]
    assert (
        "No GPU was granted within 20 seconds: the build quota of vision is 1"
        in events[-1]["message"]
    )
    eventually(lambda: hub.pod("bo", "hurried") == {})


def test_waiting_spawn_fails_when_its_session_is_deleted(
    kubernetes_hub: KubernetesHub, eventually: Eventually
):
    hub = kubernetes_hub
    hub.start_server("ana", project="vision", gpus="1")
    with hub.spawned("bo", project="vision", gpus="1") as events:
        eventually(lambda: sentence(events, "Waiting: "))
        with hub.service() as client:
            client.delete(hub.sessions()["bo"].id)

    assert "The session was deleted while it waited." in events[-1]["message"]


# -- the form --------------------------------------------------------------------------------------


def test_spawn_form_offers_profiles_and_marks_choices_that_would_wait(
    kubernetes_hub: KubernetesHub,
):
    hub = kubernetes_hub
    with hub.browser("ana") as browser:
        free_form = browser.get("/hub/spawn").text
        hub.start_server("bo", project="vision", gpus="1")
        busy_form = browser.get("/hub/spawn").text
        fields = {"project": "vision", "gpus": "other", "amount": "1.5", "profile": "plain"}
        refused_form = browser.post("/hub/spawn", data=fields).text
    with hub.browser("cy") as browser:
        guest_form = browser.get("/hub/spawn").text

    assert 'value="one-gpu"' in free_form
    assert ">free</span>" in free_form
    assert "Not checked here: taints, volumes, admission." in free_form
    assert "0 GiB" not in free_form  # the memory of these is unknown
    assert "PyTorch and TensorFlow keep to your memory" in free_form
    assert "would wait" in busy_form
    assert "the build quota of vision is 1 GPU, and its notebooks hold 1: bo 1" in busy_form
    assert "above one GPU only whole ones are." in refused_form
    assert 'value="one-gpu"' not in guest_form
    assert 'name="gpus"' in guest_form


def test_spawn_form_choice_starts_a_server_with_the_chosen_profile_and_gpus(
    kubernetes_hub: KubernetesHub, eventually: Eventually
):
    hub = kubernetes_hub
    fields = {"project": "vision", "gpus": "1", "profile": "plain"}
    with hub.browser("ana") as browser:
        browser.post("/hub/spawn", data={**fields, "profile-option-plain--image": "large"})
    hub.wait_ready("ana")
    pod = hub.pod("ana")

    assert pod["spec"]["containers"][0]["image"] == "example/large:1"
    assert hub.server("ana")["user_options"] == {
        "profile": "plain",
        "image": "large",
        "project": "vision",
        "gpus": "1",
    }
