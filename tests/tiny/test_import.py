"""The package imports, quickly and without dragging in what it does not need."""

from __future__ import annotations

import subprocess
import sys


def test_import_pulls_in_neither_inductor_nor_transformers() -> None:
    code = (
        "import sys, burnish; "
        "heavy = [m for m in ('torch._inductor.compile_fx', 'transformers', 'rich') if m in sys.modules]; "
        "assert not heavy, heavy; print(burnish.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
