"""What a container runs: the service, or with the argument `agent` the agent of its node.

The first process of a container hears no signal that it has no handler for, and what these two
import takes seconds: told to end meanwhile, they would go on until they are killed. Nothing is
begun before the imports are done, so there is nothing to end in good order.
"""

import os
import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run it; return its exit status."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if list(arguments) == ["agent"]:
        from runai.hub_service.agent.__main__ import main as run  # noqa: PLC0415  the slow part
    else:
        from runai.hub_service.server.local_service import main as run  # noqa: PLC0415  the slow part
    return run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
