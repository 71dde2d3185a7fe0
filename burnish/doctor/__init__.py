"""`burnish doctor`: what this machine gives a compiled model, and whether a model is ready for production.

`examine()` looks at the machine; `burnish.doctor.checklist.checklist(target)` measures a model.
"""

from burnish.doctor.examine import Examination, examine
from burnish.doctor.line import Line, Status

__all__ = ["Examination", "Line", "Status", "examine"]
