"""Adapt stored rows to this machine after it was renamed or has lost devices."""

from dataclasses import replace

from runai.hub_service.clusters.row import ACTIVE, Row


def on_this_machine(row: Row, node: str, devices: int) -> Row:
    """Return a row as it is after the machine was renamed, or has lost devices."""
    workers = []
    for worker in row.record.workers:
        held = tuple(share for share in worker.devices if share.device < devices)
        if worker.state == "reserved" and (held != worker.devices or worker.node != node):
            workers.append(replace(worker, state="pending", node="", devices=()))
        elif worker.state in ACTIVE:
            workers.append(replace(worker, node=node, devices=held))
        else:
            workers.append(worker)
    resize = row.resize
    if resize is not None:
        held = tuple(share for share in resize.devices if share.device < devices)
        resize = replace(resize, node=node, devices=held) if held else None
    return replace(row, record=replace(row.record, workers=tuple(workers)), resize=resize)
