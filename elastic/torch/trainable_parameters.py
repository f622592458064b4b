"""Agreement of all ranks on the trainable parameters, update by update.

Ranks compare them before an update's first forward pass; `parallel` and `virtual` reduce the
gradients.
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
    """The trainable parameters of a model, agreed upon by all ranks.

    A thawed or frozen parameter counts from the next update on.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer) -> None:
        """Read the parameters of the model.

        Raises:
            ValueError: if the optimizer has a parameter that the model lacks.
        """
        self._module, self._optimizer = module, optimizer
        self._read_parameters()
        self._check_optimizer_parameters()
        self._agreed, self._ranks = self._flags(), 1
        self.begin()

    def begin(self) -> None:
        """Begin an update: no flags are posted for it yet."""
        self._flags_posted = False
        self._posted: tuple[Tensor, distributed.Work] | None = None
        self._failure: RuntimeError | None = None

    @contextlib.contextmanager
    def with_rank_0_flags(self, ranks: int) -> Generator[None]:
        """Use rank 0's trainable parameters in the block, for a group that starts.

        A rank may be ahead of another, with parameters thawed already. Afterwards each rank has
        its own flags again, and compares them before the next forward pass.
        """
        self._ranks = ranks
        own_flags = self._agreed = self._flags()
        if ranks > 1:
            flags = torch.tensor(own_flags, dtype=torch.uint8)
            distributed.broadcast(flags, 0)
            self._agreed = flags.bool().tolist()
        self._set_flags(self._agreed)
        try:
            yield
        finally:
            self._set_flags(own_flags)

    def register(self, ranks: Ranks, micro: MicroBatch) -> None:
        """Apply thawed and frozen parameters from this update on; once per update.

        `expect_agreed` reports a lost rank after the forward pass, where the job can recover.

        Raises:
            ValueError: if ranks disagree, or the model's parameters were replaced.
        """
        flags = self._flags()
        if self._flags_posted or not any(flags):  # all frozen, for example for an attack on inputs
            return
        self._expect_same_parameters()
        self._flags_posted = True
        changed = flags != self._agreed
        try:
            self._post_flags(flags)
            if changed:
                self._await_agreement()
                ranks.register(micro)
        except RuntimeError as error:
            self._failure = error

    def expect_agreed(self) -> None:
        """Check before a backward pass that all ranks train the same parameters.

        Raises:
            RuntimeError: if it changed after the update's first forward pass, or a rank is gone.
            ValueError: if ranks disagree.
        """
        if self._failure is not None:
            raise self._failure
        self._await_agreement()
        flags = self._flags()
        if flags != self._agreed:
            both = zip(self._parameters, flags, self._agreed, strict=True)
            name, thawed = next(
                (self._names[id(p)], now) for p, now, agreed in both if now != agreed
            )
            raise RuntimeError(
                f"`{name}` was {'thawed' if thawed else 'frozen'} after the update's first forward "
                "pass: call requires_grad_() between two updates, once job.step() has returned "
                "True, and write job.model(x) each time."
            )

    def _post_flags(self, flags: list[bool]) -> None:
        """Send this rank's flags to the other ranks, without waiting."""
        self._agreed = flags
        if self._ranks > 1:
            # MAX of a flag and of its opposite show whether all ranks have the same one.
            both = torch.tensor([*flags, *(not flag for flag in flags)], dtype=torch.uint8)
            work = distributed.all_reduce(both, distributed.ReduceOp.MAX, async_op=True)
            self._posted = both, work

    def _await_agreement(self) -> None:
        """Wait for the other ranks' flags, which arrive during the forward pass."""
        if self._posted is None:
            return
        (both, work), self._posted = self._posted, None
        work.wait()
        if int(both.sum()) == len(self._parameters):
            return
        thawed, frozen = both.view(2, -1).tolist()
        everywhere = zip(self._parameters, thawed, frozen, strict=True)
        name = next(
            self._names[id(p)] for p, is_thawed, is_frozen in everywhere if is_thawed and is_frozen
        )
        raise ValueError(
            f"Ranks disagree on whether `{name}` is trainable: call requires_grad_() on all ranks "
            "in the same update. Let it depend on job.epoch or job.update alone, and on `>=`: a "
            "worker may join later."
        )

    def _flags(self) -> list[bool]:
        return [parameter.requires_grad for parameter in self._parameters]

    def _set_flags(self, flags: list[bool]) -> None:
        for parameter, flag in zip(self._parameters, flags, strict=True):
            parameter.requires_grad_(flag)

    def _read_parameters(self) -> None:
        """Read the parameters, their names, and the dicts of modules to compare later."""
        named = dict(self._module.named_parameters())
        self._parameters = list(named.values())
        self._names = {id(parameter): name for name, parameter in named.items()}
        # `Module.parameters()` takes thirty times as long as these dicts.
        self._module_dicts = [
            place
            for module in self._module.modules()
            for place in (module._parameters, module._modules)  # noqa: SLF001
        ]
        self._known_objects = self._current_objects()

    def _current_objects(self) -> list[object]:
        """Return the objects in the model's modules and the optimizer's groups."""
        objects: list[object] = [inner for place in self._module_dicts for inner in place.values()]
        for group in self._optimizer.param_groups:
            objects += group["params"]
        return objects

    def _expect_same_parameters(self) -> None:
        """Raise ValueError if a parameter was added, removed or replaced."""
        objects = self._current_objects()
        if len(objects) == len(self._known_objects) and all(map(is_, objects, self._known_objects)):
            return
        before, names = self._parameters, self._names
        self._read_parameters()
        _expect_no_extra(names, self._names, "was taken out of the model, or replaced,")
        _expect_no_extra(self._names, names, "was added to the model")
        self._parameters = before  # keep the order: flags are compared by it
        self._check_optimizer_parameters()

    def _check_optimizer_parameters(self) -> None:
        """Raise ValueError for a parameter of the optimizer that is not the model's."""
        for number, group in enumerate(self._optimizer.param_groups):
            for parameter in group["params"]:
                if id(parameter) not in self._names:
                    raise ValueError(
                        f"Group {number} of the optimizer has a parameter of shape "
                        f"{tuple(parameter.shape)} that is not the model's: neither would its "
                        "gradient be added over the ranks, nor a checkpoint hold it. Make it a "
                        "part of the model that elastic.Job is given."
                    )


def _expect_no_extra(names: dict[int, str], known: dict[int, str], what: str) -> None:
    """Raise ValueError for a parameter that is not among the known ones."""
    for name in (name for key, name in names.items() if key not in known):
        raise ValueError(
            f"`{name}` {what} after elastic.Job was made: the model of a worker that joins is "
            "another one. Make all parameters before the job, freeze them (requires_grad_(False)) "
            "while they are not trained, and change their values in place."
        )
