"""`burnish doctor`: what works on this machine, and whether a model is ready for production.

`examine()` looks at the machine; `burnish.tools.doctor.checklist.checklist(target)` measures a model.
"""

from burnish.tools.doctor.examine import Examination, examine
from burnish.tools.doctor.line import Line, Status

__all__ = ["Examination", "Line", "Status", "examine"]
