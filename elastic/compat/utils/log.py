"""The logger `runai`; the program configures its handlers.

The module adds no handler: the original library's wrote everything from DEBUG on to standard error.
"""

from __future__ import annotations

import logging

log = logging.getLogger("runai")

debug = log.debug
info = log.info
warning = log.warning
error = log.error
critical = log.critical
