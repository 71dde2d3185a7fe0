"""What burnish does with Dynamo's modules where they are not loaded: a loaded pack must not import them."""

from __future__ import annotations

import sys

_DYNAMO = "torch._dynamo"
_EVAL_FRAME = "torch._dynamo.eval_frame"
UTILS = "torch._dynamo.utils"


def is_of_dynamo(module: str) -> bool:
    return module == _DYNAMO or module.startswith(f"{_DYNAMO}.")


class Stance:
    """Dynamo's stance (`torch.compiler.set_stance`), which exists only where somebody has loaded Dynamo."""

    @property
    def is_ordinary(self) -> bool:
        stance = getattr(sys.modules.get(_EVAL_FRAME), "_stance", None)
        return stance is None or (
            getattr(stance, "stance", None) == "default" and getattr(stance, "backend", None) is None
        )
