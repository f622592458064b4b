"""The spawn form: its offers, the text of each, and the options it sends."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runai.hub_service.client import AsyncClient
from runai.hub_service.wire.device_schemas import DeviceView, NodeView
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.schemas import ProjectView
from runai.hub_service.wire.workload_request import SubmitRequest
from runai.spawner.admission import Admission
from runai.spawner.amount import NO_GPU, Amount
from runai.spawner.form import (
    Choice,
    Person,
    ProjectChoices,
    form_choices,
    options_of,
    possible_amounts,
    render,
)


def node(devices: int) -> NodeView:
    return NodeView(
        name="box",
        devices=[
            DeviceView(device=n, uuid=f"GPU-{n}", name="A", memory_mib=16384, simulated=False)
            for n in range(devices)
        ],
    )


@pytest.mark.parametrize(
    ("quota", "build_quota", "devices", "amounts"),
    [
        pytest.param(2.5, None, [5], ["0.25", "0.5", "1", "2"], id="up to the quota"),
        pytest.param(2.5, 1, [5], ["0.25", "0.5", "1"], id="up to the build quota"),
        pytest.param(1, 4, [5], ["0.25", "0.5", "1"], id="never above the quota"),
        pytest.param(None, None, [5, 8], ["0.25", "0.5", "1", "2", "4", "8"], id="unlimited"),
        pytest.param(100, None, [2, 2], ["0.25", "0.5", "1", "2"], id="no more than a node has"),
        pytest.param(0.3, None, [5], ["0.25"], id="small quota"),
        pytest.param(0, None, [5], [], id="no quota"),
        pytest.param(2.5, None, [], [], id="no devices"),
    ],
)
def test_spawn_form_offers_are_limited_by_quota_build_quota_and_devices(
    quota: float | None, build_quota: float | None, devices: list[int], amounts: list[str]
):
    project = ProjectView(name="vision", quota=quota, build_quota=build_quota)
    offered = possible_amounts(project, [node(count) for count in devices])

    assert [amount.text() for amount in offered] == amounts


@pytest.mark.parametrize(
    ("person", "expected"),
    [
        (Person("ana"), True),
        (Person("vic"), True),
        (Person("bo", frozenset({"people"})), True),
        (Person("bo", frozenset({"chiefs"})), True),
        (Person("people"), False),
        (Person("bo"), False),
    ],
    ids=[
        *("member", "admin", "in a member group", "in an admin group"),
        *("user named like the group", "no member"),
    ],
)
def test_is_member_includes_members_groups_and_admins_of_a_project(person: Person, expected: bool):
    project = ProjectView(
        name="vision",
        quota=1,
        build_quota=1,
        members=["ana"],
        groups=["people"],
        admins=["vic"],
        admin_groups=["chiefs"],
    )

    assert person.is_member(project) == expected


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        pytest.param(
            {"project": ["vision"], "gpus": ["0.5"], "amount": [""]},
            {"project": "vision", "gpus": "0.5"},
            id="offer",
        ),
        pytest.param(
            {"project": ["vision"], "gpus": ["other"], "amount": ["8 GiB"]},
            {"project": "vision", "gpus": "8 GiB"},
            id="amount as text",
        ),
        pytest.param(
            {"project": ["vision"], "gpus": ["0.5"], "amount": ["8 GiB"]},
            {"project": "vision", "gpus": "0.5"},
            id="offer beside an unused text",
        ),
        pytest.param({"gpus": ["0"]}, {"project": "", "gpus": "0"}, id="no project"),
        pytest.param(
            {"project": ["vision"], "gpus": ["0"], "cpu": ["2"], "memory": ["8 GiB"]},
            {"project": "vision", "gpus": "0", "cpu": "2", "memory": "8 GiB"},
            id="CPU and memory",
        ),
        pytest.param(
            {"project": ["vision"], "gpus": ["0"], "cpu": [""], "memory": [""]},
            {"project": "vision", "gpus": "0"},
            id="empty CPU and memory",
        ),
    ],
)
def test_spawn_form_fields_are_parsed_to_project_gpus_cpu_and_memory(
    fields: dict[str, list[str]], options: dict[str, str]
):
    assert options_of(fields) == options


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"project": ["vision"], "gpus": ["other"], "amount": [" "]}, "The other amount is empty."),
        (
            {"project": ["vision"], "gpus": ["other"], "amount": ["much"]},
            "'much' is not a valid amount",
        ),
        ({"_xsrf": ["token"]}, "Nothing was chosen."),
        ({}, "Nothing was chosen."),
        ({"project": ["vision"], "image": ["x"]}, "There is no option 'image'."),
    ],
)
def test_spawn_form_refuses_invalid_fields_with_a_sentence(
    fields: dict[str, list[str]], sentence: str
):
    with pytest.raises(InvalidRequest, match=re.escape(sentence)):
        options_of(fields)


async def test_spawn_form_choices_have_memory_and_waiting_reason_of_each_amount(
    hub_client: AsyncClient, submission: Callable[..., SubmitRequest]
):
    await Admission(hub_client, lambda _: None).admit(submission("bo", "1"), within_s=60)
    [vision] = (await form_choices(hub_client, Person("ana"))).projects

    assert (vision.name, vision.summary) == ("vision", "build quota: 1 of 1.5 GPUs in use")
    quota_text = "the build quota of vision is 1.5 GPUs, and its notebooks hold 1: bo 1"
    wait_reason = f"{quota_text}; expected to start"
    choices = [(c.label, c.detail, c.waits.partition(" in ")[0], c.refused) for c in vision.choices]
    assert choices == [
        ("¼ GPU", "4 GiB (simulated)", "", ""),
        ("½ GPU", "8 GiB (simulated)", "", ""),
        ("1 GPU", "16 GiB (simulated)", wait_reason, ""),
        ("Without a GPU", "", "", ""),
    ]
    assert [workload.user for workload in await hub_client.workloads()] == ["bo"]


async def test_spawn_form_offers_no_project_to_a_user_without_a_project(hub_client: AsyncClient):
    assert (await form_choices(hub_client, Person("out"))).projects == []


WAIT_REASON = (
    "the build quota of vision is 1.5 GPUs, and its notebooks hold 1: bo 1;"
    " expected to start in 3 minutes"
)
VISION = ProjectChoices(
    "vision",
    "build quota: 1 of 1.5 GPUs in use",
    (
        Choice(Amount(milli_gpus=250), "¼ GPU", "4 GiB"),
        Choice(Amount(milli_gpus=500), "½ GPU", "8 GiB"),
        Choice(Amount(milli_gpus=1000), "1 GPU", "16 GiB", waits=WAIT_REASON),
        Choice(NO_GPU, "Without a GPU"),
    ),
)


class TestRendered:
    """The HTML of the form."""

    def test_spawn_form_labels_each_choice(self):
        labels = re.findall(r"<label[^>]*>([^<]*)</label>", render([VISION], last={}))

        assert labels == [
            "¼ GPU",
            "½ GPU",
            "1 GPU",
            "Without a GPU",
            "Other: a fraction, or memory",
            "Ends after",
        ]

    def test_spawn_form_offers_gpu_types_only_if_the_cluster_has_several(self):
        last = {"project": "vision", "gpus": "1", "gpu_type": "L4"}
        html = render([VISION], gpu_types=["H100", "L4"], last=last)

        assert re.findall(r"<option([^>]*)>(\w+)</option>", html) == [
            (' value=""', "any"),
            ("", "H100"),
            (" selected", "L4"),
        ]
        assert "runai-gpu-type" not in render([VISION], last=last)

    def test_spawn_form_prefills_cpu_and_memory_with_the_last_values(self):
        last = {"project": "vision", "gpus": "0", "cpu": "0.5", "memory": "4 GiB"}
        fields = re.compile(r'name="(cpu|memory)".*?value="([^"]*)"', re.DOTALL)

        assert fields.findall(render([VISION], last=last, of_machine=True)) == [
            ("cpu", "0.5"),
            ("memory", "4 GiB"),
        ]
        assert fields.findall(render([VISION], last={}, of_machine=True)) == [
            ("cpu", ""),
            ("memory", ""),
        ]
        assert fields.findall(render([VISION], last=last)) == []  # not on Kubernetes
        assert fields.findall(render([], last=last, of_machine=True)) == []

    @pytest.mark.parametrize("projects", [[VISION], []], ids=["member", "no member"])
    def test_spawn_form_offers_a_start_without_settings_only_after_a_failed_start(self, projects):
        checkbox = 'name="settings" value="without"'

        assert checkbox in render(projects, last={}, has_failed=True)
        assert checkbox not in render(projects, last={"settings": "without"})

    def test_spawn_form_has_the_reason_why_a_choice_would_wait(self):
        html = render([VISION], last={})

        assert html.count('ms-auto">free now') == 2  # ¼ and ½ GPU
        assert html.count("would wait") == 1  # 1 GPU
        assert WAIT_REASON in html

    def test_spawn_form_promises_no_start_at_once_if_checks_are_incomplete(self):
        html = render([VISION], last={}, unchecked="taints, volumes, admission")

        assert "free now" not in html
        assert html.count('ms-auto">free</span>') == 2
        assert "Not checked here: taints, volumes, admission." in html

    def test_spawn_form_marks_a_choice_that_only_waits_for_a_pause_as_soon(self):
        reason = "vision/fill makes room for it"
        soon = Choice(Amount(milli_gpus=500), "½ GPU", "8 GiB", waits=reason, is_soon=True)
        whole_gpu, no_gpu = VISION.choices[2:]
        choices = (whole_gpu, no_gpu, soon)
        html = render([replace(VISION, choices=choices)], last={})

        assert re.findall(r'value="([^"]*)"[^>]* checked', html) == ["0.5"]
        assert (html.count("yours soon"), html.count("would wait")) == (1, 1)
        assert f">{reason}</span>" in html

    @pytest.mark.parametrize(
        ("last", "checked", "amount"),
        [
            pytest.param({}, "0.25", "", id="no last choice: first free one"),
            pytest.param({"project": "vision", "gpus": "0.5"}, "0.5", "", id="offered amount"),
            pytest.param({"project": "vision", "gpus": "0"}, "0", "", id="no GPU"),
            pytest.param({"project": "vision", "gpus": "0.35"}, "other", "0.35", id="fraction"),
            pytest.param({"project": "vision", "gpus": "8 GiB"}, "other", "8 GiB", id="memory"),
            pytest.param({"project": "gone", "gpus": "0.5"}, "0.5", "", id="deleted project"),
            pytest.param({"image": "x"}, "0.25", "", id="options of another spawner"),
        ],
    )
    def test_spawn_form_preselects_the_last_choice(
        self, last: dict[str, Any], checked: str, amount: str
    ):
        html = render([VISION], last=last)

        assert re.findall(r'value="([^"]*)"[^>]* checked', html) == [checked]
        assert re.findall(r'name="amount".*?value="([^"]*)"', html, re.DOTALL) == [amount]

    def test_spawn_form_offers_only_sessions_without_gpu_to_a_user_without_project(self):
        html = render([], last={})

        assert '<input type="hidden" name="gpus" value="0">' in html
        assert "You are not a member of any project" in html
        assert "Ask a project's admin" in " ".join(html.split())
        assert "Add yourself" in render([], last={}, is_admin=True)

    def test_spawn_form_escapes_the_service_error_in_html(self):
        html = render([], last={}, trouble="The service <b>is away</b>.")

        assert "The service &lt;b&gt;is away&lt;/b&gt;." in html
        assert "not a member" not in html

    def test_spawn_form_with_several_projects_preselects_the_last_project_and_choice(self):
        projects = [replace(VISION, name="nlp"), VISION]
        html = render(projects, last={"project": "vision", "gpus": "0.5"})

        assert '<option value="vision" selected>' in html
        assert re.findall(r'data-project="(\w+)"( hidden disabled)?', html) == [
            ("nlp", " hidden disabled"),
            ("vision", ""),
        ]
        assert re.findall(r'id="runai-(\w+)-\d"[^>]* checked', html) == ["vision"]
        assert re.findall(r'id="runai-(\w+)-\d"[^>]* data-first', html) == ["nlp", "vision"]
