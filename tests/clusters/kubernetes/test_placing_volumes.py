"""Node constraints from claims, volumes and storage classes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusters.kubernetes.worlds import a_pod
from runai.hub_service.clusters.kubernetes.objects.node_eligibility import may_run, on_nodes
from runai.hub_service.clusters.kubernetes.objects.volume_binding import (
    Claim,
    Storage,
    StorageClass,
    Volume,
    placed,
)

ONCE = frozenset({"ReadWriteOnce"})
CLAIM = Claim("uid-home", "lab", "home", "c", ONCE, 1024, "Filesystem", is_bound=False)
DISK = Volume("disk", "1", "c", ONCE, 1024, "Filesystem", on_nodes("b"))
WAITS = StorageClass(waits=True, is_provided=False)
MADE = StorageClass(waits=True, is_provided=True)
POD = a_pod("notebook", claims=("home",))


def open_nodes(claim: Claim | None, *volumes: Volume, of_class: StorageClass | None = WAITS) -> str:
    """Return the nodes, of a and b, open to a pod with this claim; or why it waits."""
    storage = Storage(
        {} if claim is None else {"lab/home": claim},
        {volume.name: volume for volume in volumes},
        {} if of_class is None else {"c": of_class},
    )
    found = placed(POD, storage)
    return found.unsupported or " ".join(n for n in "ab" if may_run(found.demands, n, {}, (), {}))


@pytest.mark.parametrize(
    ("claim", "volumes", "of_class", "expected"),
    [
        pytest.param(None, [], WAITS, "a b", id="no-claim-is-the-kubelets-business"),
        pytest.param(CLAIM, [], None, "a b", id="no-class-leaves-it-alone"),
        pytest.param(CLAIM, [], WAITS, "", id="no-disk-anywhere"),
        pytest.param(CLAIM, [DISK], WAITS, "b", id="where-the-disk-is"),
        pytest.param(CLAIM, [replace(DISK, terms=None)], WAITS, "a b", id="a-disk-for-everybody"),
        pytest.param(CLAIM, [replace(DISK, claim="uid-x")], WAITS, "", id="somebody-elses"),
        pytest.param(CLAIM, [replace(DISK, claim="uid-home")], WAITS, "b", id="already-its-own"),
        pytest.param(CLAIM, [replace(DISK, mib=1023)], WAITS, "", id="too-small"),
        pytest.param(CLAIM, [replace(DISK, class_name="d")], WAITS, "", id="of-another-class"),
        pytest.param(CLAIM, [replace(DISK, modes=frozenset())], WAITS, "", id="not-so-mounted"),
        pytest.param(CLAIM, [replace(DISK, volume_mode="Block")], WAITS, "", id="a-block-device"),
        pytest.param(CLAIM, [DISK], MADE, "a b", id="one-can-be-made-anywhere"),
        pytest.param(CLAIM, [], replace(MADE, terms=on_nodes("a")), "a", id="where-it-can-be-made"),
        pytest.param(
            replace(CLAIM, node="a"), [DISK], MADE, "a", id="for-the-node-that-was-chosen"
        ),
        pytest.param(
            replace(CLAIM, is_bound=True, volume="disk"), [DISK], MADE, "b", id="where-it-is-bound"
        ),
        pytest.param(
            CLAIM, [], replace(MADE, waits=False), "its volume home is not there yet", id="at-once"
        ),
    ],
)
def test_pod_is_open_to_nodes_that_satisfy_its_volume_claim(claim, volumes, of_class, expected):
    assert open_nodes(claim, *volumes, of_class=of_class) == expected


def test_volume_claim_gets_the_smallest_free_disk_of_a_node():
    disks = [replace(DISK, name=name, mib=mib) for name, mib in (("x", 9000), ("y", 2000))]
    storage = Storage({}, {disk.name: disk for disk in disks}, {"c": WAITS})

    first = storage.choose(CLAIM, "b", {}, ())
    second = storage.choose(CLAIM, "b", {}, {"y"})

    assert (first, second) == (disks[1], disks[0])
    assert storage.choose(CLAIM, "a", {}, ()) is None
