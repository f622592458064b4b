"""Measure sharing on a real GPU: limits, metering, throughput, faults.

    python benchmarks/gpu_sharing.py                          # all three parts, half an hour
    python benchmarks/gpu_sharing.py --part 1 --out FILE      # limits and metering, four minutes

Part 1: limits by the start-up hook and accuracy of metering (P0 to P6). Part 2: throughput and
latency of sharing processes, time-sliced and by MPS. Part 3: limits and faults under MPS (M1 to
M7). Prints expected and measured values and saves both in a JSON file. Changes no setting of the
GPU, needs PyTorch and an idle device, and skips MPS if it is missing. Without an NVIDIA GPU it
prints "not run".
"""

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from sharing.table import Row, as_json, lines

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "gpu_sharing.json"
PART_2_S = 480.0


def rows(part: int, index: int, pace: float) -> Iterator[Row]:
    """Run one part on one device.

    Raises:
        NvmlMissing: the device does not exist.
    """
    # Imported here: their dependencies are missing on machines that cannot run them.
    from sharing import caps, faults, throughput  # noqa: PLC0415
    from sharing.gpu import Gpu  # noqa: PLC0415

    gpu = Gpu(index)
    try:
        if part == 1:
            yield from caps.part(gpu, pace)
        elif part == 2:
            yield from throughput.part(gpu, pace, PART_2_S)
        else:
            yield from faults.part(gpu, pace)
    finally:
        gpu.source.close()


def why_not(index: int) -> str:
    """Return why nothing can run on this machine; "" if it can."""
    for module in ("torch", "pynvml", "runai.hub_service.limits.mps_daemon"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    from sharing.gpu import Gpu  # noqa: PLC0415

    from runai.hub_service.agent.devices.nvml_inventory import NvmlMissing  # noqa: PLC0415

    try:
        Gpu(index).source.close()
    except NvmlMissing as missing:
        return f"no NVIDIA GPU: {missing}"
    import torch  # noqa: PLC0415  seconds, so only where there is a device

    return "" if torch.cuda.is_available() else "PyTorch sees no CUDA device"


def keep(path: Path, part: int, found: Sequence[Row]) -> None:
    """Save one part in the results file and keep its other parts."""
    saved = json.loads(path.read_text()) if path.exists() else {}
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    saved[f"part {part}"] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.platform(),
        "python": platform.python_version(),
        "commit": described.stdout.strip(),
        "rows": as_json(found),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(saved, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected parts; return 1 if a result was not as expected."""
    parser = argparse.ArgumentParser(description="Measure sharing on a real GPU.")
    parser.add_argument("--part", type=int, choices=(1, 2, 3), action="append")
    parser.add_argument("--gpu", type=int, default=0, help="the device, in NVML's order")
    parser.add_argument("--pace", type=float, default=1.0, help="stretch every duration by this")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if why := why_not(options.gpu):
        print(f"not run: {why}")
        return 0
    is_as_expected = True
    for part in options.part or (1, 2, 3):
        print(f"part {part}", flush=True)
        found: list[Row] = []
        for row in rows(part, options.gpu, options.pace):
            found.append(row)
            print(*lines([row]), flush=True)
            keep(options.out, part, found)
        is_as_expected = is_as_expected and all(row.passed is not False for row in found)
    return 0 if is_as_expected else 1


if __name__ == "__main__":
    sys.exit(main())
