"""Virtual workers: the same bits at any number of ranks (`bitwise=True`).

Knows how an update is cut into slices that stay the same for the life of a job, and how their
gradients are added in an order that does not depend on who computed them: a binary tree over the
slices. Running statistics are `statistics`'s. Used by `job` in the place of `parallel`.
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
from runai.elastic.torch.loading.position import Divider, MicroBatch, Part
from runai.elastic.torch.parallel import broadcast_tensors
from runai.elastic.torch.statistics import RunningStatistics

_NODE_GPUS = 8

Gradient = list[Tensor]


def default_workers(global_batch: int, gpu_batch: int) -> int:
    """Return a power of two that is at least 8 (a machine's GPUs) and keeps slices small enough.

    It must not depend on how many ranks a job happens to begin with.

    >>> default_workers(256, 64), default_workers(256, 8), default_workers(3, 64)
    (8, 32, 4)
    """
    least = max(-(-global_batch // gpu_batch), min(_NODE_GPUS, global_batch))
    return 1 << (least - 1).bit_length()


def be_bitwise(global_batch: int, gpu_batch: int, workers: int | None) -> int:
    """Choose deterministic kernels for this process, and return how many slices there are.

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
class Node:
    """A node of the tree over the slices: the sum of `2 ** level` of them, the `index`-th such."""

    level: int
    index: int

    @property
    def parent(self) -> Node:
        """The node of twice as many slices."""
        return Node(self.level + 1, self.index // 2)

    def precedes(self, other: Node) -> bool:
        """Whether both are the halves of one parent, this one the left."""
        return self.level == other.level and self.index % 2 == 0 and other.index == self.index + 1


class fold:  # noqa: N801 - a verb: it folds what it is given, from left to right
    """Add gradients as the tree says, each as soon as both halves are there.

    Between adjacent slices at most one sum a level is kept.
    """

    def __init__(self, add: Callable[[Gradient, Gradient], None]) -> None:
        """Begin with nothing; `add` adds its second argument to the first, in place."""
        self._add = add
        self.sums: list[tuple[Node, Gradient]] = []

    def push(self, node: Node, gradient: Gradient) -> None:
        """Take the next node to the right of all before."""
        while self.sums and self.sums[-1][0].precedes(node):
            left, total = self.sums.pop()
            self._add(total, gradient)
            node, gradient = left.parent, total
        self.sums.append((node, gradient))

    def total(self) -> Gradient:
        """Return the sum of all; slices that are missing on the right end are none."""
        (_, total), *others = reversed(self.sums)
        for _, left in others:
            self._add(left, total)
            total = left
        return total


def roots(start: int, stop: int) -> list[Node]:
    """Return the largest whole subtrees over slices `start` to `stop - 1`, from left to right.

    >>> roots(3, 8)
    [Node(level=0, index=3), Node(level=2, index=1)]
    """
    whole = fold(lambda *_: None)
    for leaf in range(start, stop):
        whole.push(Node(0, leaf), [])
    return [node for node, _ in whole.sums]


@dataclass(frozen=True, slots=True)
class SliceDivision:
    """An update cut into slices, of which a rank has a run; the cut does not know the ranks."""

    workers: int
    rank: int
    ranks: int

    def parts(self, total: int) -> tuple[Part, ...]:
        """Return the rank's slices of an update of `total` samples."""
        return _slices_of_rank(self, total)

    def run(self, rank: int, total: int) -> tuple[int, int]:
        """Return which slices a rank has; those without samples are at the end, and nobody's."""
        ends = list(accumulate(split(self.workers, self.ranks), initial=0))
        return min(ends[rank], total), min(ends[rank + 1], total)


@lru_cache(maxsize=64)
def _slices_of_rank(division: SliceDivision, total: int) -> tuple[Part, ...]:
    sizes = split(total, division.workers)
    offsets = list(accumulate(sizes, initial=0))
    mine = range(*division.run(division.rank, total))
    slices = tuple(Part(offsets[worker], sizes[worker], worker) for worker in mine)
    return slices or (Part(0, 0, division.workers + division.rank),)


class VirtualWorkers:
    """Ranks that each compute a run of slices, one after the other."""

    factor = 1.0

    def __init__(self, module: nn.Module, rank: int, ranks: int, *, workers: int) -> None:
        """Share the slices among the ranks; rank 0's weights and buffers hold."""
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
        """Take the statistics of this slice from now on."""
        self._statistics.begin(micro.part)

    def register(self, micro: MicroBatch) -> None:  # noqa: ARG002 - as all ranks have it
        """Collect the gradients of other parameters; rank 0's weights hold of new ones."""
        known = {id(parameter) for parameter in self._parameters}
        self._parameters = _trainable(self.model)
        self._present = [False] * len(self._parameters)
        if self._ranks > 1:
            broadcast_tensors([p for p in self._parameters if id(p) not in known])

    def collect(self, micro: MicroBatch) -> None:
        """Add the gradient of the slice to its siblings'."""
        self._statistics.end()
        gradient = []
        for place, parameter in enumerate(self._parameters):
            if parameter.grad is None:
                gradient.append(torch.zeros_like(parameter))
            else:
                gradient.append(parameter.grad)
                self._present[place] |= micro.part.size > 0
                parameter.grad = None
        if micro.part.size:
            self._fold.push(Node(0, micro.part.number), gradient)
        self._total = micro.total

    def reduce(self) -> None:
        """Add the ranks' subtrees in the order of the tree, on every rank."""
        present = torch.tensor(self._present, dtype=torch.uint8)
        if self._ranks > 1:
            device = self._parameters[0].device if self._parameters else present.device
            present = present.to(device)
            distributed.all_reduce(present, op=distributed.ReduceOp.MAX)
        total = self._over_ranks().total()
        for parameter, gradient, there in zip(
            self._parameters, total, present.tolist(), strict=True
        ):
            parameter.grad = gradient if there else None
        runs = [self._slices.run(rank, self._total) for rank in range(self._ranks)]
        self._statistics.fold([stop - start for start, stop in runs], self._rank)
        self.abandon()

    def abandon(self) -> None:
        """Forget the gradients and statistics of an update."""
        self._fold = fold(_add)
        self._present = [False] * len(self._parameters)
        self._total = 0
        self._statistics.forget()

    def release(self) -> None:
        """Leave the model's layers alone."""
        self.abandon()
        self._statistics.remove()

    def _over_ranks(self) -> fold:
        if self._ranks == 1:
            return self._fold
        ours, whole = iter(self._fold.sums), fold(_add)
        for rank, node in self._roots():
            if rank == self._rank:
                found, gradient = next(ours)
                assert found == node
            else:
                gradient = [torch.empty_like(parameter) for parameter in self._parameters]
            broadcast_tensors(gradient, rank)
            whole.push(node, gradient)
        return whole

    def _roots(self) -> Iterator[tuple[int, Node]]:
        for rank in range(self._ranks):
            for node in roots(*self._slices.run(rank, self._total)):
                yield rank, node


def _trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _add(left: Gradient, right: Gradient) -> None:
    torch._foreach_add_(left, right)
