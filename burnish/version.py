"""The version and the package's path, for modules that must not import all of it."""

from pathlib import Path

__version__ = "0.1.0"

PACKAGE = Path(__file__).parent
