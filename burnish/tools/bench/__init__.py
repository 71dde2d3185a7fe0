"""`burnish bench`, and the same as a library: does compiling help this model, and with which settings?

result = burnish.bench("my_model.py:build")    # or burnish.bench(model, inputs=(x,)) for an object at hand
print(result)
result.write_html("report.html")
"""

from burnish.tools.bench.candidates import Candidate, parse_candidates
from burnish.tools.bench.measured import BenchVerdict, CandidateResult
from burnish.tools.bench.result import BenchResult
from burnish.tools.bench.run import bench

__all__ = ["BenchResult", "BenchVerdict", "Candidate", "CandidateResult", "bench", "parse_candidates"]
