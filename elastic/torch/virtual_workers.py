"""Virtual workers: the same bits at any number of ranks (`bitwise=True`).

An update is cut into slices that are fixed for the life of a job. Their gradients are added along a
binary tree over the slices, in an order that does not depend on the ranks. `job` uses it instead of
`parallel`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor, distributed, nn

from runai.elastic.batching import split
from runai.elastic.torch.loading.position import Divider, MicroBatch, SampleRange
from runai.elastic.torch.parallel import broadcast_tensors
from runai.elastic.torch.statistics import RunningStatistics

_NODE_GPUS = 8

Gradient = list[Tensor]


def default_workers(global_batch: int, gpu_batch: int) -> int:
    """Return a power of two that makes slices fit the GPU batch.

    It is at least 8 (a node's GPUs), unless the global batch is smaller.

    It must not depend on a job's first number of ranks.

    >>> default_workers(256, 64), default_workers(256, 8), default_workers(3, 64)
    (8, 32, 4)
    """
    minimum = max(-(-global_batch // gpu_batch), min(_NODE_GPUS, global_batch))
    return 1 << (minimum - 1).bit_length()


def enable_bitwise(global_batch: int, gpu_batch: int, workers: int | None) -> int:
    """Enable deterministic kernels in this process, and return the number of slices.

    Raises:
        ValueError: if a slice exceeds the GPU batch.
    """
    if workers is None:
        workers = default_workers(global_batch, gpu_batch)
    if workers < 1 or -(-global_batch // workers) > gpu_batch:
        raise ValueError(
            f"{workers} virtual workers cut a global batch of {global_batch} into slices that a "
            f"GPU batch of {gpu_batch} does not hold: it takes {-(-global_batch // gpu_batch)}."
        )
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
    return workers


@dataclass(frozen=True, slots=True)
class SumNode:
    """A node of the tree over the slices: the `index`-th sum of `2 ** level` slices."""

    level: int
    index: int

    @property
    def parent(self) -> SumNode:
        """The node of twice as many slices."""
        return SumNode(self.level + 1, self.index // 2)

    def precedes(self, other: SumNode) -> bool:
        """Return True if both are halves of one parent, this one the left."""
        return self.level == other.level and self.index % 2 == 0 and other.index == self.index + 1


class fold:  # noqa: N801 - named like a function: it folds from left to right
    """Sum of gradients along the tree: halves are added once both are complete.

    At most one partial sum per level is stored.
    """

    def __init__(self, add: Callable[[Gradient, Gradient], None]) -> None:
        """Start empty; `add` adds its second argument to the first, in place."""
        self._add = add
        self.sums: list[tuple[SumNode, Gradient]] = []

    def push(self, node: SumNode, gradient: Gradient) -> None:
        """Add the next node to the right."""
        while self.sums and self.sums[-1][0].precedes(node):
            left, total = self.sums.pop()
            self._add(total, gradient)
            node, gradient = left.parent, total
        self.sums.append((node, gradient))

    def total(self) -> Gradient:
        """Return the sum of all nodes; missing slices at the right end count as zero."""
        (_, total), *remaining = reversed(self.sums)
        for _, left in remaining:
            self._add(left, total)
            total = left
        return total


def roots(start: int, stop: int) -> list[SumNode]:
    """Return the largest whole subtrees over slices `start` to `stop - 1`, from left to right.

    >>> roots(3, 8)
    [SumNode(level=0, index=3), SumNode(level=2, index=1)]
    """
    whole = fold(lambda *_: None)
    for leaf in range(start, stop):
        whole.push(SumNode(0, leaf), [])
    return [node for node, _ in whole.sums]


@dataclass(frozen=True, slots=True)
class SliceDivision:
    """One rank's run of an update's slices; slices do not depend on the ranks."""

    workers: int
    rank: int
    ranks: int

    def parts(self, total: int) -> tuple[SampleRange, ...]:
        """Return the rank's slices of an update of `total` samples."""
        return _slices_of_rank(self, total)

    def run(self, rank: int, total: int) -> tuple[int, int]:
        """Return a rank's range of slices; empty slices at the end belong to no rank."""
        ends = list(accumulate(split(self.workers, self.ranks), initial=0))
        return min(ends[rank], total), min(ends[rank + 1], total)


@lru_cache(maxsize=64)
def _slices_of_rank(division: SliceDivision, total: int) -> tuple[SampleRange, ...]:
    sizes = split(total, division.workers)
    offsets = list(accumulate(sizes, initial=0))
    mine = range(*division.run(division.rank, total))
    slices = tuple(SampleRange(offsets[worker], sizes[worker], worker) for worker in mine)
    return slices or (SampleRange(0, 0, division.workers + division.rank),)


class VirtualWorkers:
    """Ranks that each compute a run of slices, one after the other."""

    factor = 1.0

    def __init__(self, module: nn.Module, rank: int, ranks: int, *, workers: int) -> None:
        """Divide the slices among the ranks; broadcast rank 0's weights and buffers."""
        self.model: nn.Module = module
        self._rank, self._ranks = rank, ranks
        self._slices = SliceDivision(workers, rank, ranks)
        self.division: Divider = self._slices
        self._parameters = _trainable(module)
        self._statistics = RunningStatistics(module)
        self.abandon()
        if ranks > 1:
            broadcast_tensors([*module.parameters(), *module.buffers()])
        if ranks > workers:
            warnings.warn(
                f"{ranks} ranks share {workers} virtual workers: {ranks - workers} have nothing to "
                f"do. Begin the job with virtual_workers={ranks} or more.",
                stacklevel=4,
            )

    def begin(self, micro: MicroBatch) -> None:
        """Start collecting this slice's statistics."""
        self._statistics.begin(micro.part)

    def register(self, micro: MicroBatch) -> None:  # noqa: ARG002 - of the protocol
        """Collect gradients of the current parameters; broadcast rank 0's weights of new ones."""
        known = {id(parameter) for parameter in self._parameters}
        self._parameters = _trainable(self.model)
        self._has_gradient = [False] * len(self._parameters)
        if self._ranks > 1:
            broadcast_tensors([p for p in self._parameters if id(p) not in known])

    def collect(self, micro: MicroBatch) -> None:
        """Add the slice's gradient to the tree."""
        self._statistics.end()
        gradient = []
        for place, parameter in enumerate(self._parameters):
            if parameter.grad is None:
                gradient.append(torch.zeros_like(parameter))
            else:
                gradient.append(parameter.grad)
                self._has_gradient[place] |= micro.part.size > 0
                parameter.grad = None
        if micro.part.size:
            self._fold.push(SumNode(0, micro.part.number), gradient)
        self._samples = micro.total

    def reduce(self) -> None:
        """Add all ranks' subtrees in the tree's order, on every rank."""
        has_gradient = torch.tensor(self._has_gradient, dtype=torch.uint8)
        if self._ranks > 1:
            device = self._parameters[0].device if self._parameters else has_gradient.device
            has_gradient = has_gradient.to(device)
            distributed.all_reduce(has_gradient, op=distributed.ReduceOp.MAX)
        total = self._fold_over_ranks().total()
        for parameter, gradient, is_used in zip(
            self._parameters, total, has_gradient.tolist(), strict=True
        ):
            parameter.grad = gradient if is_used else None
        runs = [self._slices.run(rank, self._samples) for rank in range(self._ranks)]
        self._statistics.fold([stop - start for start, stop in runs], self._rank)
        self.abandon()

    def abandon(self) -> None:
        """Discard an update's gradients and statistics."""
        self._fold = fold(_add)
        self._has_gradient = [False] * len(self._parameters)
        self._samples = 0
        self._statistics.forget()

    def release(self) -> None:
        """Remove the hooks on the model's layers."""
        self.abandon()
        self._statistics.remove()

    def _fold_over_ranks(self) -> fold:
        """Broadcast each rank's subtrees, and fold them in the tree's order."""
        if self._ranks == 1:
            return self._fold
        own_sums, whole = iter(self._fold.sums), fold(_add)
        for rank, node in self._roots_by_rank():
            if rank == self._rank:
                own_node, gradient = next(own_sums)
                assert own_node == node
            else:
                gradient = [torch.empty_like(parameter) for parameter in self._parameters]
            broadcast_tensors(gradient, rank)
            whole.push(node, gradient)
        return whole

    def _roots_by_rank(self) -> Iterator[tuple[int, SumNode]]:
        """Yield rank and root of each subtree, from left to right."""
        for rank in range(self._ranks):
            for node in roots(*self._slices.run(rank, self._samples)):
                yield rank, node


def _trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _add(left: Gradient, right: Gradient) -> None:
    torch._foreach_add_(left, right)
