"""burnish: a compiler for PyTorch models. `model = burnish.compile(model)`."""

from importlib import metadata as _metadata

from burnish import errors
from burnish.api import compile, disable, reset, seal, stats
from burnish.capture.blocks import region
from burnish.explain import explain
from burnish.observe import metrics
from burnish.options import Options
from burnish.stats import Stats
from burnish.torch_private import dynamo as _dynamo
from burnish.verify import verify

__version__ = "0.1.0"
__all__ = [
    "Options",
    "Stats",
    "__version__",
    "compile",
    "disable",
    "errors",
    "explain",
    "metrics",
    "region",
    "reset",
    "seal",
    "stats",
    "verify",
]


def _register_backend() -> None:
    """Let `torch.compile(model, backend="burnish")` find us. Where the package is installed torch finds the entry
    point by itself, and nothing needs importing now."""
    try:
        _metadata.distribution("burnish")
    except _metadata.PackageNotFoundError:
        from burnish.capture.dynamo import burnish_backend

        _dynamo.register_backend(burnish_backend, name="burnish")


_register_backend()
