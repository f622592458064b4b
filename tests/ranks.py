"""Real ranks for tests: local processes that form a gloo group and return their results.

They are forked from one server that has imported PyTorch, so that a rank starts in milliseconds
and not seconds. The function that ranks run must stand in a module of `tests/`.
"""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_PATIENCE_S = 250.0

preloaded = multiprocessing.get_context("forkserver")
# The first optimizer of a process imports torch._dynamo: the server spends these seconds once.
preloaded.set_forkserver_preload(["torch", "torch._dynamo", "runai.elastic.torch"])


def run_ranks(
    function: Callable[..., Any], ranks: int, store: Path, *arguments: Any, grouped: bool = True
) -> list[Any]:
    """Run `function(rank, ranks, *arguments)` in `ranks` processes, and return their results.

    Results are pickled: NumPy arrays rather than tensors; a tensor's memory ends with the process.

    Args:
        function: of a module of `tests/`.
        ranks: number of processes.
        store: a file that does not exist yet, by which the ranks find one another.
        arguments: for the function.
        grouped: whether the ranks form a group first, if there are several.
    """
    started = []
    for rank in range(ranks):
        ours, theirs = preloaded.Pipe(duplex=False)
        process = preloaded.Process(
            target=_rank,
            args=(theirs, function, rank, ranks, str(store), arguments, grouped),
            daemon=False,  # loaders start processes of their own
        )
        process.start()
        theirs.close()
        started.append((process, ours))
    try:
        return [_result(ours) for _, ours in started]
    finally:
        for process, ours in started:
            ours.close()
            process.join(5)
            process.kill()
            process.join()
            process.close()


def form_group(rank: int, ranks: int, store: str) -> None:
    """Form the default group with the other processes that name the same file."""
    from torch import distributed

    distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=dt.timedelta(seconds=_PATIENCE_S),
    )


def _rank(
    answer: Connection,
    function: Callable[..., Any],
    rank: int,
    ranks: int,
    store: str,
    arguments: tuple[Any, ...],
    grouped: bool,
) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    warnings.simplefilter("error", FutureWarning)  # users would see it once for each rank
    for name in ("WORLD_SIZE", "RANK"):
        os.environ.pop(name, None)
    try:
        if grouped and ranks > 1:
            form_group(rank, ranks, store)
        answer.send((function(rank, ranks, *arguments), ""))
        if distributed.is_initialized():
            distributed.destroy_process_group()
    except Exception:  # noqa: BLE001 - goes to the caller
        answer.send((None, f"rank {rank} of {ranks}:\n{traceback.format_exc()}"))


def _result(answer: Connection) -> Any:
    if not answer.poll(_PATIENCE_S):
        raise TimeoutError("A rank did not answer.")
    result, error = answer.recv()
    if error:
        raise AssertionError(error)
    return result
