"""`burnish bench`, and the same as a library: does compiling help this model, and with which settings?

from burnish.bench import bench
result = bench("my_model.py:build")            # or bench(model, inputs=(x,)) for an object at hand
print(result)
result.write_html("report.html")
"""

from burnish.bench.candidates import Candidate, parse_candidates
from burnish.bench.measured import CandidateResult, Verdict
from burnish.bench.result import BenchResult
from burnish.bench.run import bench

__all__ = ["BenchResult", "Candidate", "CandidateResult", "Verdict", "bench", "parse_candidates"]
