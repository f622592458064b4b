"""What an elastic submission may ask for: whole GPUs, one a worker, and only a job.

Pure; called by `submission`, which stores what comes of it.
"""

from runai.hub_service.api.schemas import SubmitRequest
from runai.hub_service.errors import InvalidRequest
from runai.hub_service.scheduler.quantity import WHOLE_GPU, MilliGpu, gpu_text


def elastic_gpus(request: SubmitRequest) -> MilliGpu:
    """Return the GPUs that each worker of an elastic job asks for: 1 unless one worker asks more.

    Raises:
        InvalidRequest: it cannot be elastic as it is asked for.
    """
    if request.kind == "session":
        raise InvalidRequest(
            "A session cannot be elastic: it keeps what it has.",
            hint="Submit a job, or leave --elastic out.",
            code="not_elastic",
        )
    if request.preemptible is False:
        raise InvalidRequest(
            "An elastic job cannot keep all of its GPUs: it gives back those beyond its least.",
            hint="Leave out that it is never preempted, or --elastic.",
            code="not_elastic",
        )
    if request.gpu_memory_mib:
        raise InvalidRequest(
            f"An elastic job takes whole GPUs, not {request.gpu_memory_mib} MiB of one.",
            hint="Give --gpus or --workers instead of --gpu-memory.",
            code="not_elastic",
        )
    milli = WHOLE_GPU if request.gpus is None else MilliGpu(int(request.gpus * WHOLE_GPU))
    if milli < WHOLE_GPU or milli % WHOLE_GPU:
        raise InvalidRequest(
            f"An elastic job takes whole GPUs, not {gpu_text(milli)}.",
            hint="Ask for --gpus 1 or more, or leave --elastic out.",
            code="not_elastic",
        )
    if request.workers > 1 and milli != WHOLE_GPU:
        raise InvalidRequest(
            f"Each worker of an elastic job has 1 GPU, not {gpu_text(milli)}.",
            hint=f"Give --workers {request.workers} alone, or --gpus {milli // WHOLE_GPU} for one"
            " process of several GPUs.",
            code="not_elastic",
        )
    return milli
