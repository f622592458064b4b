"""One service under load: 200 users, 500 sessions, 1,000 event streams, 20,000 queued jobs.

    nice -n 10 python benchmarks/load.py [--remark TEXT] [--keep]

The real service over this machine's cluster with simulated GPUs, in a process of its own; streams
and callers in processes of theirs, whose own processor time is told. In this order:

    quiet     everything is there, users look at what is theirs
    submits   200 submits a second for a minute, and everybody looks on
    fair      one user alone, and while another floods, in turns: what does the quiet one notice?
              of 50 calls under way all the time, of 100 that come each second (three times what is
              allowed), and of arrays of 9,000 jobs, which are deleted one by one

Nothing that was acknowledged may be missing or doubled afterwards, and nothing may fail: what is
refused for now (429 with Retry-After) is counted and asked again. `--keep` writes
benchmarks/results/load.json.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import quantiles
from typing import Any

from crowd.hub import name_of
from crowd.people import Flood, Plan, Told
from crowd.stand import HERE, Stand, Watch, project_of, standing
from machine import ROOT, measured

RESULTS = ROOT / "benchmarks/results/load.json"
LOOKS = {"overview": 2.0, "mine": 5.0, "describe": 10.0, "whoami": 10.0, "projects": 2.0,
         "nodes": 2.0, "page": 1.0}  # fmt: skip
"""Calls a second of all users together, beside their streams."""
FLOODS: tuple[Flood, ...] = ("loops", "open", "arrays")
"""What is left of an array is there in the next round, too."""
QUIET_ONE = {"submit": 1.0, "overview": 2.0, "mine": 2.0, "describe": 5.0, "whoami": 5.0}


def played(stand: Stand, users: list[int], **how: Any) -> subprocess.Popen[str]:  # noqa: ANN401
    """Begin what users do, in a process of its own."""
    plan: Plan = {
        "url": stand.url,
        "users": [name_of(n) for n in users],
        "projects": {name_of(n): project_of(n) for n in users},
        "rates": {},
        "seconds": 30.0,
        "flood": "",
    }
    plan.update(how)  # type: ignore[typeddict-item]
    return _python("people.py", json.dumps(plan))


def came_of(process: subprocess.Popen[str]) -> Told:
    """Wait for what came of it."""
    told, _ = process.communicate(timeout=400)
    found: Told = json.loads(told)
    return found


def _python(program: str, line: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, str(HERE / program)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    if program == "people.py":
        process.stdin.close()
        process.stdin = None
    else:
        process.stdin.flush()
    return process


def spread(seconds: list[float]) -> dict[str, float]:
    """Return how many there were, and the middle, the slow and the slowest, in milliseconds."""
    if len(seconds) < 2:
        return {"n": len(seconds)}
    cuts = quantiles(seconds, n=100, method="inclusive")
    told = {"p50_ms": cuts[49], "p99_ms": cuts[98], "max_ms": max(seconds)}
    return {"n": len(seconds), **{name: round(1000 * value, 1) for name, value in told.items()}}


def summary(told: Told) -> dict[str, Any]:
    """Return what is worth keeping of it."""
    failed = sum(
        n for key, n in told["statuses"].items() if key[-3:] not in {"200", "201", "429", "503"}
    )
    return {
        "calls": {kind: spread(found) for kind, found in sorted(told["answered"].items())},
        "tries": {kind: spread(found) for kind, found in sorted(told["tries"].items())},
        "failed": failed,
        "failures": told["failures"],
        "refused_for_now": _refused(told["statuses"]),
        "given_up": told["lost"],
        "generator": {"cores": round(told["cpu"], 2), "late_s": round(told["late_s"], 2)},
    }


def _refused(statuses: Mapping[str, int]) -> int:
    return sum(n for key, n in statuses.items() if key.endswith(("429", "503")))


def in_a_phase(stand: Stand, *crowds: subprocess.Popen[str]) -> tuple[dict[str, Any], list[Told]]:
    """Wait for crowds, watching the service meanwhile."""
    with Watch(stand.process) as watch:
        told = [came_of(crowd) for crowd in crowds]
    memory = watch.memory
    return {
        "service": {
            "cores": round(watch.cpu, 2),
            "MiB_first": memory[0][1],
            "MiB_most": max(m for _, m in memory),
            "MiB": memory[:: max(1, len(memory) // 12)],
        },
        "load": round(os.getloadavg()[0], 2),
    }, told


def measure(asked: argparse.Namespace, data: Path) -> dict[str, Any]:
    """Fill a service, load it, and look at what it has kept."""
    everybody = list(range(asked.users))
    result: dict[str, Any] = {}
    with standing(data, asked.users) as stand:
        began = time.perf_counter()
        sessions = stand.begin_sessions()
        _say({"sessions": sessions, "took_s": round(time.perf_counter() - began, 1)})
        jobs = stand.queue_jobs(asked.jobs)
        result["filled"] = {
            "users": asked.users, "sessions": sessions, "queued_jobs": jobs,
            "took_s": round(time.perf_counter() - began, 1),
        }  # fmt: skip
        _say(result)
        wish = {"url": stand.url, "users": [name_of(n) for n in everybody], "each": asked.each}
        streams = _python("streams.py", json.dumps(wish))
        assert streams.stdout is not None
        opened = json.loads(streams.stdout.readline())
        _say(opened)
        about, (quiet,) = in_a_phase(
            stand, played(stand, everybody, rates=LOOKS, seconds=asked.seconds / 2)
        )
        result["quiet"] = {**summary(quiet), **about}
        _say({"quiet": result["quiet"]})
        rates = {**LOOKS, "submit": asked.submits}
        about, (busy,) = in_a_phase(
            stand, played(stand, everybody, rates=rates, seconds=asked.seconds)
        )
        result["submits"] = {
            "asked_per_s": asked.submits, "acknowledged": len(busy["acknowledged"]),
            **summary(busy), **about,
        }  # fmt: skip
        _say({"submits": result["submits"]})
        result["fair"], more = {}, list[str]()
        for flood in FLOODS:
            part, stored = fairness(stand, flood, asked.rounds, asked.seconds / 2)
            result["fair"][flood], more = part, [*more, *stored]
            _say({flood: part})
        heard, _ = streams.communicate("\n", timeout=60)
        found = json.loads(heard)
        result["streams"] = {
            **opened, **found, "first": spread(found["first"]), "gaps": spread(found["gaps"]),
            "cpu": round(found["cpu"], 2), "seconds": round(found["seconds"], 1),
        }  # fmt: skip
        stored = stand.stored()
        promised = [*busy["acknowledged"], *more]
        result["kept"] = {
            "stored": len(stored), "stored_twice": len(stored) - len(set(stored)),
            "acknowledged": len(promised), "acknowledged_twice": len(promised) - len(set(promised)),
            "lost": len(set(promised) - set(stored)),
        }  # fmt: skip
    return result


def fairness(
    stand: Stand, kind: Flood, rounds: int, seconds: float
) -> tuple[dict[str, Any], list[str]]:
    """Return what a quiet user notices of another's flood, and what was acknowledged.

    Alone and beside it in turns: a full look for what nobody uses any more, and whatever else comes
    by once in a while, meets both; of each there are enough for a hundredth to be more than one.
    """
    alone, beside, flood = list[Told](), list[Told](), list[Told]()
    for _ in range(rounds):
        lasts: dict[str, Any] = {"rates": QUIET_ONE, "seconds": seconds}
        about_alone, told = in_a_phase(stand, played(stand, [1], **lasts))
        alone += told
        flooding = played(stand, [0], flood=kind, seconds=seconds + 2)
        about_beside, told = in_a_phase(stand, played(stand, [1], **lasts), flooding)
        beside, flood = [*beside, told[0]], [*flood, told[1]]
    calls = [{kind: _answers(told, kind) for kind in QUIET_ONE} for told in (alone, beside)]
    statuses = sum((Counter(told["statuses"]) for told in flood), Counter[str]())
    return {
        "rounds": rounds,
        "alone": {"calls": _spreads(calls[0]), **about_alone},
        "beside_a_flood": {"calls": _spreads(calls[1]), **about_beside},
        "slowest_ms_by_round": [
            [_slowest(told) for told in one] for one in zip(alone, beside, strict=True)
        ],
        "failures": [line for told in (*alone, *beside, *flood) for line in told["failures"]],
        "flood": {
            "statuses": dict(statuses),
            "cores": round(flood[-1]["cpu"], 2),
            "calls": sum(statuses.values()),
            "refused_for_now": _refused(statuses),
        },
        "ratio": {
            quantile: {
                kind: round(spread(calls[1][kind])[quantile] / spread(found)[quantile], 2)
                for kind, found in sorted(calls[0].items())
            }
            for quantile in ("p50_ms", "p99_ms")
        },
    }, [name for told in (*alone, *beside, *flood) for name in told["acknowledged"]]


def _answers(told: list[Told], kind: str) -> list[float]:
    return [seconds for one in told for seconds in one["answered"].get(kind, ())]


def _slowest(told: Told) -> int:
    return round(1000 * max(max(found) for found in told["answered"].values()))


def _spreads(calls: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    return {kind: spread(found) for kind, found in sorted(calls.items())}


def _say(what: object) -> None:
    print(json.dumps(what), file=sys.stderr, flush=True)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--each", type=int, default=5, help="streams of each user")
    parser.add_argument("--submits", type=float, default=200.0, help="a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the loaded part")
    parser.add_argument("--rounds", type=int, default=4, help="of each part about two users")
    parser.add_argument("--remark", default="", help="what else the machine did")
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    # Whoever ends us early leaves neither a service nor jobs behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    about = measured()
    with tempfile.TemporaryDirectory(prefix="runai-load-") as folder:
        result = {**about, "remark": asked.remark, **measure(asked, Path(folder))}
    print(json.dumps(result, indent=1))
    if asked.keep:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
