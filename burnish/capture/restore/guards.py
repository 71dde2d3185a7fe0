"""Dynamo's guards in another process: stored as sources and kinds, rebuilt from the live values, and compared.

A guard is a `Source` and a kind of check; its expected value is read from the process in which it is made. So guards
rebuilt from the stored list accept the live values by construction. To check that these equal the traced values, the
text of the rebuilt guards is compared with the text of Dynamo's original guards. Addresses in the text are replaced by
the fingerprint of their class, function or module. A guard's origin in the user's code and the order of guards do not
count. torch's own serialisation of guards leaves the identity checks out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.multiprocessing.reductions import StorageWeakRef  # noqa: F401  (loaded before guards look at tensors)
from torch.utils.weak import TensorWeakRef

from burnish.capture.restore import NotWarm
from burnish.capture.restore.code_identity import Fingerprints
from burnish.torch_private.dynamo import GlobalStateGuard
from burnish.torch_private.guards import (
    ChainedSource,
    CheckFunctionManager,
    DuplicateInputs,
    Guard,
    GuardBuilder,
    GuardSource,
    GuardsSet,
    OutputGraphCommon,
    OutputGraphGuardsState,
    ShapeCodeParts,
    ShapeGuardsHelper,
    Source,
    StorageOverlap,
    get_closure_vars,
)
from burnish.torch_private.guards import device as default_device
from burnish.torch_private.guards import source as dynamo_sources
from burnish.torch_private.patches.identity import IDENTITY
from burnish.torch_private.patches.tracing import writing_guards_with

BUILTINS = "__builtins_dict___burnish"  # the name of the builtins in a stored frame's globals
_TYPE = re.compile(r"(___check_type_id\([^\n]*?), \d+\)")
_OBJECT = re.compile(r"(___check_obj_id\([^\n]*?), \d+\)[^\n]*")  # what it is, its mark says
# Marks the comment that Dynamo appends to a guard's text (spaces and the guard's origin). It is never displayed.
_COMMENT = "\u2063"
_COMMENTS = re.compile(f"#{_COMMENT}[^{_COMMENT}]*{_COMMENT}")
_HOOK = "_hooks["  # in the name of a module's hook
_DEPTH = re.compile(r"((?:\| )*)\+- ")  # of a line in a manager's text
_ANY_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}")
_BY_IDENTITY = {"ID_MATCH", "CLOSURE_MATCH", "FUNCTION_MATCH", "CLASS_MATCH", "MODULE_MATCH", "BUILTIN_MATCH"}
_UNSUPPORTED = ("DICT_VERSION", "WEAKREF_ALIVE", "NN_MODULE", "DATA_PTR_MATCH", "OPAQUE_OBJ_GUARD_FN_MATCH")


@dataclass(frozen=True)
class Live:
    """A placeholder in a guard's arguments for the guarded tensor."""


@dataclass(frozen=True)
class GuardSpec:
    source: Source
    kind: str  # a method of GuardBuilder, or IDENTITY
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class GuardList:
    specs: tuple[GuardSpec, ...]
    key_order: tuple[Source, ...]
    sizes: tuple[tuple[Source, tuple[int | None, ...], tuple[int | None, ...]], ...]  # of tensors, and strides
    shapes: tuple[str, ...]  # relations between symbolic sizes
    memory: tuple[Any, ...]  # which inputs share memory
    imports: tuple[tuple[str, str], ...]  # modules by the names under which guards and code find them


def source_classes() -> list[type[Any]]:
    """The classes in a GuardList, besides plain values."""
    found = [value for value in vars(dynamo_sources).values() if isinstance(value, type)]
    kept = [cls for cls in found if dataclasses.is_dataclass(cls) or issubclass(cls, enum.Enum)]
    return [*kept, GuardSource, DuplicateInputs, StorageOverlap, GuardList, GuardSpec, Live]


# -- writing down -------------------------------------------------------------------------------------------------


def written(graph: Any) -> GuardList:
    """The guards of Dynamo's output graph. Raises NotWarm."""
    if graph.torch_function_mode_stack or graph.functorch_layers:
        raise NotWarm("it was traced inside a mode of torch")
    specs: dict[str, GuardSpec] = {}  # Dynamo has some of them several times
    # comparing them one by one would compute each key many times
    for guard in sorted(graph.guards, key=Guard.sort_key):
        spec = _spec(guard)
        if _HOOK in _name(spec.source):  # it may be another one in the next process, or none
            raise NotWarm("it has hooks")
        specs.setdefault(f"{_name(spec.source)} {spec.kind} {spec.arguments} {spec.keywords}", spec)
    shapes = [guard.code_list or [] for guard in graph.guards if guard.create_fn_name() == "SHAPE_ENV"]
    sizes = graph.input_source_to_sizes_strides.items()
    return GuardList(
        tuple(specs.values()),
        tuple(sorted(graph.guard_on_key_order, key=repr)),
        tuple((source, _known(each["size"]), _known(each["stride"])) for source, each in sizes),
        tuple(part for parts in shapes for part in parts),
        tuple(graph.aotautograd_guards),
        tuple(graph.import_sources.items()),
    )


def _spec(guard: Guard) -> GuardSpec:
    function: Any = guard.create_fn
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    if isinstance(function, functools.partial):
        function, arguments, keywords = function.func, function.args, function.keywords
    kind = getattr(function, "__name__", "")
    if _kind(kind) is not function or kind in _UNSUPPORTED:
        raise NotWarm(f"a guard of the kind {kind or function}")
    shown = tuple((name, _argument(value)) for name, value in sorted(keywords.items()))
    return GuardSpec(guard.originating_source, kind, tuple(map(_argument, arguments)), shown)


def _kind(name: str) -> Any:
    return IDENTITY if name == IDENTITY.__name__ else getattr(GuardBuilder, name, None)


def _argument(value: Any) -> Any:
    return Live() if isinstance(value, TensorWeakRef) else value


def _known(dims: Iterable[Any]) -> tuple[int | None, ...]:
    return tuple(dim if type(dim) is int else None for dim in dims)


# -- making again -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GuardTexts:
    """The texts that are equal in two processes if their guards are equal."""

    text: str
    marks: tuple[tuple[str, str], ...]


def made(guards: GuardList, code: types.CodeType, scope: Mapping[str, Any], names: dict[str, Any]) -> tuple[Any, Any]:
    """The guards rebuilt over the live values (`scope` and the globals `names`), as Dynamo's manager and as a list."""
    _require_items(guards, scope, names)
    fresh = [_guard(spec, scope, names) for spec in guards.specs]
    live = GuardsSet()
    for guard in fresh:
        live.add(guard, collect_debug_stack=False)
    state = OutputGraphGuardsState(
        local_scope=dict(scope),
        global_scope=names,
        torch_function_mode_stack=[],
        guard_on_key_order=set(guards.key_order),
        input_source_to_sizes_strides={source: {"size": size, "stride": step} for source, size, step in guards.sizes},
        dual_level=0,
        functorch_layers=[],
        current_device=default_device.CURRENT_DEVICE,
        global_state_guard=GlobalStateGuard(),
        _guards=live,
        _aotautograd_guards=list(guards.memory),
        name_of_builtins_dict_key_in_fglobals=BUILTINS,
        skip_guards_check=True,  # torch's own check also measures its time
    )
    helper = ShapeGuardsHelper(list(guards.shapes))
    shapes = ShapeCodeParts(helper, helper, None, True, [])
    with marking_comments():
        manager = CheckFunctionManager(code, OutputGraphCommon(state), shape_code_parts=shapes).guard_manager
    if not manager.check(dict(scope)):
        raise NotWarm(without_marks(f"its guards refuse this call: {manager.check_verbose(dict(scope))}"))
    return manager, fresh


def _require_items(guards: GuardList, scope: Mapping[str, Any], names: Mapping[str, Any]) -> None:
    """Looking for what a guard is on would put it into a dictionary that makes what it has not (`defaultdict`)."""
    places, known = {**get_closure_vars(), "L": scope, "G": names}, dict[Any, Any]()
    seen: set[Source] = set()
    for source in (*guards.key_order, *(spec.source for spec in guards.specs)):
        path: list[Any] = []
        while source not in seen and isinstance(source, ChainedSource):
            seen.add(source)
            path.append(source)
            source = source.base
        for each in filter(_is_item, reversed(path)):
            held = each.base.get_value(places, {}, known)
            if isinstance(held, dict) and hasattr(type(held), "__missing__") and each.index not in held:
                raise NotWarm(f"{_name(each)} is not there")


def _is_item(source: Any) -> bool:
    return isinstance(getattr(source, "index", None), str | int) and isinstance(source, ChainedSource)


def _guard(spec: GuardSpec, scope: Mapping[str, Any], names: Mapping[str, Any]) -> Guard:
    function = _kind(spec.kind)
    if function is None or not spec.kind.isupper():
        raise NotWarm(f"a guard of the kind {spec.kind}")
    if spec.arguments or spec.keywords:
        look = lambda value: TensorWeakRef(_value(spec.source, scope, names)) if isinstance(value, Live) else value  # noqa: E731
        keywords = {name: look(value) for name, value in spec.keywords}
        function = functools.partial(function, *map(look, spec.arguments), **keywords)
    return Guard(spec.source, function)


def _name(source: Source) -> str:
    name = source.name
    return name() if callable(name) else name


def _value(source: Source, scope: Mapping[str, Any], names: Mapping[str, Any]) -> Any:
    places = {**get_closure_vars(), "L": scope, "G": names}
    return eval(_name(source), places)  # Dynamo's own accessor: the text is made of the source's parts


def fingerprints(
    manager: Any,
    guards: Iterable[Guard],
    scope: Mapping[str, Any],
    names: Mapping[str, Any],
    prints: Fingerprints,
    key_order: Iterable[Source],
    builtins: str = BUILTINS,
) -> GuardTexts:
    """`builtins` is the name of the builtins in them. A dictionary whose keys are guarded in their order (`key_order`)
    is also guarded by how many there are, which no text says. Raises NotWarm for guards that cannot be compared."""

    def renamed(text: str) -> str:
        return text.replace(builtins, BUILTINS) if builtins and builtins != BUILTINS else text

    text = _in_order(renamed(_OBJECT.sub(r"\1, …)", _TYPE.sub(r"\1, …)", without_comments(str(manager))))))
    if "0x" in text and (found := _ANY_ADDRESS.search(text)):  # a search that takes long
        line = next(line for line in text.splitlines() if found[0] in line)
        raise NotWarm(f"a guard is on an address: {line.strip(' |+-')[:200]}")
    marks: dict[str, str] = {}
    places = {**get_closure_vars(), "L": scope, "G": names}
    same: dict[int, set[str]] = {}  # which names are of one object, where it is known by its content
    known: Any = {}  # sources already resolved: those of one module share most of their path
    for guard in guards:
        kinds = {guard.create_fn_name(), *(guard.guard_types or ())}
        source, name = guard.originating_source, _name(guard.originating_source)
        if not name:
            continue
        if kinds & _BY_IDENTITY:
            value = source.get_value(places, {}, known)
            marks[renamed(name)] = prints.of(value)
            same.setdefault(id(value), set()).add(renamed(name))
        elif "TYPE_MATCH" in kinds or guard.create_fn_name() == "TENSOR_MATCH":
            marks[renamed(f"type({name})")] = prints.of_class(type(source.get_value(places, {}, known)))
    for source in key_order:
        marks[renamed(f"len({_name(source)})")] = str(_count(source.get_value(places, {}, known)))
    for first, *others in map(sorted, same.values()):
        marks |= {name: f"{marks[name]}, {first}" for name in others}
    return GuardTexts(text, tuple(sorted(marks.items())))


def _count(keys: Any) -> int:
    """As Dynamo counts them: it calls no method of a class derived from `dict`."""
    return dict.__len__(keys) if isinstance(keys, dict) else len(keys)


@contextlib.contextmanager
def marking_comments() -> Iterator[None]:
    """Mark the comments while Dynamo makes guards, so that the text can be read without them."""

    def marking(ordinary: Callable[..., str]) -> Callable[..., str]:
        # The mark is inside the comment, because Dynamo evaluates the text to explain a failed guard.
        return lambda part, guard: f"{part}#{_COMMENT}{ordinary(part, guard)[len(part) :]}{_COMMENT}"

    with writing_guards_with(marking):
        yield


def without_comments(text: str) -> str:
    return _COMMENTS.sub("", text)


def without_marks(text: str) -> str:
    """The text without marks, as Dynamo prints it, for display."""
    return text.replace(f"#{_COMMENT}", "").replace(_COMMENT, "")


def _in_order(text: str) -> str:
    """A manager's text with the children of each node sorted: Dynamo sorts by the length of names, which differ between
    processes."""
    root: list[Any] = ["", []]
    path = [root]
    for line in text.splitlines():
        found = _DEPTH.match(line)
        if found is None:  # the rest of the line before
            path[-1][0] += f"\n{line}"
            continue
        node = [line, []]
        del path[len(found[1]) // 2 + 1 :]
        path[-1][1].append(node)
        path.append(node)

    def written(node: list[Any]) -> str:
        return "\n".join([node[0], *sorted(map(written, node[1]))])

    return written(root)


def difference(stored: GuardTexts, live: GuardTexts) -> str:
    """The first difference; "" if there is none."""
    now = dict(live.marks)
    for name, mark in stored.marks:
        if now.get(name) != mark:
            return f"{name} is not what it was ({_short(mark)}, now {_short(now.get(name, 'nothing'))})"
    if stored.text == live.text:
        return ""
    lines = zip(stored.text.splitlines(), live.text.splitlines(), strict=False)
    before, after = next((pair for pair in lines if pair[0] != pair[1]), ("", ""))
    return f"a guard differs: {before.strip(' |+-')[:200]}, now {after.strip(' |+-')[:200]}"


def _short(mark: str) -> str:
    return mark if len(mark) < 100 else f"{mark[:97]}..."
