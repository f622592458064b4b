"""How large an elastic job is and how fast at each size: part of the wire contract.

Known by `schemas`; made by `elastic_views`.
"""

from runai.hub_service.api.wire import Wire


class SpeedView(Wire):
    """How fast a job was with so many GPUs."""

    gpus: int
    samples_per_s: float


class ElasticView(Wire):
    """An elastic job's size in GPUs, now and at the bounds, and what is known of its speed."""

    workers: int = 1
    """Processes at most; one, which uses several GPUs, stays one."""
    least: int
    training: int
    """GPUs of those that train now."""
    most: int
    joining: int = 0
    """GPUs of workers that have started and are not ready yet."""
    resizes: int = 0
    global_batch: int | None = None
    """Samples of an update, whatever its size."""
    steps: int | None = None
    """Micro-batches of an update on each GPU now."""
    speeds: tuple[SpeedView, ...] = ()
    text: str
    """ "2 of 1 to 4 GPUs, 1 joining; 256 samples an update in 2 steps"."""
    speed: str = ""
    """ "100 samples/s on 1 GPU, 190 on 2"."""
