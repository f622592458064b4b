"""Jobs as Python objects, against a real service."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

from runai.hub_service.wire.errors import Conflict, NotFound
from runai.hub_service.wire.workload_request import request_fields
from runai.widgets import Job, Jobs, connect, submit
from runai.widgets import text as texts
from runai.widgets.jobs import Options


@pytest.fixture
def link(folder, service):
    link = connect(service.url, service.tokens["bob"])
    yield link
    link.close()


def test_waited_job_has_its_exit_code_and_output(link, capsys):
    job = submit("hello.py", gpus=0.5, name="exp1", args=["world"])

    assert job.wait() is job
    assert (job.state, job.finished, job.detail.exit_code) == ("succeeded", True, 0)
    assert list(job.lines()) == ["hello world"]
    job.logs(tail=1)
    assert capsys.readouterr().out == "hello world\n"


async def test_awaited_job_does_not_block_the_event_loop(link):
    job = submit("hello.py", gpus=0.25)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    assert await job is job
    ticking.cancel()

    assert job.state == "succeeded"
    assert ticks > 1


async def test_cancelled_await_of_a_job_leaves_the_job_running(link, eventually):
    job = submit("endless.py", gpus=1)
    eventually(lambda: job.state == "running")

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.ensure_future(job._finish()), 0.1)

    assert job.state == "running"


def test_failed_job_after_wait_has_a_state_and_raises_no_exception(link):
    job = submit("fail.py", gpus=0.25, wait=True)

    assert (job.state, job.detail.exit_code) == ("failed", 3)
    assert "exit code 3" in repr(job)


def test_array_wait_returns_after_all_its_jobs_ended(link):
    jobs = submit("hello.py", gpus=0.25, name="sweep", array=2)

    assert isinstance(jobs, Jobs)
    assert [job.state for job in jobs.wait()] == ["succeeded", "succeeded"]


def test_job_find_uses_the_name_and_suggests_a_close_one(link):
    submit("hello.py", gpus=0.25, name="exp1")

    assert Job.find("exp1").id == "vision/exp1"
    with pytest.raises(NotFound, match="Did you mean exp1"):
        Job.find("exp2")


def test_job_object_suspends_resumes_and_deletes_its_job(link, eventually):
    job = submit("endless.py", gpus=1, name="exp1", grace_seconds=5)
    eventually(lambda: job.state == "running")

    assert job.suspend() is job
    eventually(lambda: job.state == "suspended")
    job.resume()
    eventually(lambda: job.state == "running")
    job.delete()

    with pytest.raises(NotFound):
        job.wait()
    assert repr([job]) == "[vision/exp1: There is no workload vision/exp1.]"


def test_job_outside_a_notebook_displays_as_text(link):
    job = submit("hello.py", gpus=0.25).wait()

    bundle, _ = job._repr_mimebundle_()

    assert bundle == {"text/plain": repr(job)}
    assert isinstance(job.describe(), texts.Text)


def test_job_object_refuses_actions_on_a_later_job_of_its_name(link, eventually):
    job = submit("endless.py", name="exp1", grace_seconds=1)
    job_by_id = Job("vision/exp1")
    assert job_by_id.detail.uid == job.uid
    job.delete()
    eventually(lambda: "exp1" not in [view.name for view in job.link.client.workloads()])
    later_job = submit("endless.py", name="exp1", grace_seconds=1)

    for earlier in (job, job_by_id):
        for action in (earlier.delete, earlier.suspend, earlier.wait, earlier.describe):
            with pytest.raises(Conflict, match="another one, submitted by bob at"):
                action()
    assert later_job.state in {"starting", "running"}
    later_job.delete()


def test_submit_shows_each_keyword_with_its_help_and_tab_completes_it(link):
    fields = request_fields()
    keywords = {field.keyword for field in fields}
    shell = InteractiveShell.instance()
    shell.push({"submit": submit})

    text = "submit('hello.py', gp"
    with provisionalcompleter():
        completions = {each.text for each in shell.Completer.completions(text, len(text))}

    assert keywords | {"program", "args", "wait"} == set(inspect.signature(submit).parameters)
    # The overloads of `submit` have `array` themselves, since it decides the result's type.
    assert set(Options.__annotations__) == (keywords - {"array"}) | {"args", "wait"}
    assert all(f"    {field.keyword}: " in (submit.__doc__ or "") for field in fields)
    assert {"gpus=", "gpu_memory=", "gpu_type="} <= completions
