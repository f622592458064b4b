"""The same weights at any number of ranks (I2, I4 and I7 of the elastic design)."""

from __future__ import annotations

import numpy as np
import pytest

from ranks import run_ranks

pytestmark = pytest.mark.torch


def furthest(found, expected):
    """Return the largest difference of any weight."""
    assert found.keys() == expected.keys()
    return max(float(np.abs(found[name] - expected[name]).max()) for name in found)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_any_number_of_ranks_trains_as_one_device_would(ranks, tmp_path):
    from elastic_trainings import Training, by_hand, elastically

    training = Training()
    found = run_ranks(elastically, ranks, tmp_path / "store", training)

    assert all(furthest(other, found[0]) == 0 for other in found)
    assert furthest(found[0], by_hand(training)) < 1e-6
