"""JupyterLab and Notebook 7: the user's GPUs in the status bar and the side bar, files as jobs.

Pages are plain ES modules in `page/`. They talk to this notebook server alone, which relays the
platform and keeps the token.
"""

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    """Name the module that the notebook server loads."""
    return [{"module": "runai.lab"}]


def _load_jupyter_server_extension(server: Any) -> None:  # noqa: ANN401 - of jupyter_server
    """Add the relay to a notebook server; a fault of ours leaves the server as it is."""
    try:
        from runai.lab.server import add_handlers  # noqa: PLC0415 - a fault there is caught

        add_handlers(server.web_app)
    except Exception:  # whatever it is: without us the server works
        server.log.warning("The GPU extension cannot be loaded.", exc_info=True)
