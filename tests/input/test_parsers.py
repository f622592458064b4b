"""Every parser reads its input or refuses it with an error that says what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parsers import PARSERS, Parser

DEEPLY_NESTED = [b"[" * 1_500, b'{"a":' * 1_500, b"- " * 1_000, b"(" * 1_500, b"-" * 100_000 + b"1"]
DEEPLY_NESTED += [b"[" * 1_500 + b"]" * 1_500, b'{"a":' * 1_500 + b"1" + b"}" * 1_500]
LONG_NUMBER = b"9" * 5_000
ODD_VALUES = [b"", b"\0", b"\xff\xfe", b"\n", "\u202e\u2028".encode(), b"\x1b[2J", b"NaN", b"1e999"]
ODD_VALUES += [b"2147483647", b"1e9999", b"1e999999", b"1e99999999999", b"-0", b"Infinity"]

FUZZ_SETTINGS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def reads_or_refuses(parser: Parser, content: bytes) -> None:
    try:
        parser.read(content)
    except parser.refusals as refusal:
        # The error is a sentence of bounded length that exposes no internals.
        message = str(refusal)
        assert "Traceback" not in message
        assert len(message) < 2 * len(content) + 2000


each_parser = pytest.mark.parametrize("parser", PARSERS.values(), ids=list(PARSERS))


FUZZ_REGRESSIONS = [
    ("form", b"gpus=.8/\x1f88"),
    ("form", b"project=vision\ngpus=999999999999 GiB"),
    ("options of a server", b'{"project": "a", "gpus": "999999999999g"}'),
    ("options of a server", b'{"gpus": 1, "project": "a' + "\u202e".encode() + b'"}'),
    ("magic", b"x -e-- -e.="),
    (
        "environment",
        b"RUNAI_NOTIFY_SMTP=smtp://h:587\nRUNAI_NOTIFY_FROM=a@[:b.c\nRUNAI_NOTIFY_TO={user}@b.c",
    ),
]
"""Regression cases: inputs that fuzzing found."""

OVERSIZED_INPUTS = {
    "GPUs of a node": ("node", b'{"status": {"allocatable": {"nvidia.com/gpu": "6Gi"}}}'),
    "workers of a PyTorchJob": (
        "PyTorchJob",
        (
            b'{"metadata": {"annotations": {"runai/held": "x"}}, "spec": {"runPolicy": {"suspend":'
            b' true}, "pytorchReplicaSpecs": {"Worker": {"replicas": 2147483647, "template":'
            b' {"spec": {"schedulerName": "runai-scheduler", "containers": []}}}}}}'
        ),
    ),
    "pods of a Job at once": (
        "batch Job",
        (
            b'{"metadata": {"annotations": {"runai/held": "x"}}, "spec": {"suspend": true,'
            b' "completions": 2147483647, "parallelism": 2147483647, "template": {"metadata":'
            b' {"labels": {"runai/gang": "true"}}, "spec": {"schedulerName": "runai-scheduler",'
            b' "containers": []}}}}'
        ),
    ),
    "indexes of a Job that are done": (
        "batch Job",
        (
            b'{"spec": {"template": {"spec": {"containers": []}}}, "status":'
            b' {"completedIndexes": "0-99999999999"}}'
        ),
    ),
    "digits of a number": ("kubelet's answer", b"\x80" * 1_000_000),
    "digits of a port": ("settings of an agent", b"RUNAI_AGENT_METRICS=h:" + b"9" * 5000),
    "cost of a password's hash": (
        "accounts.json",
        b'{"accounts": {"ana": {"admin": false, "hashed": "scrypt$1073741824$8$1$%s$%s"}}}'
        % (b"00" * 16, b"00" * 32),
    ),
}


@pytest.mark.parametrize(("name", "content"), OVERSIZED_INPUTS.values(), ids=OVERSIZED_INPUTS)
def test_oversized_parser_input_is_read_or_refused_in_bounded_memory_and_time(name, content):
    """Regression cases: each used up the memory or the time, or ended in a traceback."""
    reads_or_refuses(PARSERS[name], content)


@pytest.mark.parametrize(("name", "content"), FUZZ_REGRESSIONS)
def test_parser_refuses_invalid_inputs_found_by_fuzzing(name, content):
    with pytest.raises(PARSERS[name].refusals):
        PARSERS[name].read(content)


@pytest.mark.parametrize(
    ("name", "content"), [("magic", b"x --workdir=--"), ("magic that names", b"list -p--")]
)
def test_magic_option_with_two_dashes_as_value_is_read_or_refused(name, content):
    """Argparse refuses them before Python 3.13. Regression: both ended in a traceback."""
    reads_or_refuses(PARSERS[name], content)


@each_parser
def test_parser_reads_valid_input_and_refuses_deep_long_or_odd_values(parser):
    for valid_input in parser.seeds:
        parser.read(valid_input)
    for content in (*DEEPLY_NESTED, LONG_NUMBER, *ODD_VALUES):
        reads_or_refuses(parser, content)
    for valid_input in parser.seeds:
        for content in (*DEEPLY_NESTED, LONG_NUMBER, *ODD_VALUES):
            separator = next((s for s in (b"|", b"=") if s in valid_input), b":")
            before_last_value, found_separator, _ = valid_input.rpartition(separator)
            reads_or_refuses(parser, before_last_value + found_separator + content)
            for number in (b"1", b"2", b"0.5"):
                if number in valid_input:
                    reads_or_refuses(parser, valid_input.replace(number, content))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3)
    ),
    max_leaves=8,
)


JSON_PARSERS = {
    name: parser
    for name, parser in PARSERS.items()
    if any(b"{" in seed or b"[" in seed for seed in parser.seeds)
}


@pytest.mark.parametrize("parser", JSON_PARSERS.values(), ids=list(JSON_PARSERS))
@FUZZ_SETTINGS
@given(data=st.data())
def test_parser_reads_or_refuses_json_with_a_replaced_part(parser, data):
    valid_input = data.draw(st.sampled_from(parser.seeds))
    field, bar, body = valid_input.rpartition(b"|")  # `field|JSON`, or JSON alone
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    changed = json.dumps(_replace_part(data.draw, value)).encode()
    reads_or_refuses(parser, field + bar + changed)


def _replace_part(draw: Any, value: Any) -> Any:
    """Replace one part of a JSON value."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(value)))
        return {**value, key: _replace_part(draw, value[key])}
    if isinstance(value, list) and value and draw(st.booleans()):
        return [_replace_part(draw, value[0]), *value[1:]]
    return draw(JSON)


BYTES = st.binary(max_size=200)
TEXT = st.text(max_size=30).map(lambda text: text.encode(errors="surrogatepass"))


@each_parser
@settings(FUZZ_SETTINGS, max_examples=50)
@given(data=st.data(), content=BYTES | TEXT)
def test_parser_reads_or_refuses_input_with_a_replaced_slice(parser, data, content):
    """Replace any slice of a valid input, up to all of it."""
    valid_input = data.draw(st.sampled_from(parser.seeds) | st.just(b""))
    start = data.draw(st.integers(0, len(valid_input)))
    end = data.draw(st.integers(start, len(valid_input)))
    reads_or_refuses(parser, valid_input[:start] + content + valid_input[end:])


ALIAS_BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize("name", ["projects file", "policy file"])
@pytest.mark.parametrize(
    "text",
    [
        ALIAS_BOMB,
        "projects:\n  vision:\n    members: &a [ana]\n    admins: &b " + "[*a,*a]" + "\n",
        "projects: &p {vision: *p}\n",
        "&a [*a]\n",
        ALIAS_BOMB.replace("a11:", "projects:"),
        "projects:\n  vision: {members: " + ALIAS_BOMB.splitlines()[0][8:] + "}\n",
    ],
    ids=[
        *("twelve levels of aliases", "list twice", "map in itself", "list in itself"),
        *("twelve levels of aliases as projects", "list as members"),
    ],
)
def test_yaml_file_with_expanding_aliases_is_read_or_refused(name, text):
    """A few hundred bytes of YAML aliases can expand to gigabytes."""
    reads_or_refuses(PARSERS[name], text.encode())
