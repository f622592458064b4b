"""State of a job: `capture` saves it, `restore` applies it at any number of ranks.

The layout has no wrappers, so that a plain script can read it, too: tensors, numbers, strings,
dicts and lists only.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

from torch import nn

from runai.elastic.torch.boundary import Boundary
from runai.elastic.torch.loading.position import Position

_FIXED = {"global_batch": "the global batch", "virtual_workers": "virtual workers"}
_PARTS = ("optimizer", "scheduler", "scaler", "ema")


class SavedJob(Protocol):
    """The attributes of a job in its state."""

    module: nn.Module
    seed: int
    global_batch: int
    gpu_batch: int
    virtual_workers: int | None
    position: Position


def capture(job: SavedJob, boundary: Boundary) -> dict[str, Any]:
    """Return the state of a job and of its parts; tensors are not copied."""
    parts = {name: getattr(boundary, name) for name in _PARTS}
    parameters = list(job.module.parameters())
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    groups = boundary.optimizer.param_groups
    return {
        "job": {
            "global_batch": job.global_batch,
            "gpu_batch": job.gpu_batch,
            "seed": job.seed,
            "virtual_workers": job.virtual_workers,
            # The script may change these during training; a restarted one has not yet.
            "trainable": [parameter.requires_grad for parameter in parameters],
            "groups": [[places[id(p)] for p in group["params"]] for group in groups],
            **asdict(job.position),
        },
        "model": job.module.state_dict(),
        **{name: part.state_dict() for name, part in parts.items() if part is not None},
    }


def restore(job: SavedJob, boundary: Boundary, saved: Mapping[str, Any], *, force: bool) -> None:
    """Restore a copy of a state: optimizers would write into the original.

    Raises:
        ValueError: if the state is malformed, lacks a part, or has other batch settings.
    """
    counters = saved.get("job")
    if counters is None:
        raise ValueError(f"This is no job's state: it has {sorted(saved)}, but no `job`.")
    for name, what in _FIXED.items():
        saved_value, value = counters[name], getattr(job, name)
        if saved_value != value and not force:
            raise ValueError(
                f"The state is of a job with {what} {saved_value}, this one has {value}: its "
                "updates would be others. Pass force=True to go on."
            )
    parts = {name: getattr(boundary, name) for name in _PARTS}
    for name, part in parts.items():
        if part is not None and name not in saved:
            raise ValueError(f"The job has a {name}, its saved state has none.")
    job.module.load_state_dict(saved["model"])
    _restore_parameters(job, boundary, counters)
    for name, part in parts.items():
        if part is not None:
            part.load_state_dict(copy.deepcopy(saved[name]))
    job.seed = counters["seed"]
    job.position = Position(counters["epoch"], counters["samples"], counters["update"])


def _restore_parameters(job: SavedJob, boundary: Boundary, counters: Mapping[str, Any]) -> None:
    """Restore which parameters are trainable, and the optimizer's groups."""
    named = list(job.module.named_parameters())
    for places in counters["groups"][len(boundary.optimizer.param_groups) :]:
        boundary.optimizer.add_param_group({"params": [named[place][1] for place in places]})
    changed: dict[bool, list[str]] = {True: [], False: []}
    for (name, parameter), trainable in zip(named, counters["trainable"], strict=True):
        if parameter.requires_grad != trainable:
            parameter.requires_grad_(trainable)
            changed[trainable].append(name)
    for trainable, names in changed.items():
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            warnings.warn(
                f"`{names[0]}`{more}: {'trainable' if trainable else 'frozen'}, as where the state "
                "was saved. If that is to be otherwise, call requires_grad_() once the job is "
                "there.",
                stacklevel=2,
            )
