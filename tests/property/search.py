"""Look for programs that fail, for as long as you like: `python -m tests.property.search --seconds 300 --seed 7`."""

from __future__ import annotations

import argparse
import time
import warnings
from random import Random

from tests.property.random_programs import random_program
from tests.property.test_random_graphs import check_compiled, check_forms, check_gradients

CHECKS = {"forms": check_forms, "compiled": check_compiled, "gradients": check_gradients}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="the first program's number; programs are counted from it")
    parser.add_argument("--check", choices=CHECKS, default="compiled")
    parser.add_argument("--dynamic", action="store_true", help="sizes are symbols")
    parser.add_argument("--mutating", action="store_true", help="programs that mostly write their inputs")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    end, seed, failed = time.monotonic() + options.seconds, options.seed, 0
    while time.monotonic() < end and failed < 10:
        program = random_program(Random(seed), options.mutating)
        try:
            problems = CHECKS[options.check](program, options.dynamic)
        except Exception as error:  # what is looked for: report it and go on
            problems = [f"{type(error).__name__}: {error}"]
        if problems:
            failed += 1
            print(f"--- program {seed}", *problems, program, sep="\n", flush=True)
        seed += 1
    print(f"{seed - options.seed} programs, {failed} failed")


if __name__ == "__main__":
    main()
