"""The most that one request may ask for: checked at the border, and where a request is read back.

Whoever may make objects of Kubernetes may write there what no border has seen. Imports nothing.
Used by `api`, `clusters.kubernetes`, `simulation` and the spawners.
"""

from typing import Final

MOST_GPUS: Final = 100_000
"""Of one worker."""
MOST_MEMORY_MIB: Final = 1_000_000_000
"""Of one worker's GPU."""
MOST_WORKERS: Final = 10_000
"""Of one request, all workloads of an array together."""
