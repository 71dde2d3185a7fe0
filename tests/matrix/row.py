"""One row of the matrix: the tests, in the environment that runs this, and how they went.

python -m tests.matrix.row RESULT.json [pytest arguments]
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from pathlib import Path

import pytest

from burnish.torch_private.probe import probe
from tests.gpu.__main__ import Summary, versions

# The seam, and a slice of what goes through it: capture, gradients, repeated blocks, warm starts, sealed calls.
TESTS = (
    "tests/torch_private",
    "tests/api/test_functions.py",
    "tests/api/test_torch_compile_backend.py",
    "tests/api/test_seal.py",
    "tests/capture/regions/test_replay.py",
    "tests/capture/restore/test_warm_start.py",
    "tests/capture/entry/test_function_modes.py",
    "tests/capture/entry/test_identity_of_objects.py",
    "tests/capture/entry/test_absent_attributes.py",
    "tests/capture/entry/test_sets.py",
)


def main(result: str, *arguments: str) -> int:
    summary, begin = Summary(), time.perf_counter()
    status = pytest.main(["-q", "-m", "not slow and not gpu", "-p", "no:cacheprovider", *TESTS, *arguments], [summary])
    found = probe()
    shown = versions()
    row = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **{name: shown[name] for name in ("torch", "python", "machine")},
        "names": f"{len(found.found)} of {len(found.found) + len(found.missing)}",
        "missing": [name.path for name in found.missing],
        "counts": dict(summary.counts),
        "failed": summary.failed,
        "seconds": round(time.perf_counter() - begin),
    }
    Path(result).write_text(json.dumps(row))
    return int(status)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
