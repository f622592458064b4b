"""Versions of workloads, by which who waits for a change knows one.

Pure. Used by `views`, which show them, and by the routes that wait.
"""

import hashlib

from runai.hub_service.clusters.records import WorkloadRecord


def version_of(record: WorkloadRecord) -> str:
    """Return an opaque text that differs whenever a caller would be shown something else.

    Measurements do not count: they change all the time.
    """
    held = [(w.state, w.node, w.devices, w.exit_code) for w in record.workers]
    shown = (
        record.state,
        held,
        record.reason,
        record.position,
        record.attempts,
        record.pauses,
        record.failures,
        record.elastic,
    )
    return hashlib.blake2b(repr(shown).encode(), digest_size=8).hexdigest()
