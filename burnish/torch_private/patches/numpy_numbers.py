"""NumPy's numbers (`np.sqrt(64)`, kept in an attribute or given to a call).

Dynamo takes them for arrays without dimensions, and those for tensors: an integer tensor times one has another type
than in eager, `isinstance(number, float)` is answered with no, and what is computed from them is returned as an array.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from burnish.torch_private.dynamo import Unsupported
from burnish.torch_private.guards import GuardBuilder
from burnish.torch_private.patches.replacing import replaced
from burnish.torch_private.variables import (
    ConstantVariable,
    NumpyVariable,
    TorchInGraphFunctionVariable,
    VariableBuilder,
)

_WRAPS = "wrap_numpy_ndarray"
_COMPUTED = "a number of NumPy's that the function computes"
_TYPED = "a tensor of the type that a NumPy number has"
_KEEP_ITS_TYPE = (torch.tensor, torch.as_tensor, torch.asarray)
_OTHER = "a NumPy scalar that is no integer and no float"


@contextlib.contextmanager
def keeping_numbers_of_numpy() -> Iterator[None]:
    """While open, a NumPy number is a constant, guarded on by its value, which operations on tensors take for a Python
    number, as in eager. The graph breaks at what NumPy itself does with it."""
    if NumpyVariable is None or not hasattr(VariableBuilder, _WRAPS):
        yield
        return
    import numpy as np  # Dynamo has a class for it, so it is there

    plain = (np.integer, np.floating)  # whose values Dynamo can guard on

    wrap, proxied, made = getattr(VariableBuilder, _WRAPS), NumpyVariable.as_proxy, ConstantVariable.__init__

    def wrapped(builder: Any, value: Any) -> Any:
        number = value[()] if value.ndim == 0 else value
        if not isinstance(number, np.generic):
            return wrap(builder, value)
        if not isinstance(number, plain):
            raise Unsupported(_OTHER)
        builder.install_guards(GuardBuilder.TYPE_MATCH, GuardBuilder.EQUALS_MATCH)
        return NumpyVariable(number, source=builder.source)

    def as_number(variable: Any) -> Any:
        return variable.value.item() if isinstance(variable.value, plain) else proxied(variable)

    def checked(variable: Any, value: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(value, np.generic):
            raise Unsupported(_COMPUTED)
        made(variable, value, *args, **kwargs)

    call = TorchInGraphFunctionVariable.call_function

    def called(variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        given = (*args, *kwargs.values()) if variable.value in _KEEP_ITS_TYPE else ()
        if any(isinstance(each.realize(), NumpyVariable) for each in given):
            raise Unsupported(_TYPED)
        return call(variable, tx, args, kwargs)

    with (
        replaced(TorchInGraphFunctionVariable, "call_function", called),
        replaced(VariableBuilder, _WRAPS, wrapped),
        replaced(NumpyVariable, "as_proxy", as_number),
        replaced(ConstantVariable, "__init__", checked),
    ):
        yield
