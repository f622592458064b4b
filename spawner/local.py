"""`c.JupyterHub.spawner_class = "runai-local"`: servers as local processes with GPUs.

The order of a start: options → admission by the service → environment → process → attach. The
service owns the allocation, JupyterHub the process. With system users the process runs as the
user's Unix account, else its home is a folder of the data directory.
"""

import asyncio
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import psutil
from jupyterhub.spawner import LocalProcessSpawner
from traitlets import Bool, Dict, Float, Integer, Unicode, default

from runai.hub_service.client.calls import WorkloadIdentity
from runai.hub_service.processes.accounts import account_limits
from runai.hub_service.processes.accounts.account_directory import (
    READ_FOR_S,
    AccountDirectory,
    directory_of,
)
from runai.hub_service.processes.accounts.umask import USUAL
from runai.hub_service.processes.folder_lock import locked
from runai.hub_service.processes.path_faults import PROGRAM as PATH_CHECK
from runai.hub_service.processes.session_end import SESSION_ID, SessionProcesses, end_session
from runai.hub_service.processes.shell_environment import beneath, python_variables
from runai.hub_service.processes.tmp_dirs import TmpDirs, is_in_tmp_dir
from runai.hub_service.processes.user_account import (
    UnixAccount,
    caches,
    home_name,
    readable_by,
    unknown_account,
)
from runai.hub_service.processes.user_environment import NOTE, Prepared, UserEnvironment
from runai.hub_service.wire.errors import RunaiError
from runai.hub_service.wire.problems import current as current_request
from runai.hub_service.wire.program_schemas import ProcessReport
from runai.spawner.admission import Admission, SessionRefused
from runai.spawner.first_answer import end_wait_with_server
from runai.spawner.session_request import SessionRequest, with_allocated
from runai.spawner.session_spawner import SessionSpawnerMixin, options_from_form, session_request
from runai.spawner.settings_folder import STARTED_WITHOUT, SettingsFolder
from runai.spawner.start_output import StartOutput, output_file
from runai.spawner.start_progress import StartProgress

LOGIN_SHELLS = {"bash", "dash", "fish", "ksh", "sh", "zsh"}
"""Shells that take -l together with -c."""
POLL_INTERVAL_S = 0.25
"""Seconds between checks of a process that has not answered yet."""
SETTINGS_HINT = "Are your own settings the cause? The form offers Start without my settings."
RUNTIME = ".local/share/jupyter/runtime"
"""Folder in the home that Jupyter must be able to write to, unless one of these names another."""
RUNTIME_ELSEWHERE = {"JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "XDG_DATA_HOME"}
NO_DEVICES = {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}


class RunaiLocalSpawner(SessionSpawnerMixin, LocalProcessSpawner):
    """A spawner of JupyterLab processes that waits until the scheduler grants the GPU."""

    system_users = Bool(
        False, help="Run servers as the Unix accounts of their users (the hub must be root)."
    ).tag(config=True)
    login_service = Unicode(
        help="PAM's service of logins, which says whether an account has expired; empty: none does."
    ).tag(config=True)
    users_directory = Unicode(help="Where homes are made without system_users.").tag(config=True)
    data_directory = Unicode(
        help="Directory of the platform, which finds servers' temporary folders; empty: none."
    ).tag(config=True)
    examples_directory = Unicode(
        help="Folder that a new home is given as `examples` (without system_users); empty: none."
    ).tag(config=True)
    open_files = Integer(
        0, help="Soft limit of descriptors that a server begins with; 0: as the hub's process."
    ).tag(config=True)
    shell_environment = Dict(
        help="Variables that a server inherits where its other settings do not set them; paths only"
        " if its account can read them."
    ).tag(config=True)
    launch_timeout = Float(
        60, help="Seconds that the process may take to start once its GPU is granted."
    ).tag(config=True)

    of_machine = True
    pam_service = account_limits.SERVICE
    pid: int
    popen_kwargs: Any
    workload: str

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - traitlets' own signature
        super().__init__(**kwargs)
        self.workload = ""
        self._created = 0.0
        self._session_env: Mapping[str, str] = {}
        self._session_umask = ""
        self._session_id = ""
        self._start_env: dict[str, str] = {}
        self._tmp_fds = ExitStack()
        self._python = Prepared(usable=True)
        self._limits = account_limits.AccountLimits()
        self._settings: SettingsFolder | None = None
        self._progress = StartProgress()
        self._start_account: UnixAccount | None = None
        """The account of this start, with system users."""

    # -- options ---------------------------------------------------------------------------------

    @default("start_timeout")
    def _default_start_timeout(self) -> int:
        return int(self.queue_timeout + self.launch_timeout)

    @default("poll_interval")
    def _default_poll_interval(self) -> int:
        return 5  # checking a local process is cheap

    @default("options_from_form")
    def _default_options_from_form(self) -> Callable[..., Any]:
        return options_from_form

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> tuple[str, int]:
        """Wait for the GPU, start the process, and attach it to its workload."""
        if self._progress.is_over:  # else keep it: a browser may already listen to it
            self._progress = StartProgress()
        progress = self._progress
        self.is_starting = True
        try:
            with self._options_accepted():
                request = session_request(self.user_options or {})
            self._settings = self._take_settings_option() if request.without_settings else None
            if self.system_users:
                self._start_account = await self._find_account()
            else:
                await asyncio.to_thread(self._prepare_home)
            await asyncio.to_thread(self._check_account)
            self._python = await asyncio.to_thread(self._prepare_python)
            self._limits = await asyncio.to_thread(self._account_limits)
            requested = f"{request.amount.in_words()} in {request.project}"
            request_id = self._log_request(requested) if request.is_workload else ""
            async with self._client(request_id) as client:
                admission = Admission(client, progress.append)
                try:
                    if request.is_workload:
                        await self._admit(admission, request)
                    progress.append("Starting JupyterLab")
                    address: tuple[str, int] = await super().start()
                    report = await self._process_report()
                    end_wait_with_server(self.server, self._watch_process)
                    if admission.workload:
                        await admission.attach(report)
                except BaseException:
                    # Also after a cancel: release the allocation and stop the process.
                    await asyncio.shield(self._undo(admission))
                    raise
        finally:
            self._tmp_fds.close()
            progress.close()
        self.is_starting = self.has_failed = False
        return address

    async def stop(self, now: bool = False) -> None:  # noqa: FBT001, FBT002 - JupyterHub's signature
        """Stop the process, then release its GPU."""
        workload, session = self.workload, self._session_processes()
        await super().stop(now=now)
        await self._release(workload if self.workload else "", session)

    async def poll(self) -> int | None:
        """Return the exit status, None while it runs. After its end, release its GPU."""
        if self.proc is None and not self.pid:
            return 0  # not started yet; the base class would clear `workload`
        if self.proc is None and not self._is_ours():
            self.pid = 0  # it ended while no hub ran; the pid may be reused
        workload, session = self.workload, self._session_processes()
        status: int | None = await super().poll()  # clears the workload with the process
        if status is not None:
            await self._release(workload, session)
        return status

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the start's progress events, one for each new sentence."""
        async for event in self._progress.events():
            yield event

    def get_state(self) -> dict[str, Any]:
        """Return the stored state, with the process's start time, its workload and its id."""
        state: dict[str, Any] = super().get_state() | {"has_failed": self.has_failed}
        if self.pid:
            state.update(created=self._created, workload=self.workload, session_id=self._session_id)
            if self._start_account is not None:
                state["account_uid"] = self._start_account.uid
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Load the state of a server that an earlier hub started."""
        super().load_state(state)
        self._created = state.get("created", 0.0)
        self.workload = state.get("workload", "")
        self._session_id = state.get("session_id", "")
        if self.system_users and (uid := state.get("account_uid")) is not None:
            self._start_account = replace(self._account, uid=uid)
        self.has_failed = state.get("has_failed", False)

    def clear_state(self) -> None:
        """Clear the process and its workload."""
        super().clear_state()
        self._created = 0.0
        self.workload = ""
        self._session_env, self._session_umask = {}, ""
        self._session_id = ""

    # -- environment -----------------------------------------------------------------------------

    def get_env(self) -> dict[str, str]:
        """Choose a session id; return the environment: the shell's, user's, then allocation's."""
        env = beneath(self.inherited_environment(), super().get_env())
        if url := self.api_url or self.service_url:  # both are on this machine
            env["RUNAI_API_URL"] = url
        python, usable = self._user_environment, self._python.usable
        env |= python.variables(env, usable=usable)
        env["JUPYTER_PATH"] = python.jupyter_path(env.get("JUPYTER_PATH", ""), usable=usable)
        if self._python.note:
            env[NOTE] = self._python.note
        if self._settings is not None:
            env |= self._settings.variables(self._home)
        # The service chooses a workload's session id, and ends its processes by it.
        allocated = {SESSION_ID: uuid4().hex, **(self._session_env or NO_DEVICES)}
        inherited = env.get("TMPDIR", "")  # the admin's setting, or of a session that we run in
        own_tmp = {"TMPDIR": inherited} if inherited and not is_in_tmp_dir(inherited) else {}
        if not own_tmp and "TMPDIR" not in allocated:
            allocated |= self._make_tmp_dir(allocated[SESSION_ID])
        self._start_env = caches(self._home) | with_allocated(env, allocated) | own_tmp
        self._session_id = allocated[SESSION_ID]
        return self._start_env

    def inherited_environment(self) -> dict[str, str]:
        """Return the variables of the shell that the server's account can use."""
        return readable_by(self._account.uid, self._account.groups, self.shell_environment)

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """Add the user's name, home and shell."""
        bash = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
        env["LOGNAME"] = env["USER"] = self.user.name  # as on a login
        env["HOME"] = str(self._home)
        env["SHELL"] = self._account.shell if self.system_users else bash
        return env

    def get_args(self) -> list[str]:
        """Return the server's arguments; JupyterLab refuses to run as root without a flag."""
        args: list[str] = super().get_args()
        path = self._user_environment.path(usable=self._python.usable)
        if terminal := terminal_command(self.user_env({}).get("SHELL", ""), path):
            args = [*args, f"--ServerApp.terminado_settings=shell_command={shlex.join(terminal)}"]
        if self.system_users:  # a name may be another person's a minute later
            args = [*args, f"--HubOAuth.cache_max_age={READ_FOR_S:.0f}"]
        return [*args, "--allow-root"] if self._uid == 0 else args

    def make_preexec_fn(self, name: str) -> Callable[[], None]:
        """Return the child's setup: change user and directory, redirect its output."""
        del name
        account = self._account
        home, output = self._home, StartOutput(self._home, self._output, self._uid)
        self._start_output = output
        settings, umask = self._settings, int(self._umask, 8)
        self.popen_kwargs |= {"pass_fds": self._lock_tmp_dir()}
        open_files, hard = self.open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        limits = self._limits

        def before_exec() -> None:
            os.umask(0o077)
            if open_files:
                resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, hard))
            limits.apply()
            if account.uid is not None:
                os.setgroups(account.groups)
                os.setgid(account.gid)
                os.setuid(account.uid)
            os.chdir(home)
            output.redirect()
            if settings is not None:
                settings.make()
            os.umask(umask)  # the hub's own is stricter

        return before_exec

    def move_certs(self, paths: dict[str, str]) -> Any:  # noqa: ANN401 - the base class's
        """Move certificates only for system users: else the hub's account reads them."""
        return super().move_certs(paths) if self.system_users else paths

    # -- parts of a life -------------------------------------------------------------------------

    @property
    def _account(self) -> UnixAccount:
        """Return the account of this start; before it what is known of the user's name."""
        name = self.user.name
        if self._start_account is not None:
            return self._start_account
        if self.system_users:
            known = self._directory.known_accounts.get(name)
            return known.account() if known is not None else unknown_account(name)
        return UnixAccount(name, Path(self.users_directory) / home_name(name))

    @property
    def _directory(self) -> AccountDirectory:
        return directory_of(self.data_directory, self.login_service)

    @property
    def _home(self) -> Path:
        return self._account.home

    @property
    def _user_environment(self) -> UserEnvironment:
        return UserEnvironment(self._home)

    @property
    def _uid(self) -> int:
        uid = self._account.uid
        return os.geteuid() if uid is None else uid

    @property
    def _umask(self) -> str:
        """Return the umask that the service gave the session; without one the account's own."""
        return self._session_umask or self._account.umask or USUAL

    @property
    def _output(self) -> str:
        return output_file(self.user.name, self.name)

    def _tmp_dirs(self) -> TmpDirs:
        return TmpDirs(Path(self.data_directory), for_all=self.system_users)

    def _make_tmp_dir(self, session_id: str) -> dict[str, str]:
        """Make a TMPDIR for a server that is no workload; return its variable, {} without one."""
        try:
            if self.data_directory:
                made = self._tmp_dirs().make(session_id, self._account.uid, self._account.gid)
                return {"TMPDIR": str(made)}
        except OSError as failed:  # as on a full disk, which its user may mend
            self.log.warning("%s has no TMPDIR of its own: %s", self.user.name, failed)
        return {}

    def _lock_tmp_dir(self) -> Sequence[int]:
        """Lock the server's TMPDIR against cleaners; return the descriptors that hold the lock."""
        tmp_dir = self._start_env.get("TMPDIR", "")
        with suppress(OSError):
            if is_in_tmp_dir(tmp_dir):
                descriptor = locked(tmp_dir)
                self._tmp_fds.callback(os.close, descriptor)
                return [descriptor]
        return []

    async def _find_account(self) -> UnixAccount:
        """Look the user's account up; refuse the session if it cannot be used."""
        try:
            return await self._directory.account(self.user.name)
        except RunaiError as refused:
            raise SessionRefused.of(refused) from None

    def _prepare_home(self) -> None:
        """Make the home unless it exists; refuse the session if that fails."""
        if not self._home.exists():
            try:
                self._make_home()
            except OSError as failed:  # shutil's has a list of texts
                why = failed.strerror or "the disk may be full"
                raise SessionRefused(
                    f"Your home cannot be made: {why}. Ask an admin of this machine.",
                    reason="no_home",
                ) from failed

    def _check_account(self) -> None:
        """Check, as the server's account, that its home and the server's program can be used.

        Raises:
            SessionRefused: one cannot. The reason is `home_away` if the home is missing or cannot
                be reached now.
        """
        account = self._account
        is_elsewhere = self._settings is not None or RUNTIME_ELSEWHERE & self.environment.keys()
        options = {
            "user": self.user.name if account.uid is not None else "",
            "uid": account.uid,
            "gid": account.gid,
            "groups": account.groups,
            "home": str(self._home),
            "program": self.cmd[0] if Path(self.cmd[0]).is_absolute() else "",
            "folder": "" if is_elsewhere else str(self._home / RUNTIME),
        }
        check = subprocess.run(  # noqa: S603 - our own command
            # Run by our account at first: the server's may not be able to run this Python.
            [sys.executable, "-I", "-S", PATH_CHECK, json.dumps(options)],
            cwd="/",
            env=python_variables(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if check.returncode == -signal.SIGALRM:
            text = f"cannot start: {self._home} does not answer"
            fault: dict[str, Any] = {"text": text, "is_home_away": True, "is_settings": False}
        elif check.returncode:  # as on a machine without memory: the server may start
            self.log.warning("%s: not checked: %s", self.user.name, check.stderr.decode())
            return
        else:
            fault = json.loads(check.stdout)
        if fault:
            self.has_failed = fault["is_settings"]
            sentence = f"Your server {fault['text']}. Ask an admin of this machine."
            raise SessionRefused(
                f"{sentence} {SETTINGS_HINT}" if self.has_failed else sentence,
                reason="home_away" if fault["is_home_away"] else "account_cannot",
            )

    def _take_settings_option(self) -> SettingsFolder:
        """Remove the option `settings`: it holds for this start only; return its folder."""
        options = {name: value for name, value in self.user_options.items() if name != "settings"}
        self.user_options = self.orm_spawner.user_options = self.accepted_options = options
        self.user.db.commit()
        return SettingsFolder()

    def _prepare_python(self) -> Prepared:
        """Make the user's Python environment, as the user; without one the server starts too."""
        if self._settings is not None:
            return Prepared(usable=False, note=STARTED_WITHOUT)
        account = self._account
        return self._user_environment.prepare_as(account.uid, account.gid, account.groups)

    def _account_limits(self) -> account_limits.AccountLimits:
        """Return the limits that a PAM session gives the server's account; none if it is ours."""
        if self._account.uid is None:
            return account_limits.AccountLimits()
        try:
            return account_limits.of_account(self.user.name, self.open_files, self.pam_service)
        except account_limits.NoSession as failed:
            raise SessionRefused(
                f"{failed}. Ask an admin of this machine.", reason="no_pam_session"
            ) from failed

    async def _process_report(self) -> ProcessReport:
        """Store the start time of the process; return it with the pid, which the kernel reuses."""
        try:
            self._created = psutil.Process(self.pid).create_time()
        except psutil.Error:
            raise await self._end_refusal(await self.poll()) from None
        return ProcessReport(pid=self.pid, created=self._created)

    async def _watch_process(self) -> NoReturn:
        """Wait until the process has ended.

        Raises:
            SessionRefused: it has ended.
        """
        try:
            while True:
                if (status := await self.poll()) is not None:
                    raise await self._end_refusal(status)
                await asyncio.sleep(POLL_INTERVAL_S)
        finally:
            self._start_output.close()

    async def _end_refusal(self, status: int | None) -> SessionRefused:
        """Note the failed start; return the refusal for a server that ended before it answered."""
        lines = await asyncio.to_thread(self._start_output.last_lines, self._start_env)
        how = _exit_text(status) if status else ""
        self.has_failed = True
        hint, suggestion = f"~/{self._output} may say why.", "" if self._settings else SETTINGS_HINT
        return SessionRefused.of_end(how, lines, hint=hint, suggestion=suggestion)

    def _make_home(self) -> None:
        """Make the home with the examples; another start may make it at the same time."""
        users = Path(self.users_directory)
        # Without parents: a data directory that was moved away, or its disk, is not made anew.
        users.mkdir(mode=0o700, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".", dir=users))  # 0700; no home begins with a dot
        try:
            if self.examples_directory:
                # Only once: users may change or remove the copies.
                shutil.copytree(
                    self.examples_directory,
                    partial / "examples",
                    ignore=shutil.ignore_patterns("__pycache__"),
                )
            partial.rename(self._home)
        except OSError:
            if not self._home.exists():  # else another server's start has made it
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    async def _admit(self, admission: Admission, request: SessionRequest) -> None:
        """Wait for the allocation; store its id and environment."""
        self._progress.append(f"Asking {request.project} for {request.amount.in_words()}")
        submission = self._submission(request, workdir=str(self._home))
        detail = await admission.admit(submission, within_s=self.queue_timeout)
        self.workload, self._session_umask = detail.id, detail.umask
        self._session_env = await admission.environment()

    async def _undo(self, admission: Admission) -> None:
        """End the processes of a failed start, and release its workload."""
        if self.pid:
            session = self._session_processes()
            await super().stop(now=True)
            await self._end_processes(session)
        if admission.workload and not await admission.release():
            self._warn_not_released(admission.workload)
        self.workload = ""
        self._session_env, self._session_umask = {}, ""

    async def _release(self, workload: str, session: SessionProcesses | None) -> None:
        """Release the allocation, and end the processes that the server has left.

        The service ends a workload's processes; if it does not answer, it notices the end itself.
        """
        self.workload = ""
        self._session_env, self._session_umask = {}, ""
        if self._settings is not None:
            await asyncio.to_thread(self._settings.remove)
        if workload:
            async with self._client(self._log_request(f"an end of {workload}")) as client:
                identity = WorkloadIdentity(workload, session.id if session is not None else "")
                if await Admission(client, self._progress.append, identity).release():
                    return
            self._warn_not_released(workload)
        await self._end_processes(session)

    def _session_processes(self) -> SessionProcesses | None:
        """Return the identity of this start's processes; None before it has one."""
        if not (self._session_id and self._created):
            return None
        return SessionProcesses(self._session_id, self._created, self._uid)

    async def _end_processes(self, session: SessionProcesses | None) -> None:
        """End the processes that a server has left, and remove its TMPDIR."""
        if session is not None and (remaining := await end_session(session)):
            pids = ", ".join(f"{p.pid} ({p.name} of {p.account})" for p in remaining)
            self.log.warning("%s: processes outlive the server: %s", self.user.name, pids)
        if session is not None and self.data_directory:
            self._tmp_dirs().remove(session.id)

    def _warn_not_released(self, workload: str) -> None:
        request_id = current_request.get()
        self.log.warning(
            "Cannot release %s; the service detects its end. [%s]", workload, request_id
        )

    async def _signal(self, sig: int) -> bool:
        """Send a signal to the process, if any; pid 0 is our own group."""
        return bool(self.pid) and bool(await super()._signal(sig))

    def _is_ours(self) -> bool:
        """Return True if the pid still belongs to our process, and it is no zombie."""
        try:
            process = psutil.Process(self.pid)
            has_same_start = not self._created or abs(process.create_time() - self._created) < 1
            return has_same_start and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


def _exit_text(status: int) -> str:
    """Return words for a process's exit status.

    >>> _exit_text(1), _exit_text(-9)
    ('exit code 1', 'killed by SIGKILL')
    """
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:  # a signal of the kernel's without a name
        return f"killed by signal {-status}"


def terminal_command(shell: str, path: Sequence[str]) -> list[str]:
    """Return the command of a terminal with `path` first in its PATH; []: JupyterLab's own.

    JupyterLab starts a login shell, in which Debian's /etc/profile overwrites PATH. This one puts
    the path in front of what the login has set, prints the sentence about the user's environment,
    and becomes an interactive shell.
    """
    if Path(shell).name not in LOGIN_SHELLS:
        return []
    note = f'test -z "${NOTE}" || echo "${NOTE}"'
    front = shlex.quote(f"PATH={':'.join(path)}:")
    return [shell, "-l", "-c", f'{note}; exec env {front}"$PATH" {shlex.quote(shell)}']
