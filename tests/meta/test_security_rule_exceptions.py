"""Every exception from a security rule has its reason beside it (docs/security.md)."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("elastic", "embedded", "hub_service", "lab", "spawner", "widgets")
EXCEPTION = re.compile(r"#\s*noqa:\s*(?P<rules>[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)(?P<reason>.*)")
SECURITY_RULE = re.compile(r"\bS\d")


def exceptions_with_reasons() -> list[tuple[str, str]]:
    """Return each exception from the rules `S`, and the reason beside it."""
    return [
        (f"{path.relative_to(ROOT)}:{number}", found["reason"].strip(" -#"))
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := EXCEPTION.search(line)) and SECURITY_RULE.search(found["rules"])
    ]


def test_security_rule_exceptions_state_a_reason():
    assert [place for place, reason in exceptions_with_reasons() if not reason] == []
