"""A loss of one of three ranks that the second sees and the third does not."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import distributed

from runai.elastic.torch.group import Agreement, abandon_group, is_peer_loss


def lose_rank_0(rank: int, ranks: int, seen: str) -> str:
    """Agree once, lose rank 0; return the error of rank 2, which waits for rank 1 alone."""
    agreement = Agreement(ranks)
    agreement.exchange(rank, 1, must_leave=False)
    if rank == 0:
        agreement.conclude()
        return ""
    try:
        distributed.recv(torch.zeros(1), 0 if rank == 1 else 1)
    except RuntimeError as error:
        if not is_peer_loss(error):
            raise
        if rank == 2:
            Path(seen).touch()
            return str(error)
        del agreement
        abandon_group(error)
        while not Path(seen).exists():  # the end of a process would close its connections, too
            time.sleep(0.01)
    return ""
