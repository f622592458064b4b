"""Entry point of containers: the service, or with the argument `agent` the node's agent.

The first process of a container ignores signals without a handler, and the imports take seconds: a
SIGTERM during the imports would have no effect until SIGKILL. Nothing has started before the end
of the imports, so that the handler may exit at once.
"""

import os
import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run the service or the agent; return its exit status."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if list(arguments) == ["agent"]:
        from runai.hub_service.agent.__main__ import main as run  # noqa: PLC0415  the slow part
    else:
        from runai.hub_service.server.local_service import main as run  # noqa: PLC0415  the slow part
    return run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
