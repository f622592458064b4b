"""Node constraints from claims, volumes and storage classes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusters.kubernetes.parsed_objects import a_pod
from runai.hub_service.clusters.kubernetes.objects.node_eligibility import may_run, on_nodes
from runai.hub_service.clusters.kubernetes.objects.volume_binding import (
    Claim,
    Storage,
    StorageClass,
    Volume,
    placed,
)

NO_VOLUME = "its volume home is not there yet"
ONE_NODE = frozenset({"ReadWriteOnce"})
CLAIM = Claim("uid-home", "lab", "home", "c", ONE_NODE, 1024, "Filesystem", is_bound=False)
DISK = Volume("disk", "1", "c", ONE_NODE, 1024, "Filesystem", on_nodes("b"))
LOCAL = StorageClass(waits=True, is_provided=False)
CLOUD = StorageClass(waits=True, is_provided=True)
POD = a_pod("notebook", claims=("home",))


def open_nodes(
    claim: Claim | None, *volumes: Volume, storage_class: StorageClass | None = LOCAL
) -> str:
    """Return the nodes, of a and b, open to a pod with this claim; or why it waits."""
    storage = Storage(
        {} if claim is None else {"lab/home": claim},
        {volume.name: volume for volume in volumes},
        {} if storage_class is None else {"c": storage_class},
    )
    found = placed(POD, storage)
    return found.unsupported or " ".join(n for n in "ab" if may_run(found.demands, n, {}, (), {}))


@pytest.mark.parametrize(
    ("claim", "volumes", "storage_class", "expected"),
    [  # of the nodes a and b; the disk, 1024 MiB like the claim, is on b
        pytest.param(None, [], LOCAL, "a b", id="no claim"),
        pytest.param(CLAIM, [], None, "a b", id="no storage class"),
        pytest.param(CLAIM, [], LOCAL, "", id="no disk"),
        pytest.param(CLAIM, [DISK], LOCAL, "b", id="disk on b"),
        pytest.param(CLAIM, [replace(DISK, terms=None)], LOCAL, "a b", id="disk for all nodes"),
        pytest.param(CLAIM, [replace(DISK, claim="uid-x")], LOCAL, "", id="disk of another claim"),
        pytest.param(CLAIM, [replace(DISK, claim="uid-home")], LOCAL, "b", id="disk of this claim"),
        pytest.param(CLAIM, [replace(DISK, mib=1023)], LOCAL, "", id="disk too small"),
        pytest.param(CLAIM, [replace(DISK, class_name="d")], LOCAL, "", id="another class"),
        pytest.param(CLAIM, [replace(DISK, modes=frozenset())], LOCAL, "", id="other access mode"),
        pytest.param(CLAIM, [replace(DISK, volume_mode="Block")], LOCAL, "", id="block device"),
        pytest.param(CLAIM, [DISK], CLOUD, "a b", id="provisioned anywhere"),
        pytest.param(CLAIM, [], replace(CLOUD, terms=on_nodes("a")), "a", id="provisioned on a"),
        pytest.param(replace(CLAIM, node="a"), [DISK], CLOUD, "a", id="claim with a chosen node"),
        pytest.param(
            replace(CLAIM, is_bound=True, volume="disk"), [DISK], CLOUD, "b", id="bound claim"
        ),
        pytest.param(CLAIM, [], replace(CLOUD, waits=False), NO_VOLUME, id="bound at once"),
    ],
)
def test_pod_is_open_to_nodes_that_satisfy_its_volume_claim(
    claim, volumes, storage_class, expected
):
    assert open_nodes(claim, *volumes, storage_class=storage_class) == expected


def test_volume_claim_gets_the_smallest_free_disk_of_a_node():
    disks = [replace(DISK, name=name, mib=mib) for name, mib in (("x", 9000), ("y", 2000))]
    storage = Storage({}, {disk.name: disk for disk in disks}, {"c": LOCAL})

    first = storage.choose(CLAIM, "b", {}, ())
    second = storage.choose(CLAIM, "b", {}, {"y"})

    assert (first, second) == (disks[1], disks[0])
    assert storage.choose(CLAIM, "a", {}, ()) is None
