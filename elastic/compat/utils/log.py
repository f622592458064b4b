"""The logger `runai`: whether and where it is seen is the program's to configure.

Knows no handler; the original library wrote everything from DEBUG on to standard error when it was
imported. Used by the packages of the original names, and by scripts that used it there.
"""

from __future__ import annotations

import logging

log = logging.getLogger("runai")

debug = log.debug
info = log.info
warning = log.warning
error = log.error
critical = log.critical
