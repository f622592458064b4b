"""The count behind the mean of a Keras loss, by which micro-batches are weighted."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from runai.elastic.keras.training import CountFunction


def count_for(model: Any) -> CountFunction | None:
    """Return the function that counts the items of the loss's mean; None: samples.

    Raises:
        ValueError: the loss needs a count by the user.
    """
    reductions = {
        str(getattr(loss, "reduction", "sum_over_batch_size"))
        for loss in keras.tree.flatten(model.loss)
        if loss is not None
    }
    if "sum" in reductions:
        raise ValueError(
            'A loss with reduction="sum" grows with the batch, and so would its regularization: '
            'use "sum_over_batch_size", and a learning rate that is the global batch size larger.'
        )
    if any(_is_masked(output) for output in keras.tree.flatten(getattr(model, "outputs", []))):
        raise ValueError(
            "The model masks its outputs, so its loss is the mean over what is not masked: say how "
            "much that is, as in Model(model, count=lambda x, y, weights: (x != 0).sum())."
        )
    if reductions <= {"sum_over_batch_size", "mean"}:
        return None
    if reductions == {"mean_with_sample_weight"}:
        return _sum_of_weights
    raise ValueError(
        f"Losses reduced by {', '.join(sorted(reductions))} together have no common mean: say what "
        "their means are over, as in Model(model, count=lambda x, y, weights: …)."
    )


def _is_masked(output: Any) -> bool:
    return getattr(output, "_keras_mask", None) is not None


def _sum_of_weights(x: Any, y: Any, sample_weight: Any) -> Any:
    if sample_weight is None:
        return next(leaf for leaf in keras.tree.flatten((x, y)) if leaf is not None).shape[0]
    if keras.tree.is_nested(sample_weight):
        raise ValueError("Sample weights of several outputs have no common sum: give a count.")
    return np.sum(sample_weight)
