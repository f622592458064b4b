"""Starts of jobs whose account does not answer, is gone, or is another person's now."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from labs import Clock, local_lab, plan, start
from runai.hub_service.clusters.local.files.job_dir_cleanup import DeletedWorkload
from runai.hub_service.clusters.local.processes import start_accounts
from runai.hub_service.clusters.states.transition import Transition
from runai.hub_service.wire.errors import Forbidden, Unavailable
from unix_accounts import UIDS, accounts
from waiting import eventually_async

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run jobs as users")

DIRECTORY_AWAY = {"local": False}
"""The lookup's result while the account directory (LDAP, SSSD) does not answer."""
NEW_UID = 2003


@pytest.fixture
def unix():
    with accounts() as unix:
        for user in UIDS:
            unix.answer(user, unix.entry(user, local=False))
        yield unix


@pytest.fixture
async def lab(unix, tmp_path, monkeypatch):
    monkeypatch.setattr(start_accounts, "LOOK_UP_EVERY_S", 0.01)
    clock = Clock()
    directory = unix.directory(tmp_path / "data", clock=clock)
    async with local_lab(tmp_path, clock, accounts=directory) as lab:
        yield lab


async def submit_job(lab, name="exp", command=("id", "-u"), **changed):
    [record] = await lab.cluster.submit([lab.job(name, command=command, **changed)])
    return record.id


async def start_job(lab, workload, *devices):
    assert await lab.cluster.apply(plan(start(workload, *(devices or (0,))))) == []


async def read_output(lab, workload):
    chunks = lab.cluster.logs(workload, worker=None, tail=None, follow=False)
    return b"".join([chunk.lines async for chunk in chunks]).decode()


async def is_removed(folder):
    return not await asyncio.to_thread(folder.exists)


class TestUnreachableAccount:
    """What can come back is no failure: the job waits, holds nothing, and starts by itself."""

    async def test_job_of_an_unreachable_account_waits_and_starts_when_it_is_back(self, lab, unix):
        workload = await submit_job(lab)
        unix.answer("ana", DIRECTORY_AWAY)
        await start_job(lab, workload)

        record = await lab.until(workload, "retrying")
        assert record.reason.code == "account_away"
        assert record.reason.text.startswith("The account directory does not answer for ana since")
        assert (record.allocated, record.failures, record.not_before) == (0, 0, None)

        unix.answer("ana", unix.entry("ana", local=False))
        await lab.until(workload, "queued")
        await start_job(lab, workload)
        await lab.until(workload, "succeeded")
        assert await read_output(lab, workload) == f"{UIDS['ana']}\n"

    async def test_unreachable_account_delays_all_queued_jobs_of_its_user_only(self, lab, unix):
        workload, next_job = await submit_job(lab), await submit_job(lab, "next")
        array = await submit_job(lab, "many", array=3)
        foreign_job = await submit_job(lab, "theirs", user="pat")
        unix.answer("ana", DIRECTORY_AWAY)
        await start_job(lab, workload)

        for job in (workload, next_job):
            await lab.until(job, "retrying")
        assert (await lab.cluster.workload(array)).states == {"retrying": 3}
        assert {job.name for job in (await lab.cluster.observe()).workloads} == {foreign_job}

        unix.answer("ana", unix.entry("ana", local=False))
        await lab.until(next_job, "queued")
        assert (await lab.cluster.workload(array)).states == {"queued": 3}

    async def test_running_job_goes_on_when_a_queued_job_of_its_user_is_set_aside(self, lab, unix):
        running_job = await submit_job(lab, "runs", command=("sleep", "1000"))
        workload = await submit_job(lab)
        await start_job(lab, running_job, 1)
        await lab.until(running_job, "running")
        unix.answer("ana", DIRECTORY_AWAY)
        await start_job(lab, workload)

        await lab.until(workload, "retrying")

        assert (await lab.cluster.workload(running_job)).state == "running"

    async def test_elastic_job_goes_on_if_a_joining_worker_has_no_account(self, lab, unix):
        command = ("sh", "-c", "sleep 1000")
        workload = await submit_job(lab, command=command, elastic=True, workers=2, min_workers=1)
        await start_job(lab, workload)
        await lab.until(workload, "running")
        unix.answer("ana", DIRECTORY_AWAY)
        await lab.cluster.apply(plan(start(workload, 1, worker=1)))

        async def is_alone():
            workers = (await lab.cluster.workload(workload)).workers
            return [worker.state for worker in workers] == ["running", "pending"]

        await eventually_async(is_alone)

    async def test_job_waits_until_the_home_of_its_user_can_be_reached(self, lab, unix):
        workload = await submit_job(lab)
        unix.answer("ana", unix.entry("ana", home_fault="Stale file handle"))
        await start_job(lab, workload)

        record = await lab.until(workload, "retrying")
        assert record.reason.code == "home_away"

        unix.answer("ana", unix.entry("ana"))
        await lab.until(workload, "queued")

    async def test_job_waiting_for_its_account_can_be_suspended_and_deleted(self, lab, unix):
        workload = await submit_job(lab)
        unix.answer("ana", DIRECTORY_AWAY)
        await start_job(lab, workload)
        await lab.until(workload, "retrying")

        assert (await lab.cluster.suspend(workload, by="ana")).state == "suspended"
        await lab.cluster.delete(workload, by="ana")
        await lab.until_deleted(workload)

    async def test_suspended_array_with_all_elements_begun_can_be_resumed(self, lab):
        array = await submit_job(lab, "many", array=1, command=("sleep", "1000"))
        await start_job(lab, f"{array}-0")
        await lab.until(f"{array}-0", "running")
        await lab.cluster.suspend(array, by="ana")
        await lab.until(f"{array}-0", "suspended")

        await lab.cluster.resume(array, by="ana")

        assert (await lab.cluster.workload(f"{array}-0")).state == "paused"

    async def test_submission_with_an_unreachable_account_is_refused(self, lab, unix):
        await submit_job(lab)
        unix.answer("ana", DIRECTORY_AWAY)

        with pytest.raises(Unavailable, match="The account directory does not answer for ana"):
            await submit_job(lab, "next")

        assert [record.spec.name for record in await lab.cluster.workloads()] == ["exp"]


async def test_job_start_that_cannot_be_set_aside_on_a_full_disk_is_retried(lab, unix, monkeypatch):
    aside = lab.cluster.executor._start_accounts._cluster
    monkeypatch.setattr(aside, "set_aside", FullDiskOnce(aside.set_aside))
    workload = await submit_job(lab)
    unix.answer("ana", DIRECTORY_AWAY)
    await start_job(lab, workload)

    await lab.until(workload, "retrying")


class FullDiskOnce:
    """A change that finds the disk full at the first time."""

    def __init__(self, change):
        self._change, self._is_full = change, True

    def __call__(self, *args):
        if self._is_full:
            self._is_full = False
            raise Unavailable("The disk is full.")
        self._change(*args)


async def test_job_waiting_for_its_account_is_queued_by_the_restarted_service(
    unix, tmp_path, monkeypatch
):
    monkeypatch.setattr(start_accounts, "LOOK_UP_EVERY_S", 0.01)
    directory = unix.directory(tmp_path / "data")
    async with local_lab(tmp_path, accounts=directory, forget=False) as lab:
        workload = await submit_job(lab)
        unix.answer("ana", DIRECTORY_AWAY)
        await start_job(lab, workload)
        await lab.until(workload, "retrying")
    unix.answer("ana", unix.entry("ana", local=False))

    async with local_lab(tmp_path, accounts=directory) as lab:
        await lab.until(workload, "queued")


class TestRemovedAccount:
    """An account that this machine's own list lacks for ten minutes was removed."""

    @pytest.fixture
    async def waiting_job(self, lab, unix):
        unix.answer("ana", unix.entry("ana"))
        workload = await submit_job(lab)
        unix.answer("ana", DIRECTORY_AWAY)
        await start_job(lab, workload)
        await lab.until(workload, "retrying")
        return workload

    async def test_job_of_a_removed_account_is_suspended_after_ten_minutes(
        self, lab, unix, waiting_job
    ):
        lab.clock.at += start_accounts.GIVE_UP_AFTER_S

        record = await lab.until(waiting_job, "suspended")
        assert record.reason.text.startswith("The account ana is gone since")

        unix.answer("ana", unix.entry("ana"))
        await lab.cluster.resume(waiting_job, by="ana")
        await start_job(lab, waiting_job)
        await lab.until(waiting_job, "succeeded")


class TestReusedUserName:
    """Another uid under an old name starts nothing and touches nothing."""

    async def test_job_submitted_under_a_former_uid_starts_only_after_an_admin_confirms(
        self, lab, unix
    ):
        workload = await submit_job(lab)
        unix.answer("ana", unix.entry("ana", uid=UIDS["pat"], home=str(unix.folder / "pat")))
        await start_job(lab, workload)
        record = await lab.until(workload, "retrying")
        assert record.reason.code == "other_person"
        assert f"ana has uid {UIDS['pat']} now, it was {UIDS['ana']}" in record.reason.text
        assert (record.account_uid, record.allocated) == (UIDS["ana"], 0)

        lab.cluster.executor._directory.known_accounts.take_uid("ana", UIDS["pat"])
        await lab.until(workload, "queued")
        os.chown(unix.folder / "ana", UIDS["pat"], -1)  # as the admin does
        assert (await lab.cluster.history(workload))[-1].text == (
            f"tries again as uid {UIDS['pat']}: an admin says that it is the same person as uid"
            f" {UIDS['ana']}"
        )
        await start_job(lab, workload)
        await lab.until(workload, "succeeded")
        assert await read_output(lab, workload) == f"{UIDS['pat']}\n"

    async def test_job_of_a_forgotten_uid_waits_until_it_is_deleted(self, lab, unix):
        workload, next_job = await submit_job(lab), await submit_job(lab, "next")
        known_accounts = lab.cluster.executor._directory.known_accounts
        known_accounts.forget("ana")
        unix.answer("ana", unix.entry("ana", uid=UIDS["pat"], home=str(unix.folder / "pat")))
        await lab.cluster.executor._directory.account("ana")
        await start_job(lab, workload)
        for job in (workload, next_job):
            await lab.until(job, "retrying")

        job_of_new_uid = await submit_job(lab, "new")
        await start_job(lab, job_of_new_uid)
        await lab.until(job_of_new_uid, "succeeded")
        for job in (workload, next_job):
            assert (await lab.cluster.workload(job)).state == "retrying"

    @pytest.mark.parametrize("action", ["submit", "resume"])
    async def test_user_with_a_new_uid_can_neither_submit_nor_resume(self, lab, unix, action):
        workload = await submit_job(lab)
        await lab.cluster.suspend(workload, by="ana")
        unix.answer("ana", unix.entry("ana", uid=NEW_UID))

        with pytest.raises(Forbidden, match="an admin says whether this is the same person"):
            await (
                submit_job(lab, "next")
                if action == "submit"
                else lab.cluster.resume(workload, by="ana")
            )

    async def test_job_files_are_removed_under_the_uid_of_the_submission(self, lab, unix):
        workload = await submit_job(lab, command=("sh", "-c", 'touch "$RUNAI_CHECKPOINT_DIR/x"'))
        await start_job(lab, workload)
        checkpoint_dir = Path((await lab.until(workload, "succeeded")).checkpoint_dir)
        unix.answer("ana", unix.entry("ana", uid=UIDS["pat"]))

        assert lab.cluster.executor._accounts.of(lab.cluster.index[workload]).uid == UIDS["ana"]
        await lab.cluster.delete(workload, by="an admin")
        await lab.until_deleted(workload)

        await eventually_async(lambda: is_removed(checkpoint_dir))


class TestForgotten:
    """Files in the home of a forgotten person stay, however their jobs are deleted."""

    @pytest.mark.parametrize("removal", ["deletion", "age", "deletion after the name was reused"])
    async def test_job_folder_of_a_forgotten_user_is_not_removed_when_the_job_is_deleted(
        self, lab, unix, removal
    ):
        own_dir, other_dir = [
            Path((await self.run_to_its_end(lab, name, user)).checkpoint_dir).parent
            for name, user in (("exp", "ana"), ("other", "pat"))
        ]
        known_accounts = lab.cluster.executor._directory.known_accounts
        known_accounts.request_forget("ana")
        if removal == "deletion after the name was reused":
            known_accounts.forget("ana")
            unix.answer("ana", unix.entry("ana", uid=NEW_UID))
            await lab.cluster.executor._directory.account("ana")

        for workload in ("vision/exp", "vision/other"):  # the last removal ends last
            if removal == "age":
                lab.cluster.commit({workload: Transition(None, aged=True)})
            else:
                await lab.cluster.delete(workload, by="an admin")
            await lab.until_deleted(workload)
        await eventually_async(lambda: is_removed(other_dir / "source.py"))

        assert [path.name for path in sorted(own_dir.rglob("*"))] == [
            "checkpoints",
            "x",
            "source.py",
        ]

    async def run_to_its_end(self, lab, name, user):
        script = 'cd "$RUNAI_CHECKPOINT_DIR" && touch x ../source.py'
        await start_job(lab, await submit_job(lab, name, command=("sh", "-c", script), user=user))
        return await lab.until(f"vision/{name}", "succeeded")

    async def test_deleted_workload_entry_round_trips_through_its_trash_folder_name(
        self, lab, tmp_path
    ):
        deleted = DeletedWorkload("vision/exp", 1.5, aged=False, skips_home=True)

        assert DeletedWorkload.of(deleted.folder()) == deleted

    async def test_job_of_a_user_being_forgotten_waits_and_new_submissions_are_refused(
        self, lab, unix
    ):
        workload = await submit_job(lab)
        known_accounts = lab.cluster.executor._directory.known_accounts
        known_accounts.request_forget("ana")
        await start_job(lab, workload)

        assert (await lab.until(workload, "retrying")).reason.code == "being_forgotten"
        with pytest.raises(Forbidden, match="ana is being forgotten"):
            await submit_job(lab, "next")
        await lab.cluster.delete(workload, by="the hub")
        await lab.until_deleted(workload)

        known_accounts.forget("ana")
        await start_job(lab, await submit_job(lab, "new"))
        await lab.until("vision/new", "succeeded")
