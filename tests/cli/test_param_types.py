"""Command-line values become a type, or one sentence of refusal."""

from __future__ import annotations

from decimal import Decimal

import click
import pytest

from runai.hub_service.cli.framework.param_types import (
    ANY_DURATION,
    DURATION,
    DURATION_OR_NONE,
    GPUS,
    TRACE_TIME,
    UNLIMITED_GPUS,
)
from runai.hub_service.client.request_options import AmountType, EnvType
from runai.hub_service.wire import amounts

CPUS = AmountType(amounts.CPUS)
MEMORY = AmountType(amounts.MEMORY)
PRIORITY = AmountType(amounts.PRIORITY)
GRACE = AmountType(amounts.GRACE)
ENV = EnvType()

GIB_IN_MIB = 1024


@pytest.mark.parametrize(
    ("param_type", "text", "value"),
    [
        pytest.param(GPUS, "0.5", Decimal("0.5"), id="half"),
        pytest.param(GPUS, "4", Decimal(4), id="whole"),
        pytest.param(GPUS, "0", Decimal(0), id="none"),
        pytest.param(GPUS, "½", Decimal("0.5"), id="sign-of-a-half"),
        pytest.param(GPUS, "1/3", Decimal("0.333"), id="third-rounded-down"),
        pytest.param(GPUS, "50 %", Decimal("0.5"), id="percentage"),
        pytest.param(GPUS, "0,35", Decimal("0.35"), id="decimal-comma"),
        pytest.param(GPUS, "2 GPUs", Decimal(2), id="amount-with-its-unit"),
        pytest.param(CPUS, "1.5 CPUs", Decimal("1.5"), id="cpus-with-their-unit"),
        pytest.param(UNLIMITED_GPUS, "2.5", Decimal("2.5"), id="quota"),
        pytest.param(UNLIMITED_GPUS, "None", "none", id="no-bound"),
        pytest.param(MEMORY, "4G", 4 * GIB_IN_MIB, id="G"),
        pytest.param(MEMORY, "4GiB", 4 * GIB_IN_MIB, id="GiB"),
        pytest.param(MEMORY, "4 gb", 4 * GIB_IN_MIB, id="gb"),
        pytest.param(MEMORY, "4096M", 4 * GIB_IN_MIB, id="M"),
        pytest.param(MEMORY, "512Mi", 512, id="Mi"),
        pytest.param(MEMORY, "0.3G", 308, id="rounded-up"),
        pytest.param(MEMORY, "7,5G", 7680, id="memory-with-a-decimal-comma"),
        pytest.param(PRIORITY, "High", "high", id="word"),
        pytest.param(PRIORITY, "60", 60, id="number"),
        pytest.param(DURATION, "30s", 30, id="seconds"),
        pytest.param(DURATION, "20m", 1200, id="minutes"),
        pytest.param(DURATION, "8h", 8 * 3600, id="hours"),
        pytest.param(DURATION, "2d", 2 * 86400, id="days"),
        pytest.param(DURATION, "90", 90, id="bare-number-of-seconds"),
        pytest.param(DURATION_OR_NONE, "None", "none", id="no-duration"),
        pytest.param(ANY_DURATION, "0", 0, id="no-time"),
        pytest.param(GRACE, "1h", 3600, id="longest-grace"),
        pytest.param(TRACE_TIME, "1772366400", 1772366400, id="second-of-a-trace"),
        pytest.param(TRACE_TIME, "2h", 7200, id="hour-of-a-trace"),
        pytest.param(ENV, "A=b=c", ("A", "b=c"), id="pair"),
        pytest.param(ENV, "A=", ("A", ""), id="empty-value"),
    ],
)
def test_option_value_is_converted_to_its_type(param_type, text, value):
    assert param_type.convert(text, None, None) == value


@pytest.mark.parametrize(
    ("param_type", "text", "sentence"),
    [
        pytest.param(
            GPUS,
            "-1",
            "'-1' is not a valid number of GPUs: use a number from 0 upwards",
            id="negative",
        ),
        pytest.param(
            GPUS,
            "half",
            "'half' is not a valid number of GPUs: use a number such as 0.5 or 2",
            id="word",
        ),
        pytest.param(
            GPUS,
            "nan",
            "'nan' is not a valid number of GPUs: use a number such as 0.5 or 2",
            id="nan",
        ),
        pytest.param(
            GPUS,
            "inf",
            "'inf' is not a valid number of GPUs: use a number such as 0.5 or 2",
            id="infinite",
        ),
        pytest.param(
            GPUS,
            "0.0001",
            "'0.0001' is not a valid number of GPUs: use at most three decimals",
            id="too-fine",
        ),
        pytest.param(
            GPUS,
            "٣",
            "'٣' is not a valid number of GPUs: use a number such as 0.5 or 2",
            id="digit-outside-ascii",
        ),
        pytest.param(
            GPUS,
            "1e26",
            "'1e26' is not a valid number of GPUs: use a number such as 0.5 or 2",
            id="too-many",
        ),
        pytest.param(
            GPUS,
            "1e999999",
            "'1e999999' is not a valid number of GPUs: use a number such as 0.5 or 2",
            id="huge",
        ),
        pytest.param(
            GPUS,
            "1e-999999",
            "'1e-999999' is not a valid number of GPUs: use a number such as 0.5 or 2",
            id="tiny",
        ),
        pytest.param(
            UNLIMITED_GPUS,
            "9" * 5000,
            f"'{'9' * 59}…' is not a valid number of GPUs: use a number such as 0.5 or 2",
            id="quota-of-many-digits",
        ),
        pytest.param(
            MEMORY,
            "9" * 5000 + "G",
            f"'{'9' * 59}…' is not a valid size: give a number and a unit, as in 4G or 4096M",
            id="memory-of-many-digits",
        ),
        pytest.param(
            MEMORY, "999999T", "'999999T' is not a valid size: give at most 900T", id="too-big"
        ),
        pytest.param(
            PRIORITY,
            "9" * 5000,
            f"'{'9' * 59}…' is not a valid priority: use low, normal, high or a number from 0 to"
            " 1000",
            id="priority-of-many-digits",
        ),
        pytest.param(
            DURATION,
            "800000d",
            "'800000d' is not a valid duration: use at most ten years (3660d)",
            id="length-of-centuries",
        ),
        pytest.param(
            DURATION,
            "9999999999d",
            "'9999999999d' is not a valid duration: give a number and a unit, such as 90m, 2h"
            " or 3d",
            id="length-of-many-digits",
        ),
        pytest.param(
            DURATION,
            "90\u017f",
            "'90\u017f' is not a valid duration: give a number and a unit, such as 90m, 2h or 3d",
            id="long-s-as-a-unit",
        ),
        pytest.param(DURATION, "0", "'0' is not a valid duration: use at least 1s", id="no-length"),
        pytest.param(
            GRACE, "2h", "'2h' is not a valid duration: use at most 1h", id="grace-of-hours"
        ),
        pytest.param(
            DURATION_OR_NONE,
            "soon",
            "'soon' is not a valid duration: give a number and a unit, such as 90m, 2h or 3d",
            id="length-in-words",
        ),
        pytest.param(
            MEMORY,
            "4096",
            "'4096' is not a valid size: give a number and a unit, as in 4G or 4096M",
            id="memory-without-unit",
        ),
        pytest.param(
            MEMORY, "0G", "'0G' is not a valid size: give at least 1M", id="memory-of-nothing"
        ),
        pytest.param(
            PRIORITY,
            "urgent",
            "'urgent' is not a valid priority: use low, normal, high or a number from 0 to 1000",
            id="unknown-priority",
        ),
        pytest.param(
            ENV, "1A=x", "'1A' is not a valid variable: write NAME=VALUE", id="name-of-variable"
        ),
        pytest.param(
            ENV,
            "NOT_SET_HERE",
            "NOT_SET_HERE is not set here: write NOT_SET_HERE=VALUE",
            id="unset",
        ),
    ],
)
def test_invalid_option_value_is_refused_with_a_sentence(param_type, text, sentence):
    with pytest.raises(click.BadParameter) as refused:
        param_type.convert(text, None, None)

    assert refused.value.message == sentence


def test_env_option_without_a_value_takes_the_callers_variable(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")

    assert ENV.convert("WANDB_MODE", None, None) == ("WANDB_MODE", "offline")


def test_invalid_env_option_is_refused_without_printing_its_value():
    with pytest.raises(click.BadParameter) as refused:
        ENV.convert("MY TOKEN=hush", None, None)

    assert "hush" not in refused.value.message
