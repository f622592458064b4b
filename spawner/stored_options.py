"""Bounds on the user options that JupyterHub's database keeps of a server.

JupyterHub stores what a request sends before a spawner sees it, and has no bounds of its own. What
is stored is in the list of users that the admin page loads: one value that browsers cannot parse,
or a very long one, would break the page for every admin.
"""

import json
from typing import Any, Final

from jupyterhub import orm
from sqlalchemy import event

from runai.spawner.refusal import SessionRefused

LONGEST_OPTIONS: Final = 10_000  # characters of JSON; those of our form have about 40


def can_be_stored(options: object) -> bool:
    """Return True if options are a JSON object, as browsers parse it, of a bounded length."""
    try:
        text = json.dumps(options, allow_nan=False)
    except (RecursionError, TypeError, ValueError):
        return False
    return isinstance(options, dict) and len(text) <= LONGEST_OPTIONS


def check_length(options: object) -> None:
    """Check that what a spawner has accepted can be stored.

    Raises:
        SessionRefused: it cannot be.
    """
    if not can_be_stored(options):
        raise SessionRefused(
            f"The options have more than {LONGEST_OPTIONS:,} characters.", reason="invalid_option"
        )


@event.listens_for(orm.Spawner.user_options, "set", active_history=True, retval=True)
def _bounded(_spawner: orm.Spawner, options: object, stored: object, _initiator: object) -> Any:  # noqa: ANN401 - what is to be stored
    """Keep what is stored in place of options that cannot be; the start refuses them."""
    if options is None or can_be_stored(options):
        return options
    return stored if can_be_stored(stored) else {}
