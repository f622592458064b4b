"""The parameters that are trained: alike on all ranks, from one update to the next.

Knows a model's parameters and which of them are trainable; how their gradients are added over the
ranks is `parallel`'s and `virtual`'s. Asked by `job` before an update's first forward pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from operator import is_

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from runai.elastic.torch.loading.position import MicroBatch
from runai.elastic.torch.parallel import Ranks


class TrainableParameters:
    """Which of a model's parameters are trainable, as all ranks have agreed upon.

    A parameter that is thawed or frozen counts from the next update on.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer) -> None:
        """Read which parameters there are.

        Raises:
            ValueError: if the optimizer has one that is not the model's.
        """
        self._module, self._optimizer = module, optimizer
        self._read()
        self._expect_models_own()
        self._agreed, self._ranks = self._flags(), 1
        self.begin()

    def begin(self) -> None:
        """Begin an update: nothing of it is shown to other ranks yet."""
        self._shown = False
        self._posted: tuple[Tensor, distributed.Work] | None = None
        self._failure: RuntimeError | None = None

    @contextlib.contextmanager
    def as_rank_0_has_them(self, ranks: int) -> Generator[None]:
        """Agree on what rank 0 has trainable, for ranks that begin together.

        A rank may be further than another: it has thawed what the other is about to thaw. What each
        has holds again afterwards, and is shown before the next forward pass.
        """
        self._ranks = ranks
        mine = self._agreed = self._flags()
        if ranks > 1:
            flags = torch.tensor(mine, dtype=torch.uint8)
            distributed.broadcast(flags, 0)
            self._agreed = flags.bool().tolist()
        self._set(self._agreed)
        try:
            yield
        finally:
            self._set(mine)

    def register(self, ranks: Ranks, micro: MicroBatch) -> None:
        """Have thawed and frozen parameters counted from this update on; once an update.

        If a rank is gone, `expect_agreed` says so: after a forward pass it can be recovered from.

        Raises:
            ValueError: if ranks disagree, or the model has got a parameter or lost one.
        """
        flags = self._flags()
        if self._shown or not any(flags):  # all are frozen for an attack on the inputs, say
            return
        self._expect_same_parameters()
        self._shown = True
        changed = flags != self._agreed
        try:
            self._show(flags)
            if changed:
                self._agree()
                ranks.register(micro)
        except RuntimeError as error:
            self._failure = error

    def expect_agreed(self) -> None:
        """Check, before a backward pass, that what is trainable is what all ranks train.

        Raises:
            RuntimeError: if it changed after the update's first forward pass, or a rank is gone.
            ValueError: if ranks disagree.
        """
        if self._failure is not None:
            raise self._failure
        self._agree()
        flags = self._flags()
        if flags != self._agreed:
            both = zip(self._parameters, flags, self._agreed, strict=True)
            name, thawed = next((self._names[id(p)], now) for p, now, then in both if now != then)
            raise RuntimeError(
                f"`{name}` was {'thawed' if thawed else 'frozen'} after the update's first forward "
                "pass: call requires_grad_() between two updates, once job.step() has returned "
                "True, and write job.model(x) each time."
            )

    def _show(self, flags: list[bool]) -> None:
        self._agreed = flags
        if self._ranks > 1:
            # The largest of a flag and of its opposite tell whether all ranks have the same.
            seen = torch.tensor([*flags, *(not flag for flag in flags)], dtype=torch.uint8)
            work = distributed.all_reduce(seen, distributed.ReduceOp.MAX, async_op=True)
            self._posted = seen, work

    def _agree(self) -> None:
        """Wait for what the other ranks have shown, which the forward pass has left time for."""
        if self._posted is None:
            return
        (seen, work), self._posted = self._posted, None
        work.wait()
        if int(seen.sum()) == len(self._parameters):
            return
        thawed, frozen = seen.view(2, -1).tolist()
        everywhere = zip(self._parameters, thawed, frozen, strict=True)
        name = next(self._names[id(p)] for p, some, others in everywhere if some and others)
        raise ValueError(
            f"Ranks disagree on whether `{name}` is trainable: call requires_grad_() on all ranks "
            "in the same update. Let it depend on job.epoch or job.update alone, and on `>=`: a "
            "worker may join later."
        )

    def _flags(self) -> list[bool]:
        return [parameter.requires_grad for parameter in self._parameters]

    def _set(self, flags: list[bool]) -> None:
        for parameter, flag in zip(self._parameters, flags, strict=True):
            parameter.requires_grad_(flag)

    def _read(self) -> None:
        named = dict(self._module.named_parameters())
        self._parameters = list(named.values())
        self._names = {id(parameter): name for name, parameter in named.items()}
        # To walk through the modules by their own methods takes thirty times as long.
        self._places = [
            place
            for module in self._module.modules()
            for place in (module._parameters, module._modules)  # noqa: SLF001
        ]
        self._found = self._find()

    def _find(self) -> list[object]:
        """Return what the model's modules and the optimizer's groups hold."""
        found: list[object] = [inner for place in self._places for inner in place.values()]
        for group in self._optimizer.param_groups:
            found += group["params"]
        return found

    def _expect_same_parameters(self) -> None:
        found = self._find()
        if len(found) == len(self._found) and all(map(is_, found, self._found)):
            return
        before, names = self._parameters, self._names
        self._read()
        _expect_none(names, self._names, "was taken out of the model, or replaced,")
        _expect_none(self._names, names, "was added to the model")
        self._parameters = before  # in the same order: flags are compared by it
        self._expect_models_own()

    def _expect_models_own(self) -> None:
        for number, group in enumerate(self._optimizer.param_groups):
            for parameter in group["params"]:
                if id(parameter) not in self._names:
                    raise ValueError(
                        f"Group {number} of the optimizer has a parameter of shape "
                        f"{tuple(parameter.shape)} that is not the model's: neither would its "
                        "gradient be added over the ranks, nor a checkpoint hold it. Make it a "
                        "part of the model that elastic.Job is given."
                    )


def _expect_none(there: dict[int, str], known: dict[int, str], what: str) -> None:
    for name in (name for key, name in there.items() if key not in known):
        raise ValueError(
            f"`{name}` {what} after elastic.Job was made: the model of a worker that joins is "
            "another one. Make all parameters before the job, freeze them (requires_grad_(False)) "
            "while they are not trained, and change their values in place."
        )
