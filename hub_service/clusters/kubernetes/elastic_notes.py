"""What a Job's annotation keeps of an elastic job: who trains, and how fast it goes. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from runai.hub_service.clusters.elastic_state import ElasticState
from runai.hub_service.elastic_messages import MessageError, Target

ELASTIC = "runai/elastic"
"""Annotation: who trains and what is known of an elastic job's speed, as JSON."""


def read_elastic(annotations: Mapping[str, str]) -> ElasticState:
    """Read what was kept; whatever somebody else wrote there is the state of a new job."""
    try:
        kept: dict[str, Any] = json.loads(annotations.get(ELASTIC, "{}"))
        target = kept.get("target")
        return ElasticState(
            target=None if target is None else Target.from_json(target),
            losses={str(name): int(times) for name, times in kept.get("losses", {}).items()},
            throughput={int(n): float(v) for n, v in kept.get("throughput", {}).items()},
            global_batch=int(kept.get("global_batch", 0)),
            steps=int(kept.get("steps", 0)),
            sized=None if kept.get("sized") is None else float(kept["sized"]),
            resizes=int(kept.get("resizes", 0)),
            finishers=tuple(map(str, kept.get("finishers", ()))),
        )
    except (
        *(AttributeError, MessageError, TypeError, ValueError),
        *(OverflowError, RecursionError),  # 1e999 steps, a million brackets
    ):
        return ElasticState()


def elastic_text(state: ElasticState) -> str:
    """Write an elastic job's state; how far each worker is they tell again after a restart."""
    fields = asdict(replace(state, phases={}))
    del fields["phases"]
    fields["target"] = None if state.target is None else state.target.to_json()
    return json.dumps(fields, separators=(",", ":"))
