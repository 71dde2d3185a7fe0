"""Look for cases that compiled code gets wrong: `python -m tests.fuzz --seconds 60 --seed 1`.

Each case is a program, calls of it and options; a seed and a number make it. What differs from eager is made small and
written as a test that can be pasted. `--device cuda` on a machine with a GPU; `--device triton` runs a GPU's kernels in
Triton's interpreter. The exit status is 1 if anything was found that torch.compile's own capture does not do, too."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import torch

from tests.fuzz.case import Case, from_data
from tests.fuzz.generate import FEATURES, Wishes, random_case
from tests.fuzz.inputs import with_values
from tests.fuzz.oracle import Find, is_minor
from tests.fuzz.paste import pasted
from tests.fuzz.shrink import shrunk
from tests.fuzz.worker import Bench


def main() -> int:
    # Before the workers are started, which inherit it: as in the tests, one thread each.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    options = _arguments()
    if options.device == "triton":
        os.environ["TRITON_INTERPRET"] = "1"
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda needs an NVIDIA GPU, and torch sees none")
    search = Search(options)
    if options.case:
        return search.once(from_data(json.loads(Path(options.case).read_text())))
    search.run()
    return 1 if any(not found.inherited for found in search.found) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--count", type=int, default=1 << 60, help="how many cases at most")
    parser.add_argument("--device", choices=("cpu", "cuda", "triton"), default="cpu")
    parser.add_argument("--mode", default=None, help="of burnish.compile, on a GPU: reduce-overhead, max-autotune")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--without", default="", help=f"features to leave out, by commas: {', '.join(FEATURES)}")
    parser.add_argument("--focus", default="", help="features that every case has, and that happen often in it")
    parser.add_argument("--forced", type=float, default=0.6, help="the share of cases compiled without gate and check")
    parser.add_argument("--out", type=Path, default=None, help="a folder for what is found, or one .jsonl file")
    parser.add_argument("--shrink", type=float, default=45, help="seconds for each find; 0 leaves it as it is")
    parser.add_argument("--limit", type=float, default=120, help="seconds for a case, after which it hangs")
    parser.add_argument("--minor", action="store_true", help="also what few would notice: which results share memory")
    parser.add_argument("--case", default="", help="run the one case of this JSON file, as --out wrote it")
    return parser.parse_args()


_TRACE = 40  # lines of a traceback: where it was raised is at its end
_OURS = ("build", "run", "codegen", "schedule")  # stages at which no failure is a limit of torch's


@dataclasses.dataclass
class Found:
    number: int
    case: Case
    find: Find
    family: str
    inherited: bool  # torch.compile's own capture does the same, without our compiler
    stage: str  # of the compiler: see stages.py


class Search:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        without, focus = (frozenset(w for w in text.split(",") if w) for text in (options.without, options.focus))
        unknown = (without | focus) - set(FEATURES)
        if unknown:
            raise SystemExit(f"no such features: {', '.join(sorted(unknown))}; there are {', '.join(FEATURES)}")
        if options.device == "triton":  # whose interpreter is NumPy, which has its own way with extremes
            without |= {"extreme", "neg", "module", "same", "alias", "numbers"}
        if options.device == "cuda":  # an index out of range ends the process's use of the GPU, in eager
            without |= {"bad index"}
        self.wishes = Wishes(without, focus, options.mode, options.forced, options.device)
        self.phase = "triton" if options.device == "triton" else "calls"
        self.device = "cuda" if options.device == "cuda" else "cpu"
        self.lock = threading.Lock()
        self.next = options.first
        self.end = time.monotonic() + options.seconds
        self.began = time.monotonic()
        self.found: list[Found] = []
        self.families: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self.programs = self.calls = 0

    def run(self) -> None:
        threads = [threading.Thread(target=self._work) for _ in range(self.options.workers)]
        for t in threads:
            t.start()
        while any(t.is_alive() for t in threads):
            time.sleep(1)
            if int(time.monotonic() - self.began) % 30 == 0:
                self._progress()
        self._summary()

    def once(self, case: Case) -> int:
        bench = self._bench()
        report = bench.run(case)
        print(case.texts, *report.finds, *report.fallbacks, sep="\n")
        bench.stop()
        return 1 if report.finds else 0

    def _bench(self) -> Bench:
        return Bench(self.device, self.options.limit, self.phase)

    def _work(self) -> None:
        bench = self._bench()
        while (number := self._number()) is not None:
            case = random_case(self.options.seed, number, self.wishes)
            report = bench.run(case)
            with self.lock:
                self.programs += 1
                self.calls += report.calls
                self._note(number, report.fallbacks)
            finds = self._serious(report.finds)
            if finds:
                self._keep(bench, number, case, finds[0])
        bench.stop()

    def _note(self, number: int, fallbacks: list[str]) -> None:
        """Failures behind the compiler's own eyes are told whole: eager's result is right, but we were not."""
        for text in fallbacks:
            if text.startswith(_OURS) and not self.fallbacks[text[:100]]:
                print(f"--- number {number}, left to eager: {text}\n", flush=True)
            self.fallbacks[text[:100]] += 1

    def _number(self) -> int | None:
        with self.lock:
            number = self.next
            if time.monotonic() > self.end or number >= self.options.first + self.options.count:
                return None
            self.next += 1
            return number

    def _serious(self, finds: list[Find]) -> list[Find]:
        return finds if self.options.minor else [f for f in finds if not is_minor(f)]

    def _keep(self, bench: Bench, number: int, case: Case, find: Find) -> None:
        def fails(candidate: Case) -> bool:
            again = self._serious(bench.run(candidate).finds)
            return any(f.kind == find.kind and _place(f) == _place(find) and _said(f) == _said(find) for f in again)

        if find.kind == "no exception" and not self.options.minor and self._is_inherited(bench, case, find):
            return  # an operation whose result nobody reads is left out by AOTAutograd: docs/limits.md
        if self.options.shrink and find.kind != "fuzzer":
            case = shrunk(case, fails, self.options.shrink)
        again = self._serious(bench.run(case).finds)
        if not again:
            find = dataclasses.replace(find, kind=f"{find.kind} (not seen again)")
        find = again[0] if again else find
        inherited = self._is_inherited(bench, case, find)
        family = family_of(case, find) + (" [torch.compile, too]" if inherited else "")
        valued = not inherited and find.kind in ("value", "integer value", "not finite")
        stage = bench.stage(case, find.call) if valued and self.phase == "calls" else ""
        found = Found(number, case, find, family, inherited, stage)
        with self.lock:
            self.families[family] += 1
            self.found.append(found)
            if self.families[family] <= 3:
                self._tell(found)

    def _is_inherited(self, bench: Bench, case: Case, find: Find) -> bool:
        if self.phase != "calls" or find.kind in ("crash", "hang", "fuzzer"):
            return False
        captured = {k: v for k, v in case.compile.items() if k == "dynamic"} | {"backend": "aot_eager"}
        other = dataclasses.replace(case, compile=captured, prelude=())
        return any(f.kind == find.kind for f in self._serious(bench.run(other).finds))

    def _tell(self, found: Found) -> None:
        title = f"seed {self.options.seed}, number {found.number}: {found.find}"
        stage = f"\n    stage: {found.stage}" if found.stage else ""
        trace = "\n".join(found.find.trace.splitlines()[-_TRACE:])
        print(f"--- {title}\n    family: {found.family}{stage}\n{found.case.texts}\n{trace}\n", flush=True)
        if self.options.out is None:
            return
        stem = f"found_{self.options.seed}_{found.number}"
        case, test = (
            dataclasses.asdict(with_values(found.case)),
            pasted(found.case, f"Found by tests.fuzz: {title}", stem),
        )
        line = {"seed": self.options.seed, "number": found.number, "family": found.family, "stage": found.stage}
        line |= {"find": str(found.find), "inherited": found.inherited, "case": case}
        out, lines = self.options.out, self.options.out
        if out.suffix != ".jsonl":
            out.mkdir(parents=True, exist_ok=True)
            (out / f"test_{stem}.py").write_text(test)
            (out / f"{stem}.json").write_text(json.dumps(case))
            lines = out / "found.jsonl"
        with lines.open("a") as file:
            file.write(json.dumps(line if out is not lines else {**line, "test": test}) + "\n")

    def _progress(self) -> None:
        spent = time.monotonic() - self.began
        rate = self.programs / max(spent, 1)
        done = f"{self.programs} programs, {self.calls} calls, {len(self.found)} finds, {rate:.1f} programs/s"
        print(f"[{spent:.0f} s] {done}", flush=True)

    def _summary(self) -> None:
        self._progress()
        if self.fallbacks:
            print("left to eager:")
            for text, n in self.fallbacks.most_common(12):
                print(f"  {n:5}  {text}")
        inherited = sum(found.inherited for found in self.found)
        print(f"{len(self.found)} finds of {len(self.families)} families" if self.found else "nothing found")
        if inherited:
            print(f"{inherited} of them torch.compile's own capture makes, too (docs/limits.md)")
        for family, n in self.families.most_common():
            print(f"  {n:5}  {family}")


def _said(find: Find) -> str:
    """What eager raised, but for numbers in it: a smaller case that raises something else is another."""
    return re.sub(r"[-\d]+", "", find.detail)[:60] if find.kind == "no exception" else ""


def _place(find: Find) -> str:
    words = find.where.replace("thread 0 ", "").replace("thread 1 ", "").split()
    return words[0] if words else ""


def family_of(case: Case, find: Find) -> str:
    """What is likely to have one cause: the kind of difference, and what is left of the program."""
    steps = [s.template.replace("{0}", "x").replace("{1}", "y").replace("{2}", "z") for s in case.program.steps]
    marks = sorted({f for c in case.calls for a in c.args for f in a.flags if f in ("neg", "inference", "parameter")})
    marks += sorted({a.text.split("(")[0] for c in case.calls for a in c.before})
    return f"{find.signature} / {'; '.join(steps[:3])} {' '.join(marks)}".strip()


if __name__ == "__main__":
    sys.exit(main())
