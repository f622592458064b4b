"""Read the scheduler's policy: a YAML (or JSON) file with the fields of docs/policy.md.

    packing: spread
    max_pauses_per_hour: 2

Every mistake names file, field and value. Knows YAML; what the fields mean is the scheduler's.
Called at the start of the service.
"""

from pathlib import Path

import yaml

from runai.hub_service.errors import InvalidRequest
from runai.hub_service.scheduler import Policy
from runai.hub_service.scheduler.fields import InvalidSnapshot
from runai.hub_service.scheduler.snapshot_wire import policy_from_json


def read_policy(path: Path) -> Policy:
    """Return the policy of a file; what it leaves out has its default.

    Raises:
        InvalidRequest: the file cannot be read, or something in it cannot be meant.
    """
    try:
        fields = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as unreadable:
        raise InvalidRequest(
            f"{path} cannot be read: {getattr(unreadable, 'strerror', None) or 'no UTF-8 text'}.",
            hint="Name a file with the scheduler's policy (--policy).",
        ) from unreadable
    except (RecursionError, yaml.YAMLError, ValueError) as wrong:
        raise InvalidRequest(
            f"{path} is no YAML.", hint="One `field: value` a line; docs/policy.md lists them."
        ) from wrong
    try:
        return policy_from_json({} if fields is None else fields)
    except InvalidSnapshot as wrong:
        raise InvalidRequest(
            f"{path}: {wrong}.", hint="docs/policy.md lists the fields."
        ) from wrong
