"""`runai schedule`: dry run from a JSON snapshot to a JSON plan.

Also runs as `python -m runai.hub_service.scheduler`.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

from runai.hub_service.scheduler.cycle import decide, explain
from runai.hub_service.scheduler.model.json_codec import InvalidSnapshot, unique_keys
from runai.hub_service.scheduler.model.plan_json import decision_to_json, plan_to_json
from runai.hub_service.scheduler.model.snapshot import Snapshot
from runai.hub_service.scheduler.model.snapshot_json import snapshot_from_json

OK, WRONG_INPUT = 0, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plan of each snapshot; return 2 if one is invalid, else 0."""
    parser = argparse.ArgumentParser(
        prog="runai schedule",
        description="Print which workloads of a cluster in JSON would start, stop and wait.",
    )
    parser.add_argument("snapshot", metavar="SNAPSHOT.json", help="a file, or - for standard input")
    parser.add_argument(
        "--jsonl", action="store_true", help="one snapshot a line in, one plan a line out"
    )
    parser.add_argument(
        "--explain",
        metavar="WORKLOAD",
        help="print why this workload waits, which changes help and its expected start",
    )
    options = parser.parse_args(argv)
    try:
        if options.snapshot == "-":
            return _print_answers(sys.stdin, options)
        with open(options.snapshot, encoding="utf-8") as file:  # noqa: PTH123  pathlib is slow to import
            return _print_answers(file, options)
    except OSError as error:
        if error.filename is None:  # not the snapshot: the plan could not be written
            raise
        print(f"{options.snapshot}: {error.strerror}", file=sys.stderr)
        return WRONG_INPUT
    except UnicodeDecodeError:
        return _print_error("not JSON: it is no UTF-8 text", jsonl=options.jsonl)


def _print_answers(file: TextIO, options: argparse.Namespace) -> int:
    """Print the answer to each snapshot of a file; return the exit code."""
    status, jsonl = OK, options.jsonl
    for text in _lines(file) if jsonl else [file.read()]:
        gc.disable()  # an answer creates no garbage before it is printed
        try:
            answer = _answer_to(_read(text), options.explain)
        except InvalidSnapshot as error:
            status = _print_error(str(error), jsonl=jsonl)
        else:
            _print(answer, indent=None if jsonl else 2)
        finally:
            gc.enable()
    return status


def _read(text: str) -> Snapshot:
    try:
        text = text.removeprefix("\ufeff")  # the byte order mark of some editors
        return snapshot_from_json(json.loads(text, object_pairs_hook=unique_keys))
    except InvalidSnapshot:
        raise
    except RecursionError:
        message = "not JSON: it is nested too deeply"
    except ValueError as error:  # also for integers of thousands of digits
        message = f"not JSON: {error}"
    raise InvalidSnapshot(message)


def _print(answer: dict[str, Any], indent: int | None) -> None:
    written = json.dumps(answer, indent=indent, ensure_ascii=False)
    # Lone surrogates cannot be encoded; escape them as they were in the JSON input.
    print(written.encode(errors="backslashreplace").decode(), flush=True)


def _answer_to(snapshot: Snapshot, workload: str | None) -> dict[str, Any]:
    """Return the plan as JSON, or only the decisions about one workload, explained."""
    plan = decide(snapshot)
    if workload is None:
        return plan_to_json(plan)
    if all(workload != present.name for present in snapshot.workloads):
        message = f"there is no workload {workload} in the snapshot"
        raise InvalidSnapshot(message)
    wait = explain(snapshot, plan, workload)
    decisions = [wait] if wait else [d for d in plan.decisions if d.workload == workload]
    return {"decisions": [decision_to_json(decision) for decision in decisions]}


def _lines(file: Iterable[str]) -> Iterator[str]:
    return (line for line in file if line.strip())


def _print_error(message: str, *, jsonl: bool) -> int:
    # Print one line per input line, so that pipes stay in step.
    if jsonl:
        _print({"error": message}, indent=None)
    # Names may contain control characters of terminals.
    print("".join(c if c.isprintable() else ascii(c)[1:-1] for c in message), file=sys.stderr)
    return WRONG_INPUT


if __name__ == "__main__":
    sys.exit(main())
