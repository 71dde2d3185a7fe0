"""What Python sees of a tensor from outside, beside what Dynamo guards (its type, sizes, strides, `requires_grad`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from burnish.torch_private.dynamo import Unsupported
from burnish.torch_private.guards import (
    AttrSource,
    GuardBuilder,
    get_closure_vars,
    get_verbose_code_parts,
    install_guard,
)
from burnish.torch_private.patches.replacing import name_in, replaced
from burnish.torch_private.variables import TensorVariable, UntypedStorageVariable

_HISTORY, _BASE = "method_attr_grad_fn", "_base"


@contextlib.contextmanager
def guarding_facts_of_tensors() -> Iterator[None]:
    """While open, Dynamo guards that a tensor has no history where it is asked for its `grad_fn`, and how large its
    storage is; and breaks the graph where it is asked which tensor it is a view of."""
    gets = name_in(TensorVariable, "var_getattr", "tp_getattro_impl")
    with contextlib.ExitStack() as stack:
        for owner, name, change in (
            (TensorVariable, _HISTORY, _asked_for_history),
            (TensorVariable, gets, _asked_for_base),
            (UntypedStorageVariable, "call_method", _asked_for_size),
        ):
            if (ordinary := getattr(owner, name, None)) is not None:
                stack.enter_context(replaced(owner, name, change(ordinary)))
        yield


def _asked_for_history(ordinary: Callable[..., Any]) -> Callable[..., Any]:
    def asked(variable: Any, tx: Any) -> Any:
        result = ordinary(variable, tx)
        if variable.source is not None:
            install_guard(AttrSource(variable.source, "grad_fn").make_guard(GuardBuilder.CONSTANT_MATCH))
        return result

    return asked


def _asked_for_base(ordinary: Callable[..., Any]) -> Callable[..., Any]:
    def asked(variable: Any, tx: Any, name: str) -> Any:
        if name == _BASE and variable.source is not None:
            raise Unsupported("the tensor that another is a view of")
        return ordinary(variable, tx, name)

    return asked


def _asked_for_size(ordinary: Callable[..., Any]) -> Callable[..., Any]:
    def asked(variable: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = ordinary(variable, tx, name, args, kwargs)
        source = variable.from_tensor.source
        if name == "size" and source is not None and result.is_python_constant():
            install_guard(source.make_guard(partial(_BYTES, count=result.as_python_constant())))
        return result

    return asked


def _BYTES(builder: Any, guard: Any, count: int) -> None:
    code = f"{builder.arg_ref(guard)}.untyped_storage().size() == {count}"
    if code in builder.already_added_code_parts:
        return
    builder.already_added_code_parts.add(code)
    builder.add_python_lambda_leaf_guard_to_root([code], get_verbose_code_parts([code], guard), get_closure_vars())
