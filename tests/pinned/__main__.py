"""Whether a change of the compiler changed any kernel of the built-in workloads.

    python -m tests.pinned                    compare with pinned.json; the exit status is 1 if anything differs
    python -m tests.pinned --write            pin what there is now
    python -m tests.pinned --text DIR         write every schedule and source there, for a diff of two commits

`--size tiny` is what the tests compare; without it, full sizes as well, for which a GPU's kernels are chosen.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from burnish.tools.workloads import SIZES, WORKLOADS
from tests.pinned.workloads import MADE_WITH, PINNED, TARGETS, Pin, compiled


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pinned", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="pin what there is now")
    parser.add_argument("--text", type=Path, metavar="DIR", help="write every schedule and source there")
    parser.add_argument("--size", choices=SIZES, action="append", help="only this size")
    parser.add_argument("workloads", nargs="*", choices=[[], *WORKLOADS], metavar="WORKLOAD")
    options = parser.parse_args()
    pins: dict[str, Pin] = json.loads(PINNED.read_text())["graphs"] if PINNED.exists() else {}
    changed = []
    for name in options.workloads or WORKLOADS:
        for target in TARGETS:
            for size in options.size or SIZES:
                for graph in compiled(WORKLOADS[name], size, target):
                    if options.text:
                        options.text.mkdir(parents=True, exist_ok=True)
                        (options.text / f"{graph.name}.schedule.txt").write_text(str(graph.schedule))
                        (options.text / f"{graph.name}.source.txt").write_text(graph.source)
                    same = pins.get(graph.name) == graph.pin
                    print(f"{graph.name}: {len(graph.schedule.kernels)} kernels, {'same' if same else 'CHANGED'}")
                    changed += [] if same else [graph.name]
                    pins[graph.name] = graph.pin
    if options.write:
        PINNED.write_text(json.dumps({"made_with": MADE_WITH, "graphs": pins}, indent=1, sort_keys=True) + "\n")
    return 1 if changed and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
