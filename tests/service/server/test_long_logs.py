"""Output of a million lines, or of one line without an end: returned whole, piece by piece."""

from __future__ import annotations

import sys

import pytest

from runai.hub_service.client import AsyncClient
from runai.hub_service.wire.schemas import WorkloadDetail
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually_async

MILLION_LINES = 1_000_000
UNENDED_LINE_SCRIPT = "import sys; sys.stdout.write('x' * 3_000_000 + chr(0))"


async def run_program(client: AsyncClient, *command: str) -> WorkloadDetail:
    """Run a program to its end; return its workload."""
    request = SubmitRequest(name="long", project="vision", command=[*command])
    (submitted,) = (await client.submit(request)).workloads

    async def ended() -> bool:
        return (await client.workload(submitted.id)).state == "succeeded"

    await eventually_async(ended, what="it has written everything")
    return await client.workload(submitted.id)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("lines", [50_000, pytest.param(MILLION_LINES, marks=pytest.mark.slow)])
async def test_long_job_output_is_returned_whole_or_from_its_end(ana, lines):
    job = await run_program(ana, "seq", str(lines))

    last = [line.text async for line in ana.logs(job.id, tail=3)]
    count, before = 0, 0
    async for line in ana.logs(job.id, follow=True):
        count += 1
        assert int(line.text) == before + 1
        before = int(line.text)

    assert last == [str(lines - 2), str(lines - 1), str(lines)]
    assert count == lines


async def test_log_line_without_an_end_is_returned_in_pieces(ana):
    job = await run_program(ana, sys.executable, "-I", "-S", "-c", UNENDED_LINE_SCRIPT)

    pieces = [line.text async for line in ana.logs(job.id)]

    assert "".join(pieces) == "x" * 3_000_000 + "\0"
    assert max(map(len, pieces)) <= 2**20


async def test_omitted_job_output_is_reported_in_a_separate_field(ana):
    fake_gap_line = "… 7 lines (1 KiB) are not kept …"
    # 120 MB in lines of 1,000 bytes: the service stores the first MiB and ten files of 10 MiB.
    job = await run_program(
        ana, "sh", "-c", f"echo '{fake_gap_line}'; yes $(printf '%0999d') | head -120000"
    )

    first = gap = None
    before_gap = after_gap = ""
    async for line in ana.logs(job.id):
        first = first or line
        if gap is not None:
            after_gap = line.text
            break
        if line.missing is None:
            before_gap = line.text
        else:
            gap = line
    missing_in_tail = [line.missing async for line in ana.logs(job.id, tail=5)]

    assert first is not None
    assert gap is not None
    assert gap.missing is not None
    assert (first.text, first.missing) == (fake_gap_line, None)
    assert missing_in_tail == [None] * 5
    assert before_gap == after_gap == "0" * 999
    assert gap.text == str(gap.missing)
    assert gap.missing.bytes == gap.missing.lines * 1000
    assert 13_000 < gap.missing.lines < 25_000


async def test_unfinished_log_line_is_sent_only_to_clients_that_request_parts(ana, tmp_path):
    go_file = tmp_path / "go"
    script = (
        f"echo a; printf '1 %%\\r'; until [ -e {go_file} ]; do sleep 0.1; done; printf '2 %%\\r\\n'"
    )
    request = SubmitRequest(name="bar", project="vision", command=["sh", "-c", script])
    (job,) = (await ana.submit(request)).workloads

    following = ana.logs(job.id, follow=True, parts=True)
    first = [await anext(following) for _ in range(2)]
    go_file.touch()
    remainder = [line async for line in following]
    whole = [line async for line in ana.logs(job.id, follow=True)]

    assert [(line.text, line.part) for line in first] == [("a", False), ("1 %\r", True)]
    assert "".join(line.text for line in remainder) == "2 %\r"
    assert [line.part for line in remainder][-1:] == [False]
    assert [(line.text, line.part) for line in whole] == [("a", False), ("1 %\r2 %\r", False)]


async def test_slow_log_reader_does_not_block_other_requests(ana):
    job = await run_program(ana, "seq", "200000")
    reading = ana.logs(job.id, follow=True)
    first = (await anext(reading)).text

    # The service has filled the connection's buffer, and answers other requests meanwhile.
    assert first == "1"
    assert (await ana.workload(job.id)).state == "succeeded"
    await reading.aclose()
