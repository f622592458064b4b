"""`runai schedule`: the dry run. A snapshot in JSON goes in, the plan in JSON comes out.

Knows files, standard input and exit statuses, nothing of scheduling. Called as
`python -m runai.hub_service.scheduler` and by the `runai` command.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from runai.hub_service.scheduler.cycle import decide
from runai.hub_service.scheduler.wire import InvalidSnapshot, plan_to_json, snapshot_from_json

OK, WRONG_INPUT = 0, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plan of each snapshot; give 2 where one cannot be read, else 0."""
    parser = argparse.ArgumentParser(
        prog="runai schedule",
        description="Print what would start, stop and wait in a cluster described in JSON.",
    )
    parser.add_argument("snapshot", metavar="SNAPSHOT.json", help="a file, or - for standard input")
    parser.add_argument(
        "--jsonl", action="store_true", help="one snapshot a line in, one plan a line out"
    )
    options = parser.parse_args(argv)
    try:
        if options.snapshot == "-":
            return _answer(sys.stdin, jsonl=options.jsonl)
        with open(options.snapshot, encoding="utf-8") as file:  # noqa: PTH123  pathlib is slow to import
            return _answer(file, jsonl=options.jsonl)
    except OSError as error:
        print(f"{options.snapshot}: {error.strerror}", file=sys.stderr)
        return WRONG_INPUT


def _answer(file: TextIO, *, jsonl: bool) -> int:
    status = OK
    for text in _lines(file) if jsonl else [file.read()]:
        try:
            plan = plan_to_json(decide(snapshot_from_json(json.loads(text))))
        except json.JSONDecodeError as error:
            status = _refuse(f"not JSON: {error}", jsonl=jsonl)
        except InvalidSnapshot as error:
            status = _refuse(str(error), jsonl=jsonl)
        else:
            print(json.dumps(plan, indent=None if jsonl else 2, ensure_ascii=False), flush=True)
    return status


def _lines(file: Iterable[str]) -> Iterator[str]:
    return (line for line in file if line.strip())


def _refuse(message: str, *, jsonl: bool) -> int:
    # One line in, one line out: whoever pipes lines through stays in step.
    if jsonl:
        print(json.dumps({"error": message}, ensure_ascii=False), flush=True)
    print(message, file=sys.stderr)
    return WRONG_INPUT


if __name__ == "__main__":
    sys.exit(main())
