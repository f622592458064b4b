"""A real training with epochs that last until a test lets them end, instead of some seconds.

It still runs when the scheduler comes to pause it, however slow the machine. The result equals
that of the plain training bit for bit.
"""

from __future__ import annotations

from pathlib import Path

LEARNED = "has learned"
"""Printed after an epoch, before the program waits."""

_PROGRAM = """
import pathlib, runpy, sys, threading


class Event(threading.Event):
    def wait(self, timeout=None):
        if timeout is None:
            return super().wait()
        print({learned!r}, flush=True)
        while not (self.is_set() or pathlib.Path({may_go_on!r}).exists()):
            super().wait(0.02)
        return self.is_set()


threading.Event = Event
sys.argv[0] = {training!r}
runpy.run_path({training!r}, run_name="__main__")
"""


def gated_training(training: Path, may_go_on: Path) -> str:
    """Return a program equivalent to `training` (examples/train_numpy.py or a copy of it).

    It takes the same arguments, and runs no further than one epoch before `may_go_on` exists.
    """
    return _PROGRAM.format(
        learned=LEARNED, may_go_on=str(may_go_on), training=str(training.absolute())
    )
