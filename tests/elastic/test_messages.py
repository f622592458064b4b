"""Messages between a cluster and the workers of an elastic job."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.wire.elastic_messages import (
    MOST,
    ElasticFiles,
    MessageError,
    Reason,
    Target,
    WorkerPhase,
    WorkerStatus,
)

TARGET = Target(7, ("w0", "w3"), "127.0.0.1:4000", gpus=2, least=1, most=4, reason=Reason.EXPAND)
STATUS = WorkerStatus(
    "vision/bob-3", 7, WorkerPhase.RUNNING, pid=12, update=9, samples_per_s=4.5, gpus=2
)


def test_elastic_target_is_read_as_it_was_written_to_its_file(tmp_path):
    files = ElasticFiles(tmp_path / "elastic")

    assert files.target() is None
    files.write_target(TARGET)
    assert files.target() == TARGET
    assert json.loads(files.target_path.read_text()) == {
        "gen": 7,
        "ranks": ["w0", "w3"],
        "gpus": 2,
        "min": 1,
        "max": 4,
        "reason": "expand",
        "deadline": "",
        "store": "127.0.0.1:4000",
    }


def test_elastic_worker_status_is_read_by_the_name_of_its_worker(tmp_path):
    files = ElasticFiles(tmp_path)

    assert files.status("vision/bob-3") is None
    files.write_status(STATUS)
    assert files.status("vision/bob-3") == STATUS
    assert files.statuses() == {"bob-3": STATUS}


def test_written_elastic_messages_leave_no_temporary_files(tmp_path):
    files = ElasticFiles(tmp_path)
    for gen in range(3):
        files.write_target(Target(gen, ("w0",), "h:1", gpus=1, least=1, most=1))
    files.write_status(STATUS)

    remaining = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert remaining == ["status/bob-3.json", "target.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"gen": "seven"}, "`gen` cannot be 'seven'", id="type"),
        pytest.param({"gen": True}, "`gen` cannot be True", id="bool"),
        pytest.param({"store": None}, "`store` cannot be None", id="missing"),
        pytest.param({"ranks": []}, "only a pause leaves nobody", id="no-ranks"),
        pytest.param({"ranks": [1]}, r"must name the workers, not \[1\]", id="rank-is-no-name"),
        pytest.param({"reason": "whim"}, "`reason` is 'whim'; known are", id="reason"),
    ],
)
def test_invalid_target_error_names_the_file_field_and_value(tmp_path, change, message):
    path = tmp_path / "target.json"
    path.write_text(json.dumps({**TARGET.to_json(), **change}))

    with pytest.raises(MessageError, match=f"{path}: .*{message}"):
        ElasticFiles(tmp_path).target()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3"])
def test_target_file_without_a_json_object_is_refused(tmp_path, text):
    (tmp_path / "target.json").write_text(text)

    with pytest.raises(MessageError, match=r"target\.json"):
        ElasticFiles(tmp_path).target()


def test_malformed_status_file_is_skipped(tmp_path):
    files = ElasticFiles(tmp_path)
    files.write_status(STATUS)
    (tmp_path / "status" / "other.json").write_text("{")

    assert list(files.statuses()) == ["bob-3"]


@given(
    st.builds(
        WorkerStatus,
        worker=st.from_regex(r"[a-z]{1,5}/[a-z]{1,5}-[0-9]", fullmatch=True),
        gen=st.integers(0, MOST),
        state=st.sampled_from(WorkerPhase),
        pid=st.integers(1, MOST),
        update=st.integers(0, MOST),
        samples_per_s=st.floats(0, MOST, allow_nan=False, allow_infinity=False),
        gpus=st.integers(0, MOST),
    )
)
def test_worker_status_round_trips_through_json(status):
    assert WorkerStatus.from_json(json.loads(json.dumps(status.to_json()))) == status
