"""Informer: answers of requests, and events of the watch, in any order."""

from __future__ import annotations

from typing import Any, cast

import pytest

from runai.hub_service.clusters.kubernetes.informers.informer import Informer


def event(kind: str, version: int) -> dict[str, Any]:
    return {"type": kind, "object": pod(version)}


def pod(version: int) -> dict[str, Any]:
    metadata = {"namespace": "lab", "name": "p", "uid": "u", "resourceVersion": str(version)}
    return {"metadata": metadata, "version": version}


@pytest.mark.parametrize(
    ("steps", "cached"),
    [
        pytest.param([pod(5)], 5, id="answer"),
        pytest.param([pod(5), event("ADDED", 5)], 5, id="answer before its event"),
        pytest.param([pod(5), event("MODIFIED", 4)], 5, id="answer before an older event"),
        pytest.param([event("ADDED", 5), event("MODIFIED", 7), pod(5)], 7, id="late answer"),
        pytest.param([event("ADDED", 5), event("DELETED", 7), pod(6)], None, id="after deletion"),
        pytest.param([event("ADDED", 5), pod(6), event("DELETED", 7)], None, id="deletion"),
    ],
)
def test_cache_has_the_latest_version_whichever_way_it_came(
    steps: list[dict[str, Any]], cached: int | None
) -> None:
    informer = Informer(cast("Any", None), "/", lambda found: found["version"], lambda: None)

    for step in steps:
        if "type" in step:
            informer._handle_event(step)
        else:
            informer.apply(step)

    assert informer.objects.get("lab/p") == cached
