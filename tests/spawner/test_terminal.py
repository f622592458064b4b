"""A terminal of JupyterLab: a login shell with this environment's programs in front."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from runai.spawner.local import terminal_command
from unix_accounts import UIDS, open_folder

TYPED_LINE = "runai; python; echo from $(cat .profile.read)\n"
RUN_AS_ANA = ["setpriv", "--clear-groups", f"--reuid={UIDS['ana']}", f"--regid={UIDS['ana']}"]


@pytest.mark.parametrize("account", ["the hub's", "without rights"])
@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/sh"])
def test_jupyterlab_terminal_finds_the_environments_programs_after_a_login(shell, account):
    if account == "without rights" and os.geteuid() != 0:
        pytest.skip("needs root, to type as another account")
    if not Path(shell).exists():
        pytest.skip(f"needs {shell}")
    with open_folder() as folder:
        programs, home = folder / "an environment" / "bin", folder / "home"
        programs.mkdir(parents=True)
        home.mkdir(mode=0o777)
        home.chmod(0o777)
        for name in ("python", "runai"):
            (programs / name).write_text(f"#!/bin/sh\necho the environment: {name}\n")
            (programs / name).chmod(0o755)
        (home / ".profile").write_text("PATH=/usr/bin:/bin\necho a login > ~/.profile.read\n")
        terminal = terminal_command(shell, [str(programs)])
        command = shlex.split(shlex.join(terminal))  # as Jupyter reads it

        process = subprocess.run(
            [*(RUN_AS_ANA if account == "without rights" else []), *command],
            cwd=home,
            env={"HOME": str(home), "PATH": "/usr/bin:/bin", "SHELL": shell},
            input=TYPED_LINE,
            capture_output=True,
            text=True,
            check=False,
        )

    assert "the environment: runai\nthe environment: python\nfrom a login" in process.stdout


@pytest.mark.parametrize("shell", ["", "/bin/tcsh", "/usr/sbin/nologin"])
def test_terminal_command_is_empty_for_unsupported_shells(shell):
    assert terminal_command(shell, ["/bin"]) == []
