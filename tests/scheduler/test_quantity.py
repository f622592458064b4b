"""Amounts and times: exact in arithmetic, readable in texts."""

from __future__ import annotations

import pytest

from runai.hub_service.scheduler.model.quantity import (
    count_text,
    duration_text,
    fraction_of_memory,
    gpu_number,
    memory_of_fraction,
    milli_gpus,
)


@pytest.mark.parametrize(
    ("gpus", "milli"),
    [
        (0, 0),
        (0.001, 1),
        (0.1 + 0.2, 300),
        (1, 1000),
        (0.999, 999),
        (100_000, 100_000_000),
        (1e9 + 0.1, 10**12 + 100),
    ],
)
def test_gpu_amounts_convert_exactly_to_thousandths(gpus: float, milli: int) -> None:
    assert milli_gpus(gpus) == milli


@pytest.mark.parametrize("gpus", [-0.001, -1, 0.0005, 1.0001, float("inf"), float("nan")])
def test_invalid_gpu_amount_is_rejected(gpus: float) -> None:
    with pytest.raises(ValueError, match="GPUs"):
        milli_gpus(gpus)


@pytest.mark.parametrize(
    ("milli", "device", "mib"), [(500, 1001, 500), (1, 999, 0), (1000, 77, 77), (333, 3000, 999)]
)
def test_fraction_of_a_device_books_its_memory_rounded_down(
    milli: int, device: int, mib: int
) -> None:
    assert memory_of_fraction(milli, device) == mib


@pytest.mark.parametrize(
    ("mib", "device", "milli"),
    [(1, 1000, 1), (1, 1001, 1), (1000, 1000, 1000), (500, 1000, 500), (1, 3, 334), (0, 5, 0)],
)
def test_memory_request_is_charged_as_gpus_rounded_up(mib: int, device: int, milli: int) -> None:
    assert fraction_of_memory(mib, device) == milli


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 seconds"),
        (1, "1 second"),
        (119, "119 seconds"),
        (120, "2 minutes"),
        (121, "3 minutes"),
        (10_799, "180 minutes"),
        (10_800, "3 hours"),
        (10_801, "4 hours"),
        (431_999, "120 hours"),
        (432_000, "5 days"),
        (432_001, "6 days"),
    ],
)
def test_duration_text_has_a_readable_unit_and_is_rounded_up(seconds: int, text: str) -> None:
    assert duration_text(seconds) == text


def test_milli_gpus_are_formatted_as_decimal_gpus() -> None:
    assert [gpu_number(m) for m in (0, 1, 999, 1000, 1001)] == [0, 0.001, 0.999, 1, 1.001]
    assert [count_text(m) for m in (999, 1000, 1001)] == ["0.999 GPUs", "1 GPU", "1.001 GPUs"]
