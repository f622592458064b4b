"""A start without its user's settings: a way back where these keep the server from starting.

No configuration of Jupyter, IPython or Python is read from the home, and no kernels of it; what
Jupyter must write lies elsewhere, so that a full home can be cleaned. The files stay.
"""

import secrets
import shutil
import sys
from pathlib import Path

STARTED_WITHOUT = (
    "This server was started without your settings: kernels run on the platform's Python, into"
    " which you can install nothing. Mend or remove your files, then start it again."
)


class SettingsFolder:
    """A folder in /tmp that takes the place of a home's settings."""

    def __init__(self) -> None:
        """Choose a name that nobody can know before."""
        self.path = Path("/tmp") / f"runai-lab-{secrets.token_hex(8)}"  # noqa: S108 - made with 0700

    def make(self) -> None:
        """Make the folder, as the user.

        Raises:
            OSError: the folder cannot be made.
        """
        self.path.mkdir(mode=0o700)

    def remove(self) -> None:
        """Remove the folder after the server's end, without following links in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def variables(self, home: Path) -> dict[str, str]:
        """Return the variables that lead Jupyter, IPython and Python away from the home."""
        folders = {
            "IPYTHONDIR": "ipython",
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "lab/settings",
            "JUPYTERLAB_WORKSPACES_DIR": "lab/workspaces",
        }
        # JupyterHub's variable disables settings in the current folder, the home; not set if the
        # platform is installed there, since it would disable the platform's front ends too.
        hub = (
            {} if Path(sys.prefix).is_relative_to(home) else {"JUPYTERHUB_DISABLE_USER_CONFIG": "1"}
        )
        return {
            **{name: str(self.path / folder) for name, folder in folders.items()},
            **hub,
            "PYTHONNOUSERSITE": "1",
        }
