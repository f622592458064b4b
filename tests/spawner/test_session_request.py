"""User options become a request; user and server become a name."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.wire.errors import InvalidRequest
from runai.spawner.amount import Amount
from runai.spawner.session_request import SessionRequest, session_name, with_allocated

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,36}[a-z0-9])?")
NAMES = st.text(max_size=50) | st.from_regex(r"[a-z0-9/-]{1,12}", fullmatch=True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, SessionRequest(), id="no options"),
        pytest.param({"project": "", "gpus": "0"}, SessionRequest(), id="no project"),
        pytest.param(
            {"project": "vision", "gpus": 0.5},
            SessionRequest("vision", Amount(500)),
            id="GPUs as a number",
        ),
        pytest.param(
            {"project": "vision", "gpus": "8 GiB"},
            SessionRequest("vision", Amount(memory_mib=8192)),
            id="memory",
        ),
        pytest.param({"project": "vision"}, SessionRequest("vision"), id="project without a GPU"),
        pytest.param(
            {"settings": "without"}, SessionRequest(without_settings=True), id="no settings"
        ),
        pytest.param(
            {"project": "vision", "gpus": "1", "gpu_type": "h100,a100"},
            SessionRequest("vision", Amount(1000), {"gpu_type": "h100,a100"}),
            id="GPU types in order",
        ),
        pytest.param(
            {"project": "vision", "gpus": "0", "gpu_type": "h100"},
            SessionRequest("vision"),
            id="GPU type without a GPU",
        ),
        pytest.param(
            {"project": "vision", "gpus": "0", "cpu": "0,5", "memory": "4G"},
            SessionRequest("vision", fields={"cpu": Decimal("0.5"), "memory_mib": 4096}),
            id="CPU and memory without a GPU",
        ),
        pytest.param(
            {"project": "vision", "gpus": "1", "cpu": 4, "memory": "500 MiB"},
            SessionRequest("vision", Amount(1000), {"cpu": Decimal(4), "memory_mib": 500}),
            id="CPU as a number, and memory, with a GPU",
        ),
        pytest.param(
            {"project": "vision", "cpu": 0},
            SessionRequest("vision", fields={"cpu": Decimal(0)}),
            id="no CPU",
        ),
        pytest.param(
            {"project": "vision", "gpus": "0", "cpu": "", "memory": ""},
            SessionRequest("vision"),
            id="empty fields of the form",
        ),
    ],
)
def test_session_request_parses_options_and_returns_them(
    options: dict[str, object], expected: SessionRequest
):
    assert SessionRequest.parse(options) == expected
    assert SessionRequest.parse(expected.options()) == expected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        pytest.param(
            {"project": "vision", "gpus": 1.5},
            "'1.5' GPUs are not possible: above one GPU only whole ones are.",
            id="1.5 GPUs",
        ),
        pytest.param({"gpus": "0.5"}, "Choose a project to get 0.5 GPUs.", id="no project"),
        pytest.param(
            {"project": "../vision", "gpus": 1},
            "That is not a valid project name.",
            id="invalid project",
        ),
        pytest.param({"project": 7, "gpus": 1}, "That is not a valid project name.", id="number"),
        pytest.param(
            {"project": "vision", "gpus": 1, "gpu_type": "a\nb"},
            "gpu_type is 'a\\nb': it has characters that are not possible there, or is too long.",
            id="invalid GPU type",
        ),
        pytest.param({"image": "x"}, "There is no option 'image'.", id="unknown option"),
        pytest.param({"settings": ["x"]}, "\"['x']\" is no choice of settings.", id="settings"),
        pytest.param({"cpu": "2"}, "Choose a project to request CPU or memory.", id="CPU alone"),
        pytest.param(
            {"memory": "2G"}, "Choose a project to request CPU or memory.", id="memory alone"
        ),
    ],
)
def test_session_request_refuses_invalid_options_with_a_hint(
    options: dict[str, object], sentence: str
):
    with pytest.raises(InvalidRequest) as refused:
        SessionRequest.parse(options)

    assert refused.value.message == sentence
    assert refused.value.hint


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        *[
            pytest.param("cpu", value, "use a number such as 0.5 or 2", id=f"CPUs {value}")
            for value in ("many", "NaN", True, ["1"])
        ],
        pytest.param("cpu", "-1", "use a number from 0 upwards", id="CPUs -1"),
        pytest.param("cpu", "0.0001", "use at most three decimals", id="CPUs 0.0001"),
        pytest.param("cpu", "999999", "use at most 100000", id="CPUs 999999"),
        *[
            pytest.param("memory", value, "give a number and a unit", id=f"memory {value}")
            for value in ("4", "much", "none", 7, ["4G"])
        ],
        pytest.param("memory", "0G", "give at least 1M", id="memory 0G"),
        pytest.param("memory", "1000000T", "give at most 900T", id="memory 1000000T"),
    ],
)
def test_session_request_refuses_an_invalid_amount_with_what_is_possible(option, value, sentence):
    with pytest.raises(InvalidRequest) as refused:
        SessionRequest.parse({"project": "vision", option: value})

    assert refused.value.message.startswith(f"{option} is ")
    assert sentence in refused.value.message


def test_session_submission_is_owned_by_the_user_of_the_server():
    request = SessionRequest("vision", Amount(350)).submission(owner="ana", server="big")

    assert request.model_dump(exclude_unset=True) == {
        "name": "lab-ana-big",
        "project": "vision",
        "kind": "session",
        "owner": "ana",
        "server": "big",
        "workdir": "",
        "gpus": Decimal("0.35"),
        "gpu_memory_mib": None,
        "grace_seconds": 30,
    }


def test_submission_requests_the_cpu_and_memory_of_the_session():
    request = SessionRequest.parse({"project": "vision", "cpu": "1.5", "memory": "2 GiB"})
    submission = request.submission(owner="ana", server="")

    assert (submission.cpu, submission.memory_mib) == (Decimal("1.5"), 2048)
    assert submission.gpus == 0


@pytest.mark.parametrize(
    ("time_limit", "seconds", "stored_text"),
    [("8h", 28800, "8h"), (" 90 m", 5400, "90m"), ("20", 20, "20s"), ("", None, None)],
    ids=["hours", "minutes", "seconds", "no limit"],
)
def test_session_time_limit_is_parsed_to_seconds_and_stored_as_text(
    time_limit, seconds, stored_text
):
    request = SessionRequest.parse({"project": "vision", "gpus": "0.5", "time": time_limit})

    assert request.submission(owner="ana", server="").max_runtime == seconds
    assert request.options().get("time") == stored_text
    assert SessionRequest.parse(request.options()) == request


@pytest.mark.parametrize(
    ("time_limit", "sentence"),
    [
        ("soon", "time is 'soon': give a number and a unit, such as 90m, 2h or 3d."),
        ("0h", "time is '0h': use at least 1s."),
        ("-1h", "time is '-1h': give a number and a unit, such as 90m, 2h or 3d."),
        (1.5, "time is 1.5: it must be a whole number."),
        (["8h"], "time is not possible: it must be a whole number."),
    ],
)
def test_invalid_session_time_limit_is_refused_with_what_is_possible(time_limit, sentence):
    with pytest.raises(InvalidRequest) as refused:
        SessionRequest.parse({"project": "vision", "time": time_limit})

    assert refused.value.message == sentence


@pytest.mark.parametrize(
    ("owner", "server", "sentence"),
    [
        (
            "ana",
            "\u202eabc",
            "server is '\\u202eabc': it has characters that are not possible there",
        ),
        ("ana", "a" * 256, "server is 'aaa"),
        ("ana\u2028", "", "owner is 'ana\\u2028': it has characters that are not possible there"),
    ],
    ids=["right-to-left override", "long server name", "line separator in the user"],
)
def test_session_submission_refuses_invalid_owner_and_server_names(owner, server, sentence):
    with pytest.raises(InvalidRequest) as refused:
        SessionRequest("vision", Amount(350)).submission(owner=owner, server=server)

    assert refused.value.message.startswith(sentence)


@pytest.mark.parametrize(
    ("user", "server", "name"),
    [
        ("ana", "", "lab-ana"),
        ("ana", "big", "lab-ana-big"),
        ("Ana", "", "lab-ana--awifg32r42bfaqiz"),
        ("ana-big", "", "lab-ana-big--ar5sl7f6nmsmi5lq"),
        ("秀樹", "", "lab--7qozuelmzkeogt6s"),
        ("ana@example.org", "", "lab-ana-example-org--f6se5h72cy3xncdc"),
        ("a" * 60, "", "lab-aaaaaaaaaaaaaaaa--ucgfmegegt5xvmrd"),
    ],
)
def test_session_name_is_built_from_user_and_server(user: str, server: str, name: str):
    assert session_name(user, server) == name


@given(NAMES, NAMES)
def test_session_name_is_always_a_valid_label(user: str, server: str):
    assert LABEL.fullmatch(session_name(user, server))


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
def test_session_names_of_two_servers_always_differ(
    server: tuple[str, str], other_server: tuple[str, str]
):
    assert (session_name(*server) == session_name(*other_server)) == (server == other_server)


@given(NAMES, NAMES)
def test_session_name_cannot_be_imitated_by_other_user_or_server_names(user: str, server: str):
    parts = session_name(user, server).removeprefix("lab-").split("-")
    imitations = {("-".join(parts), "")} | {
        ("-".join(parts[:n]), "-".join(parts[n:])) for n in range(1, len(parts))
    }

    for imitation in imitations - {(user, server)}:
        assert session_name(*imitation) != session_name(user, server)


@pytest.mark.parametrize(
    ("env", "allocated", "expected"),
    [
        pytest.param({"A": "1"}, {"B": "2"}, {"A": "1", "B": "2"}, id="no path"),
        pytest.param({"A": "1"}, {"A": "2"}, {"A": "2"}, id="allocation wins"),
        pytest.param(
            {"PYTHONPATH": "/site"},
            {"PYTHONPATH": "/hook"},
            {"PYTHONPATH": "/hook:/site"},
            id="PYTHONPATH is extended",
        ),
        pytest.param({"PYTHONPATH": "/site"}, {}, {"PYTHONPATH": "/site"}, id="without a GPU"),
    ],
)
def test_allocation_variables_extend_the_environment_of_a_server(env, allocated, expected):
    assert with_allocated(env, allocated) == expected
