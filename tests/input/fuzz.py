"""Coverage-guided fuzzing with atheris: input that a parser neither reads nor refuses.

    python tests/input/fuzz.py NAME SECONDS

A separate program, because libFuzzer ends its process. Exit status 0 if nothing was found.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["runai"]):
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from parsers import PARSERS


def main() -> None:
    name, seconds = sys.argv[1], int(sys.argv[2])
    parser = PARSERS[name]

    def test_input(content: bytes) -> None:
        try:
            parser.read(content)
        except parser.refusals:
            return

    corpus = Path(tempfile.mkdtemp(prefix="runai-corpus-"))
    for number, seed in enumerate(parser.seeds):
        (corpus / str(number)).write_bytes(seed)
    limits = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=20", "-rss_limit_mb=2048"]
    artifact_prefix = f"-artifact_prefix={corpus}/"
    atheris.Setup(
        [sys.argv[0], *limits, artifact_prefix, "-print_final_stats=1", str(corpus)], test_input
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
