"""Functions of torch that are replaced for a while, with Dynamo's compile lock held where it is not said otherwise.

Where a replacement corrects what Dynamo or AOTAutograd make of a call, `capture/graphs/eager_semantics.py` has the
whole list.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from burnish.torch_private.aot import tag_activation_checkpoint
from burnish.torch_private.dynamo import OutputGraph, Unsupported, convert_frame
from burnish.torch_private.dynamo import guards as dynamo_guards
from burnish.torch_private.guards import AttrSource, GuardBuilder, install_guard
from burnish.torch_private.operators import DispatchKey, pytree
from burnish.torch_private.variables import (
    AutogradFunctionContextVariable,
    CheckpointHigherOrderVariable,
    ConstantVariable,
    ConstDictVariable,
    DequeVariable,
    LazyConstantVariable,
    ListVariable,
    SideEffects,
    TensorVariable,
    TupleVariable,
    UnspecializedNNModuleVariable,
    UserFunctionVariable,
    ValueMutationNew,
    VariableBuilder,
    nn_module,
)

_INHERITED = object()  # in place of a function that a class has from another


@contextlib.contextmanager
def _replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    ordinary = vars(owner).get(name, _INHERITED)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if ordinary is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, ordinary)


_NUMBERS_OUT = "remove_tensorify_specialized_graphargs"


@contextlib.contextmanager
def keeping_writes_to_numbers() -> Iterator[None]:
    """Dynamo takes out of a graph the inputs that are numbers to it and that nobody reads, and by mistake also every
    call that returns such an input: those that write to it."""
    ordinary = getattr(OutputGraph, _NUMBERS_OUT, None)
    if ordinary is None:
        yield
        return

    def of_inputs_only(output: OutputGraph) -> None:
        made = [node for node in output.graph.nodes if node.op != "placeholder" and "example_value" in node.meta]
        values = [node.meta.pop("example_value") for node in made]
        try:
            ordinary(output)
        finally:
            for node, value in zip(made, values, strict=True):
                node.meta["example_value"] = value

    with _replaced(OutputGraph, _NUMBERS_OUT, of_inputs_only):
        yield


_AFTER_A_WRITE = "_sync_if_inplace_mutation"


@contextlib.contextmanager
def noticing_other_shapes() -> Iterator[None]:
    """Dynamo asks what a tensor has become only after operations in place that take another: `unsqueeze_` is none."""
    ordinary = getattr(TensorVariable, _AFTER_A_WRITE, None)
    if ordinary is None:
        yield
        return

    def after_any(variable: TensorVariable, tx: Any, before: int | None, has_tensor_argument: bool) -> None:
        ordinary(variable, tx, before, True)

    with _replaced(TensorVariable, _AFTER_A_WRITE, after_any):
        yield


class MakesItsWeights(BaseException):
    """Leaves the trace of a frame that calls a lazy module for the first time: this call is eager's. Not an Exception,
    which Dynamo would take for a failure."""


_LAZY = "initialize_lazy_module"


@contextlib.contextmanager
def leaving_lazy_modules() -> Iterator[None]:
    """While open, tracing a lazy module that has no weights raises MakesItsWeights."""
    ordinary = getattr(nn_module, _LAZY, None)
    if ordinary is None:
        yield
        return

    def refuse(tx: Any, module: torch.nn.Module, *call: Any) -> None:
        if hasattr(module, "_initialize_hook"):
            raise MakesItsWeights
        ordinary(tx, module, *call)

    with _replaced(nn_module, _LAZY, refuse):
        yield


# Methods of a custom autograd function's context that decide what its backward is given: None, or zeros; and whether an
# input has another history after the call. Dynamo traces some of them as if they did nothing.
_OF_CONTEXTS = ("set_materialize_grads", "mark_dirty")
_FIELD = "materialize_grads"


@contextlib.contextmanager
def leaving_contexts() -> Iterator[None]:
    """While open, Dynamo breaks the graph at an autograd function that asks this of its context: eager calls it."""
    context = AutogradFunctionContextVariable
    ask, call = (getattr(context, name, None) for name in ("var_getattr", "call_method"))
    if ask is None or call is None:
        yield
        return

    def asked(variable: Any, tx: Any, name: str) -> Any:
        # It raises at a method whose name it does not know, as it does everywhere.
        return call(variable, tx, f"{name} of", [], {}) if name in _OF_CONTEXTS else ask(variable, tx, name)

    def called(variable: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        sets = name == "__setattr__" and bool(args) and args[0].as_python_constant() == _FIELD
        return call(variable, tx, f"setting {_FIELD} of" if sets else name, args, kwargs)

    with _replaced(context, "var_getattr", asked), _replaced(context, "call_method", called):
        yield


_CALLS_REGION = "_call_function"
_UNRECORDED = "a reentrant checkpoint none of whose arguments requires a gradient: eager records nothing in it"


@contextlib.contextmanager
def leaving_unrecorded_checkpoints() -> Iterator[None]:
    """While open, Dynamo breaks the graph at a checkpoint that is reentrant in eager and whose results would require
    gradients here, and not there. Dynamo takes both kinds of checkpoint for the one that is not."""
    call = getattr(CheckpointHigherOrderVariable, _CALLS_REGION, None)
    if call is None:
        yield
        return

    def called(variable: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        is_reentrant = "use_reentrant" not in kwargs or kwargs["use_reentrant"].as_python_constant() in (None, True)
        is_recorded = any(map(_requires_grad, args[1:]))  # of what is in a list or a dictionary, eager knows nothing
        result = call(variable, tx, args, kwargs)
        if is_reentrant and not is_recorded and torch.is_grad_enabled() and _makes_gradients(tx.output.graph):
            raise Unsupported(_UNRECORDED)
        return result

    with _replaced(CheckpointHigherOrderVariable, _CALLS_REGION, called):
        yield


def _requires_grad(variable: Any) -> bool:
    tensor = variable.realize()
    if not isinstance(tensor, TensorVariable):
        return False
    value = tensor.as_proxy().node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.requires_grad


def _makes_gradients(graph: torch.fx.Graph) -> bool:
    """Whether what the last of a graph's regions returns requires a gradient."""
    regions = graph.find_nodes(op="call_function", target=tag_activation_checkpoint)
    values = pytree.tree_leaves(regions[-1].meta.get("example_value")) if regions else [None]
    return any(value is None or (isinstance(value, torch.Tensor) and value.requires_grad) for value in values)


_CHANGES = "has_new_items"


@contextlib.contextmanager
def noticing_order() -> Iterator[None]:
    """Dynamo writes to a dictionary what is new in it, and misses that keys have changed places (`move_to_end`)."""
    ordinary = getattr(ConstDictVariable, _CHANGES, None)
    if ordinary is None:
        yield
        return

    def changes(variable: Any) -> bool:
        before, now = (tuple(map(_id_of_key, keys)) for keys in (variable.original_items, variable.items))
        if now[: len(before)] != before:
            variable.should_reconstruct_all = True
        return bool(ordinary(variable))

    with _replaced(ConstDictVariable, _CHANGES, changes):
        yield


def _id_of_key(key: Any) -> int:
    return id(getattr(key, "vt", key))


_CALLS_METHOD = "call_method"


@contextlib.contextmanager
def extending_lists() -> Iterator[None]:
    """While open, Dynamo takes `x.__iadd__(y)` of a list, written so, for what `x += y` is: it makes another list."""
    ordinary = getattr(ListVariable, _CALLS_METHOD, None)
    if ordinary is None:
        yield
        return

    def called(variable: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if name != "__iadd__" or not variable.is_mutable():
            return ordinary(variable, tx, name, args, kwargs)
        variable.call_method(tx, "extend", args, kwargs)
        return variable

    with _replaced(ListVariable, _CALLS_METHOD, called):
        yield


_CALLS = "call_function"


@contextlib.contextmanager
def noticing_environment(notice: Callable[[str], None]) -> Iterator[None]:
    """While open, `notice` is called with the name of each environment variable that a traced function asks for: all
    ways to one of them (`os.environ`, `os.getenv`, in the standard library, too) encode its name by one function."""
    ordinary = getattr(UserFunctionVariable, _CALLS, None)
    encode = getattr(os.environ, "encodekey", None)
    if ordinary is None or encode is None:
        yield
        return

    def called(variable: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if variable.fn is encode and args[-1].is_python_constant():
            notice(args[-1].as_python_constant())
        return ordinary(variable, tx, args, kwargs)

    with _replaced(UserFunctionVariable, _CALLS, called):
        yield


_BUILDS, _REPEATS, _WRITES_BACK = "wrap_listlike", "sq_repeat_impl", "codegen_update_mutated"


@contextlib.contextmanager
def bounding_deques() -> Iterator[None]:
    """While open, Dynamo knows how long a deque may become (`maxlen`) that was there before, and writes it back as it
    does others: in the order that its elements have in the end, it needs no other."""
    build, write_back = getattr(VariableBuilder, _BUILDS, None), getattr(SideEffects, _WRITES_BACK, None)
    if build is None or write_back is None or DequeVariable is None:
        yield
        return
    make, call = DequeVariable.__init__, DequeVariable.call_method
    repeat: Any = getattr(DequeVariable, _REPEATS, None)

    def built(builder: Any, value: Any) -> Any:
        variable = build(builder, value)
        if type(value) is deque:
            install_guard(AttrSource(builder.source, "maxlen").make_guard(GuardBuilder.CONSTANT_MATCH))
            variable.maxlen = ConstantVariable.create(value.maxlen)
        return variable

    def made(variable: Any, *args: Any, **kwargs: Any) -> None:
        make(variable, *args, **kwargs)
        if _bound(variable) == 0:
            variable.items.clear()

    def called(variable: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if _bound(variable) == 0:
            raise Unsupported("a deque that holds nothing (maxlen=0)")
        return call(variable, tx, name, args, kwargs)

    def changed(variable: Any, items: list[Any], **kwargs: Any) -> Any:
        return type(variable)(items, maxlen=variable.maxlen, **kwargs)

    def repeated(variable: Any, tx: Any, count: Any) -> Any:
        return variable.modified(repeat(variable, tx, count).items, mutation_type=ValueMutationNew())

    def written_back(effects: Any, *args: Any, **kwargs: Any) -> None:
        bounded = [(each, each.maxlen) for each in effects.id_to_variable.values() if _is_bounded_and_changed(each)]
        for each, _ in bounded:
            each.maxlen = ConstantVariable.create(None)
        try:
            write_back(effects, *args, **kwargs)
        finally:
            for each, maxlen in bounded:
                each.maxlen = maxlen

    with (
        contextlib.nullcontext() if repeat is None else _replaced(DequeVariable, _REPEATS, repeated),
        _replaced(VariableBuilder, _BUILDS, built),
        _replaced(DequeVariable, "__init__", made),
        _replaced(DequeVariable, "call_method", called),
        _replaced(DequeVariable, "modified", changed),  # a copy of it
        _replaced(SideEffects, _WRITES_BACK, written_back),
    ):
        yield


def _bound(variable: Any) -> Any:
    return variable.maxlen.as_python_constant()


def _is_bounded_and_changed(variable: Any) -> bool:
    if not isinstance(variable, DequeVariable):
        return False
    return getattr(variable.mutation_type, "is_modified", False) and _bound(variable) is not None


_CORRECTIONS = (
    keeping_writes_to_numbers,
    noticing_other_shapes,
    leaving_contexts,
    leaving_lazy_modules,
    leaving_unrecorded_checkpoints,
    noticing_order,
    bounding_deques,
    extending_lists,
)


@contextlib.contextmanager
def tracing_as_eager_runs() -> Iterator[None]:
    """All that is replaced so that what Dynamo makes of a function does what the function does."""
    with contextlib.ExitStack() as stack:
        for correction in _CORRECTIONS:
            stack.enter_context(correction())
        yield


# Two whose gradients at NaN are not those of their pieces, and one whose pieces read targets behind the end of a row.
_OF_PIECES = (
    torch.ops.aten.hardshrink.default,
    torch.ops.aten.softshrink.default,
    torch.ops.aten.multilabel_margin_loss_forward.default,
)


@contextlib.contextmanager
def own_derivatives() -> Iterator[None]:
    """While open, autograd differentiates such operations as in eager."""
    with contextlib.ExitStack() as stack:
        for op in _OF_PIECES:
            stack.enter_context(_with_kernel(op, DispatchKey.Autograd, None))
        yield


@contextlib.contextmanager
def _with_kernel(op: Any, key: DispatchKey, kernel: Callable[..., Any] | None) -> Iterator[None]:
    """While open, this Python kernel of an operation, or none."""
    ordinary = op.py_kernels.pop(key, None)
    if kernel is not None:
        op.py_kernels[key] = kernel
    op._dispatch_cache.clear()
    try:
        yield
    finally:
        op.py_kernels.pop(key, None)
        if ordinary is not None:
            op.py_kernels[key] = ordinary
        op._dispatch_cache.clear()


_ONE_HOT = torch.ops.aten.one_hot.default


def checking_classes() -> contextlib.AbstractContextManager[None]:
    """While open, `one_hot` is traced with its checks of values, which torch before 2.13 leaves out."""
    if DispatchKey.CompositeImplicitAutograd in _ONE_HOT.py_kernels:
        return contextlib.nullcontext()
    return _with_kernel(_ONE_HOT, DispatchKey.CompositeImplicitAutograd, _one_hot)


def _one_hot(classes: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """As torch 2.13 takes it apart. Without a number of classes its size depends on values: no graph has it."""
    if num_classes > 0 and classes.dtype is torch.int64:
        torch.ops.aten._assert_async.msg((classes >= 0).all(), "Class values must be non-negative.")
        torch.ops.aten._assert_async.msg(
            (classes < num_classes).all(), "Class values must be smaller than num_classes."
        )
    made: torch.Tensor = _ONE_HOT._op_dk(DispatchKey.CompositeImplicitAutograd, classes, num_classes)
    return made


def making_guards_with(manager: type[Any]) -> contextlib.AbstractContextManager[None]:
    """The class of which Dynamo makes the guards of a frame."""
    return _replaced(convert_frame, "CheckFunctionManager", manager)


def writing_guards_with(change: Callable[..., Callable[..., str]]) -> contextlib.AbstractContextManager[None]:
    """How a guard is written as text, beside what it checks. `change` is given the ordinary way."""
    return _replaced(dynamo_guards, "get_verbose_code_part", change(dynamo_guards.get_verbose_code_part))


def calling_modules_with(call: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """What Dynamo does where the function that it traces calls a module."""
    return _replaced(UnspecializedNNModuleVariable, "call_function", call)


@contextlib.contextmanager
def building_constants_with(create: Callable[..., Any], build: Callable[..., Any], items: property) -> Iterator[None]:
    """How Dynamo makes a variable of a constant, and of any value, and how it reads what a list holds."""
    with (
        _replaced(LazyConstantVariable, "create", staticmethod(create)),
        _replaced(VariableBuilder, "__call__", build),
    ):
        for held in (ListVariable, TupleVariable):
            setattr(held, "items", items)  # noqa: B010
        try:
            yield
        finally:
            for held in (ListVariable, TupleVariable):
                delattr(held, "items")


@contextlib.contextmanager
def noticing_functions(notice: Callable[[type[Any]], None]) -> Iterator[None]:
    """`notice` is called with each class of AOTAutograd's that derives from torch.autograd.Function."""
    ordinary = torch.autograd.Function.__dict__.get("__init_subclass__")

    def noticed(cls: type[Any], **keywords: Any) -> None:
        super(torch.autograd.Function, cls).__init_subclass__(**keywords)
        if cls.__module__.startswith("torch._functorch"):
            notice(cls)

    torch.autograd.Function.__init_subclass__ = classmethod(noticed)  # type: ignore[assignment]
    try:
        yield
    finally:
        if ordinary is None:
            del torch.autograd.Function.__init_subclass__
        else:
            torch.autograd.Function.__init_subclass__ = ordinary  # type: ignore[method-assign]
