"""What `--add "nlp 4 GPUs"` and `--set vision.quota=6` mean, parsed at the border.

Pure. Whether the project exists and the amount can be had is the service's business. Used by
`what_if`.
"""

import re
from typing import Final, get_args

from runai.hub_service.api.questions import Setting
from runai.hub_service.cli.values import parse_memory_mib

_SETTINGS: Final = get_args(Setting)
_ADDED: Final = re.compile(
    r"^\s*(?P<project>[a-z0-9][-a-z0-9]*)"
    r"(?:\s+(?P<kind>job|session))?"
    r"(?:\s+(?P<workers>\d+)\s*(?:x|workers?\s+of))?"
    r"\s+(?P<amount>\d+(?:\.\d+)?)\s*(?P<unit>gpus?|[mgt]i?b?|)"
    r"(?:\s+(?P<priority>low|normal|high))?\s*$",
    re.IGNORECASE,
)
_DECIMALS: Final = 3
_WHOLE: Final = ("weight", "priority", "min_runtime")


def parse_addition(text: str) -> dict[str, object]:
    """Turn words into a request.

    >>> parse_addition("nlp 4 GPUs")
    {'project': 'nlp', 'gpus': '4'}
    >>> parse_addition("nlp 8 workers of 1 GPU high")["workers"]
    8
    >>> parse_addition("vision session 20G")
    {'project': 'vision', 'gpu_memory_mib': 20480, 'kind': 'session'}

    Raises:
        ValueError: it says no project, or no amount.
    """
    matched = _ADDED.match(text)
    if matched is None:
        message = (
            f"'{text}' says no project and amount: write 'nlp 4 GPUs', 'nlp 8 x 1 GPU',"
            " 'nlp session 0.5 GPUs', 'nlp 20G', with low or high at the end for the priority"
        )
        raise ValueError(message)
    amount, unit = matched["amount"], matched["unit"].lower()
    request: dict[str, object] = {"project": matched["project"]}
    if unit in {"", "gpu", "gpus"}:
        if len(amount.partition(".")[2]) > _DECIMALS:
            message = f"{amount} GPUs is too fine: use at most three decimals"
            raise ValueError(message)
        request["gpus"] = amount
    else:
        request["gpu_memory_mib"] = parse_memory_mib(amount + unit)
    if matched["kind"] is not None and matched["kind"].lower() == "session":
        request["kind"] = "session"
    if matched["workers"] is not None:
        request["workers"] = int(matched["workers"])
    if matched["priority"] is not None:
        request["priority"] = matched["priority"].lower()
    return request


def parse_setting(text: str) -> dict[str, object]:
    """Turn `project.setting=value` into a change; `none` is no bound.

    >>> parse_setting("vision.quota=6")
    {'project': 'vision', 'setting': 'quota', 'value': '6'}
    >>> parse_setting("vision.limit=none")["value"] is None
    True

    Raises:
        ValueError: there is no such setting, or the value is no number.
    """
    name, equals, value = text.partition("=")
    project, _, setting = name.strip().rpartition(".")
    if not equals or not project:
        message = f"'{text}' sets nothing: write PROJECT.SETTING=VALUE, as in vision.quota=6"
        raise ValueError(message)
    if setting not in _SETTINGS:
        message = f"a project has no '{setting}': settings are {', '.join(_SETTINGS)}"
        raise ValueError(message)
    value = value.strip()
    if value.lower() in {"none", "unlimited"}:
        return {"project": project, "setting": setting, "value": None}
    is_number = value.isdecimal() if setting in _WHOLE else re.fullmatch(r"\d+(\.\d{1,3})?", value)
    if not is_number:
        kind = "a whole number" if setting in _WHOLE else "a number of GPUs or none"
        message = f"{project}.{setting} cannot be '{value}': give {kind}"
        raise ValueError(message)
    return {"project": project, "setting": setting, "value": value}
