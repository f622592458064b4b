"""Hypothesis profiles of the scheduler's tests.

default  fast enough for every run; the same examples each time
long     RUNAI_HYPOTHESIS=long: many more examples, new ones each time
mutants  few examples, for `make mutants`, which runs the tests thousands of times
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "default", max_examples=40, deadline=None, derandomize=True, suppress_health_check=_QUIET
)
settings.register_profile(
    "long", max_examples=4_000, deadline=None, print_blob=True, suppress_health_check=_QUIET
)
settings.register_profile(
    "mutants", max_examples=25, deadline=None, derandomize=True, suppress_health_check=_QUIET
)
settings.load_profile(os.environ.get("RUNAI_HYPOTHESIS", "default"))
