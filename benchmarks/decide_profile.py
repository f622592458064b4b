"""Show where the time of a decision goes: is there one function left that it all waits for?

    python benchmarks/decide_profile.py      # prints; writes results/decide_profile.json

The shapes are those of `decide.py`. Each is decided again and again for a second of processor
time while a timer looks, some hundred times a second, which function runs; what one calls in C
counts as its own. Nothing is slowed down by it, unlike by a tracing profiler.
"""

import gc
import json
import signal
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from decide import TABLE, Row
from machine import measured

from runai.hub_service.scheduler import decide
from runai.hub_service.scheduler.model.snapshot_json import snapshot_from_json

RESULTS = Path(__file__).parent / "results" / "decide_profile.json"
LOOK_EVERY_S, FOR_S = 0.001, 1.0
SHOWN = 8
MADE = {"<string>": "making frozen objects"}
"""What dataclasses write by themselves has no file."""


def sampled(row: Row) -> Counter[str]:
    """Decide for some seconds; count which function was seen how often."""
    seen: Counter[str] = Counter()

    def look(_number: int, frame: FrameType | None) -> None:
        if frame is not None:
            code = frame.f_code
            name = f"{Path(code.co_filename).stem}.{code.co_qualname}"
            seen[MADE.get(code.co_filename, name)] += 1

    signal.signal(signal.SIGPROF, look)
    spent = 0.0
    gc.collect()
    gc.disable()  # as `runai schedule` does for a snapshot
    while spent < FOR_S:
        decoded = row.shape(row.nodes)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, LOOK_EVERY_S, LOOK_EVERY_S)
        decide(snapshot_from_json(decoded))
        signal.setitimer(signal.ITIMER_PROF, 0)
        spent += time.process_time() - began
    gc.enable()
    return seen


def main() -> None:
    """Profile every shape of the table at its largest."""
    on = measured()
    largest = {row.shape: row for row in sorted(TABLE, key=lambda row: row.nodes)}
    shapes: dict[str, Any] = {}
    for row in largest.values():
        seen = sampled(row)
        total = sum(seen.values())
        shares = {name: round(100 * count / total, 1) for name, count in seen.most_common(SHOWN)}
        shapes[f"{row.shape.__name__}, {row.nodes} nodes"] = {"looks": total, "own_pct": shares}
        first = ", ".join(f"{name} {share} %" for name, share in list(shares.items())[:3])
        print(f"{row.shape.__name__:18} {first}", flush=True)
        RESULTS.write_text(json.dumps({**on, "shapes": shapes}, indent=1) + "\n")


if __name__ == "__main__":
    main()
