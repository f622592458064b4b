"""Amounts of GPU as people write them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.wire.amounts import MOST_MEMORY_MIB
from runai.hub_service.wire.errors import InvalidRequest
from runai.spawner.amount import NO_GPU, Amount, parse_amount


@pytest.mark.parametrize(
    ("value", "milli"),
    [
        ("0.35", 350),
        ("0,35", 350),
        (".5", 500),
        ("½", 500),
        ("1/4", 250),
        ("1 / 3", 333),
        ("25%", 250),
        ("1 GPU", 1000),
        (" 0.125 ", 125),
        (0.5, 500),
        (2, 2000),
        ("0", 0),
        ("none", 0),
        ("No GPU", 0),
        ("without a GPU", 0),
    ],
)
def test_parse_amount_reads_a_bare_number_as_gpus(value: object, milli: int):
    assert parse_amount(value) == Amount(milli_gpus=milli)


@pytest.mark.parametrize(
    ("value", "mib"),
    [
        ("8 GiB", 8192),
        ("8G", 8192),
        ("7,5 GiB", 7680),
        ("512m", 512),
        ("0.0001 GiB", 1),
        ("1 TiB", 1024 * 1024),
    ],
)
def test_parse_amount_reads_a_number_with_a_unit_as_memory(value: str, mib: int):
    assert parse_amount(value) == Amount(memory_mib=mib)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("", "'' is not a valid amount of GPU."),
        ("-1", "'-1' is not a valid amount of GPU."),
        ("1.5", "'1.5' GPUs are not possible: above one GPU only whole ones are."),
        ("0.3333", "'0.3333' is not a valid amount of GPU."),
        ("1/0", "'1/0' is not a valid amount of GPU."),
        ("1/5000", "'1/5000' is not a valid amount of GPU."),
        ("0 GiB", "'0 GiB' is not a valid amount of GPU."),
        ("200000", "'200000' is not a valid amount of GPU."),
        ("8 XB", "'8 XB' is not a valid amount of GPU."),
        ("<b>" * 30, f"'{('<b>' * 30)[:39]}…' is not a valid amount of GPU."),
        ("999999999999 GiB", "'999999999999 GiB' is not a valid amount of GPU."),
        pytest.param(
            "9" * 5000 + "g", f"'{'9' * 39}…' is not a valid amount of GPU.", id="5,000 digits"
        ),
        pytest.param(
            "9" * 2_000_000 + "g",
            f"'{'9' * 39}…' is not a valid amount of GPU.",
            id="2 million digits",
        ),
        pytest.param(
            "0." + "1" * 5000, f"'0.{'1' * 37}…' is not a valid amount of GPU.", id="5,000 decimals"
        ),
        pytest.param(
            10**5000, "A number of more than 40 digits is not a valid amount of GPU.", id="int"
        ),
        (None, "'None' is not a valid amount of GPU."),
        (True, "'True' is not a valid amount of GPU."),
        ({"gpus": 1}, "\"{'gpus': 1}\" is not a valid amount of GPU."),
    ],
)
def test_parse_amount_refuses_invalid_amounts_with_a_hint(value: object, sentence: str):
    with pytest.raises(InvalidRequest) as refused:
        parse_amount(value)

    assert refused.value.message == sentence
    assert refused.value.hint


@given(
    st.text(max_size=20)
    | st.floats()
    | st.integers()
    | st.builds(
        "{}{}{}".format,
        st.integers(0, 10**50),
        st.sampled_from(["", ".5", ",25", "/3"]),
        st.sampled_from(["", "%", "m", " g", "t"]),
    )
)
def test_parse_amount_returns_a_valid_amount_or_refuses_any_input(value: object):
    try:
        amount = parse_amount(value)
    except InvalidRequest:
        return
    assert amount.memory_mib <= MOST_MEMORY_MIB
    assert amount.milli_gpus >= 0
    assert amount.milli_gpus <= 1000 or amount.milli_gpus % 1000 == 0


@given(
    st.integers(0, 1000).map(lambda milli: Amount(milli_gpus=milli))
    | st.integers(1, 1024).map(lambda gpus: Amount(milli_gpus=gpus * 1000))
    | st.integers(1, MOST_MEMORY_MIB).map(lambda mib: Amount(memory_mib=mib))
)
def test_amount_text_parses_back_to_the_same_amount(amount: Amount):
    assert parse_amount(amount.text()) == amount


def test_amount_gpus_is_an_exact_decimal():
    assert Amount(milli_gpus=350).gpus == Decimal("0.35")
    assert NO_GPU.gpus == 0
