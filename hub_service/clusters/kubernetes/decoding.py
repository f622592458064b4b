"""Read what the API server sends, however deep somebody has nested it.

Whoever may make a pod may give it `managedFields` of thousands of levels, which Python's reader of
JSON takes for an endless recursion. What lies so deep nobody here looks at: it is left out, and the
rest is read. Pure; called by `api`.
"""

import json
import re
from typing import Any

_DEEPEST = 200
"""No object that we read has a third of it."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


def decoded(content: bytes) -> Any:  # noqa: ANN401  JSON
    """Read JSON; what is nested too deep is null.

    >>> decoded(b'{"a": [1], "b": ' + b"[" * 5000 + b"]" * 5000 + b"}")["a"]
    [1]

    Raises:
        ValueError: it is none.
    """
    try:
        return json.loads(content)
    except RecursionError:
        return json.loads(_shallow(content))


def _shallow(content: bytes) -> bytes:
    kept, depth, since = [], 0, 0
    for token in _TOKEN.finditer(content):
        if token[0] in b"[{":
            depth += 1
            if depth == _DEEPEST + 1:
                kept.append(content[since : token.start()])
        elif token[0] in b"]}":
            if depth == _DEEPEST + 1:
                kept.append(b"null")
                since = token.end()
            depth -= 1
    # Of what never ends nothing is left to read, and that is said.
    return b"".join(kept) + (content[since:] if depth <= _DEEPEST else b"")
