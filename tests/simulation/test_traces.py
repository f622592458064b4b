"""Traces are parsed strictly: every error names line, column and value."""

from __future__ import annotations

import gzip

import pytest

from runai.hub_service.simulation.traces import read_trace, shuffled
from runai.hub_service.wire.errors import InvalidRequest

HEADER = "job,project,submit_s,gpus,duration_s"


def write_trace(folder, *lines, name="jobs.csv"):
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_trace_rows_are_sorted_by_submission(tmp_path):
    path = write_trace(tmp_path, HEADER, "late,a,20,1,5", "b,a,10,0.5,5", "", "a,a,10,8,5")

    rows = read_trace(path)

    assert [(row.job, row.submit_s, row.gpus) for row in rows] == [
        ("a", 10, 8000),
        ("b", 10, 500),
        ("late", 20, 1000),
    ]


def test_gzipped_trace_is_read(tmp_path):
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(gzip.compress(f"{HEADER}\nj,a,0,1,5\n".encode()))

    assert [row.job for row in read_trace(path)] == ["j"]


def test_trace_with_byte_order_mark_and_blanks_is_read(tmp_path):
    path = write_trace(tmp_path, f"\ufeff{HEADER.replace(',', ', ')}", "j, a, 0, 1, 5")

    assert [(row.job, row.project) for row in read_trace(path)] == [("j", "a")]


def test_optional_columns_may_be_empty(tmp_path):
    header = f"{HEADER},min_workers,max_workers,checkpoint_cost_s,kind"
    path = write_trace(tmp_path, header, "j,a,0,2,5,1,4,60,job", "k,a,0,2,5,,,,")

    elastic, rigid = read_trace(path)

    assert (elastic.min_workers, elastic.max_workers, elastic.checkpoint_cost_s) == (1, 4, 60)
    assert not rigid.is_elastic
    assert rigid.checkpoint_cost_s is None
    assert rigid.kind == "job"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        pytest.param(["job,project,gpus"], "line 1: the column submit_s is missing", id="missing"),
        pytest.param([f"{HEADER},wrkers"], "line 1: there is no column 'wrkers'", id="unknown"),
        pytest.param([f"{HEADER},gpus"], "line 1: column gpus is there twice", id="column-twice"),
        pytest.param(
            [HEADER, "j,a,0,1,5", "k,a,0,1"], "line 3: there are 4 values for 5", id="too short"
        ),
        pytest.param(
            [HEADER, "j,a,-3,1,5"], "line 2, column submit_s: '-3' must be a whole", id="negative"
        ),
        pytest.param(
            [HEADER, "j,a,0,1,5.5"], "line 2, column duration_s: '5.5' must be", id="not-whole"
        ),
        pytest.param(
            [HEADER, "j,a,0,eight,5"], "column gpus: 'eight' is no number of GPUs", id="word"
        ),
        pytest.param([HEADER, "j,a,0,nan,5"], "column gpus: 'nan' is no number of GPUs", id="nan"),
        pytest.param([HEADER, "j,a,0,1.5,5"], "column gpus: '1.5' must be whole", id="1.5 GPUs"),
        pytest.param(
            [HEADER, "j,a,0,0.0001,5"],
            "'0.0001' is no number of GPUs: use at most three decimals",
            id="0.0001 GPUs",
        ),
        pytest.param([HEADER, "j,a,0,0,5"], "column gpus: '0' leaves nothing", id="no GPUs"),
        pytest.param([HEADER, ",a,0,1,5"], "column job: '' must not be empty", id="no-name"),
        pytest.param(
            [HEADER, "j,a,0,1,5", "j,b,1,1,5"],
            "line 3, column job: 'j' is there twice, first in line 2",
            id="job-twice",
        ),
        pytest.param(
            [f"{HEADER},kind", "j,a,0,1,5,task"],
            "column kind: 'task' must be job or session",
            id="kind",
        ),
        pytest.param(
            [f"{HEADER},max_workers", "j,a,0,4,5,2"],
            "column gpus: 4 is not between min_workers 1 and max_workers 2",
            id="more GPUs than max_workers",
        ),
        pytest.param(
            [f"{HEADER},min_workers", "j,a,0,0.5,5,1"],
            "column gpus: elastic workers have one GPU each",
            id="elastic-fraction",
        ),
        pytest.param(
            [f"{HEADER},gpu_memory_mib", "j,a,0,1,5,4096"],
            "column gpu_memory_mib: 4096 beside gpus",
            id="gpus-and-memory",
        ),
        pytest.param(
            [f"{HEADER},workers", "j,a,0,8,5,3"],
            "column workers: 8 GPUs cannot be divided among 3",
            id="8 GPUs of 3 workers",
        ),
        *(
            pytest.param(
                [f"{HEADER},busy_pct", f"j,a,0,1,5,{busy}"],
                f"column busy_pct: '{busy}' must be a percentage",
                id=f"busy {busy}",
            )
            for busy in ("101", "-1", "nan", "1e1", "½", "10%")
        ),
        pytest.param([HEADER, '"j,a,0,1,5'], "line 2: this is no CSV", id="unclosed quote"),
        pytest.param(
            [HEADER, f"j,a,0,1,{'9' * 13}"], "column duration_s: '9{13}' is too large", id="endless"
        ),
        pytest.param(
            [HEADER, f"j,a,{'9' * 5000},1,5"], "submit_s: '9{20,60}…' is too large", id="too late"
        ),
        pytest.param(
            [f"{HEADER},gpu_memory_mib,workers", "j,a,0,0,5,4096,10001"],
            "column workers: '10001' is too large: a job has at most 10000",
            id="too-many-workers",
        ),
        pytest.param(
            [f"{HEADER},min_workers", "j,a,0,10001,5,1"],
            "column gpus: 10001 elastic workers are too many",
            id="too-many-elastic",
        ),
    ],
)
def test_malformed_trace_error_names_line_column_and_value(tmp_path, lines, message):
    with pytest.raises(InvalidRequest, match=f"jobs.csv, .*{message}"):
        read_trace(write_trace(tmp_path, *lines))


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"no gzip"], ids=["absent", "bytes", "zip"])
def test_unreadable_trace_file_raises_invalid_request(tmp_path, content):
    path = tmp_path / ("jobs.csv.gz" if content == b"no gzip" else "jobs.csv")
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_trace(path)


def test_seed_decides_the_order_of_jobs_submitted_in_one_second(tmp_path):
    lines = [f"j{n},a,{n // 10},1,5" for n in range(40)]  # ten jobs in each second
    rows = read_trace(write_trace(tmp_path, HEADER, *lines))

    orders = {tuple(row.job.partition(":")[2] for row in shuffled(rows, seed)) for seed in range(5)}

    assert len(orders) == 5  # each seed has its own
    assert [row.submit_s for row in shuffled(rows, 1)] == [row.submit_s for row in rows]
    assert shuffled(rows, 1) == shuffled(rows, 1)
