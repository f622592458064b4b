"""The launcher's command line: `python -m runai.elastic.run --min 1 --max 4 train.py ARGS`.

It parses options, prints progress and handles signals. The same script runs under plain torchrun,
and on the platform, which starts workers itself.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from runai.elastic.job_directory import DirectoryTaken, JobDirectory
from runai.elastic.launcher import Launcher
from runai.hub_service.wire.elastic_messages import MessageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a training as elastic workers, or resize one that runs; return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.resize is not None:
        return _resize(parser, options.resize, options.script)
    if options.script is None:
        parser.error("which script? For example: --min 1 --max 4 train.py")
    max_workers = options.min if options.max is None else options.max
    if not 1 <= options.min <= max_workers:
        parser.error(f"--min {options.min} --max {max_workers}: both at least 1, max not below min")
    command = [sys.executable, "-u", *(["-m"] if options.module else []), options.script]
    path = options.directory or Path(tempfile.mkdtemp(prefix="runai-elastic-"))
    directory = JobDirectory(path)
    launcher = Launcher(
        [*command, *options.arguments],
        directory,
        min_workers=options.min,
        max_workers=max_workers,
        report_progress=_print,
        restarts=options.restarts,
        grace_s=options.grace,
    )

    def pause(_number: int, _frame: FrameType | None) -> None:
        launcher.pause()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pause)
    _print(f"to resize: python -m runai.elastic.run --resize N {directory.path}")
    try:
        code = launcher.run()
    except DirectoryTaken as error:
        parser.exit(2, f"{error}\n")
    outcomes = {0: "finished", 143: f"paused; goes on with --directory {directory.path}"}
    _print(outcomes.get(code, f"failed with exit code {code}"))
    return code


def _resize(parser: argparse.ArgumentParser, count: int, directory: str | None) -> int:
    if directory is None:
        parser.error("--resize N needs the job's directory; its launcher printed it")
    try:
        JobDirectory(Path(directory)).request_workers(count)
    except (FileNotFoundError, ValueError, MessageError) as error:
        parser.exit(2, f"{error}\n")
    return 0


def _print(line: str) -> None:
    print(f"runai.elastic: {line}", file=sys.stderr, flush=True)  # noqa: T201 - its output


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runai.elastic.run",
        description="Train with as many workers as there may be, more or fewer while it runs.",
        epilog="Exit code: 0 finished, 143 paused, else that of a worker that failed.",
    )
    parser.add_argument("--min", type=int, default=1, help="workers needed (default 1)")
    parser.add_argument("--max", type=int, help="workers to start (default: as --min)")
    parser.add_argument(
        "--directory",
        type=Path,
        help="directory of messages and checkpoints; with the same one a paused job continues "
        "(default: a new temporary one)",
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=3,
        help="restarts after failures without an update in between (default 3)",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="seconds for a worker to leave, and again before it is killed (default 60)",
    )
    parser.add_argument("-m", "--module", action="store_true", help="the script is a module's name")
    parser.add_argument(
        "--resize",
        type=int,
        metavar="N",
        help="run the job of the directory SCRIPT with N workers",
    )
    parser.add_argument("script", nargs="?", help="the training; or, with --resize, a directory")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the training")
    return parser


if __name__ == "__main__":
    sys.exit(main())
