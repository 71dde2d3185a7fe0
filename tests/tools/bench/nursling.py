"""What `test_nursery.py` runs in children: `python -m tests.tools.bench.nursling WHAT OUT`."""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from pathlib import Path


def main(what: str, out: Path) -> None:
    imported = sorted({"torch", "burnish.pipeline"} & set(sys.modules))
    print("begun", flush=True)
    if what == "fails":
        raise ValueError("on purpose")
    if what == "hangs":
        time.sleep(600)
    heard = sys.stdin.readline().strip()
    found = {"imported": imported, "heard": heard, "variable": os.environ.get("BURNISH_NURSLING"), "pid": os.getpid()}
    atexit.register(lambda: out.write_text(json.dumps(found)))
    print("said", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
