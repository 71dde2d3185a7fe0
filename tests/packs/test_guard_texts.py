"""Dynamo's guards as text become data; what is not understood is not packed."""

from __future__ import annotations

import math
import types
from typing import Any

import pytest
import torch

from burnish.capture.restore.code_identity import Fingerprints
from burnish.packs.guard_texts import CannotRead, guards_of
from burnish.packs.guards import state_here, state_text
from burnish.packs.places import NotAPlace, PlaceTable, expression_of, text_of, values_at
from burnish.torch_private.dynamo import GlobalStateGuard

STATE = f"""
TREE_GUARD_MANAGER:
+- RootGuardManager
| +- DEFAULT_DEVICE: utils_device.CURRENT_DEVICE == None
| +- GLOBAL_STATE: ___check_global_state() against {GlobalStateGuard().__getstate__()}
| +- TORCH_FUNCTION_MODE_STACK: ___check_torch_function_mode_stack()
"""


def read(line: str, marks: dict[str, str] | None = None, left_out: tuple[str, ...] = ()) -> Any:
    return guards_of(f"{STATE}| | +- {line}", list((marks or {}).items()), left_out, inference=False)


def passes(line: str, marks: dict[str, str] | None = None, **values: Any) -> bool:
    look = read(line, marks).looked_at(values, lambda name: values[name])
    return next(look.mismatches(Fingerprints()), None) is None


@pytest.mark.parametrize(
    ("line", "good", "bad"),
    [
        ("EQUALS_MATCH: L['x'] == 3", 3, 4),
        ("EQUALS_MATCH: L['x'] == 3", 3, 3.0),
        ("EQUALS_MATCH: L['x'] == True", True, 1),
        ("EQUALS_MATCH: L['x'] == -inf", -math.inf, math.inf),
        ("EQUALS_MATCH: L['x'] == (1.0, inf)", (1.0, math.inf), (1, math.inf)),
        ("FLOAT_IS_NAN: (type(L['x']) is float and __math_isnan(L['x']))", math.nan, 1.0),
        ("EQUALS_MATCH: L['x'] == 'a (HINT: b)'", "a (HINT: b)", "a"),
        ("EQUALS_MATCH: L['x'] == torch.float32", torch.float32, torch.float64),
        ("EQUALS_MATCH: L['x'] == device(type='cpu')", torch.device("cpu"), torch.device("meta")),
        ("EQUALS_MATCH: L['x'].a == 0 (HINT: torch.compile considers integers)", types.SimpleNamespace(a=0), 1),
        ("NONE_MATCH: L['x'] is None", None, 0),
        ("LENGTH_CHECK: not L['x']", [], [1]),
        ("LENGTH_CHECK: len(L['x']) == 2", (1, 2), (1,)),
        ("DICT_CONTAINS: not ___dict_contains('k', L['x'])", {}, {"k": 1}),
        ("DICT_CONTAINS: ___dict_contains('k', L['x'])", {"k": 1}, {}),
        ("NO_HASATTR: not hasattr(L['x'], 'real')", "text", 1),
        ("LAMBDA_GUARD: L['x'][0] is L['x'][1]", [int, int], [int, str]),
        ("LAMBDA_GUARD: 2 <= L['x'].size()[0]", torch.zeros(2), torch.zeros(1)),
        ("LAMBDA_GUARD: L['x'].size()[0] % 4 == 0 and L['x'].size()[0] != 8", torch.zeros(4), torch.zeros(8)),
        ("NO_TENSOR_ALIASING: check_no_aliasing(L['x'][0], L['x'][1])", [torch.zeros(1), torch.zeros(1)], [int, int]),
        ("GuardManager: source=L['x'].a, accessed_by=A(a), type=<class 'int'>, tag_safe=(False, False)",
         types.SimpleNamespace(a=1), 1),
    ],
)  # fmt: skip
def test_guards_hold_as_dynamo_writes_them(line: str, good: Any, bad: Any) -> None:
    assert passes(line, x=good) and not passes(line, x=bad)


def test_tensors() -> None:
    x = torch.zeros(2, 3)
    line = (
        "TENSOR_MATCH: check_tensor(L['x'], Tensor, DispatchKeySet(CPU, BackendSelect, ADInplaceOrView, AutogradCPU), "
        "torch.float32, device=None, requires_grad=False, size=[None, 3], stride=[3, 1])"
    )
    marks = {"type(L['x'])": Fingerprints().of_class(torch.Tensor)}
    assert passes(line, marks, x=x) and passes(line, marks, x=torch.zeros(5, 3))
    others = (
        torch.zeros(2, 4),
        torch.zeros(3, 2).t(),
        x.double(),
        x.clone().requires_grad_(),
        torch.nn.Parameter(x),
        1,
    )
    assert not any(passes(line, marks, x=other) for other in others)


def test_objects_that_were_one_are_one() -> None:
    of = Fingerprints().of
    first, second = [1], [1]
    marks = {"L['a']": of(first), "L['b']": f"{of(first)}, L['a']"}
    line = "ID_MATCH: ___check_obj_id(L['b'], …), type=<class 'list'>"
    assert passes(line, marks, a=first, b=first) and not passes(line, marks, a=first, b=second)
    marks["L['b']"] = of(second)
    assert passes(line, marks, a=first, b=second) and not passes(line, marks, a=first, b=first)


def test_what_is_dynamos_is_left_out() -> None:
    line = "ID_MATCH: ___check_obj_id(G['__import_dynamo'].f, …), type=<class 'function'>"
    with pytest.raises(CannotRead):
        read(line)
    assert not read(line, {"G['__import_dynamo'].f": "x"}, left_out=("__import_dynamo",)).marks


@pytest.mark.parametrize(
    "line",
    [
        "NEW_GUARD: L['x'] == 3",
        "EQUALS_MATCH: L['x'] == <Enum.A: 1>",
        "EQUALS_MATCH: L['x'] == f()",
        "EQUALS_MATCH: L[f()] == 1",
        "ID_MATCH: ___check_obj_id(L['x'], …), type=<class 'object'>",
        "TYPE_MATCH: ___check_type_id(L['x'], …), type=<class 'object'>",
        "TENSOR_MATCH: check_tensor(L['x'], Tensor)",
        "LAMBDA_GUARD: f(L['x'])",
        "LAMBDA_GUARD: L['x'].size()[0] ** 2 == 4",
        "STORAGE_OVERLAPPING: check_overlapping(L['x'])",
        "DictGuardManager: source=L['x'], accessed_by=A, type=<class 'dict'>, tag_safe=(False, False)",
        "GuardManager: source=___from_numpy(L['x']), accessed_by=A, type=<class 'x'>, tag_safe=(False, False)",
        "DEFAULT_DEVICE: something == None",
    ],
)
def test_what_is_not_understood_is_refused(line: str) -> None:
    with pytest.raises(CannotRead):
        read(line)


def test_guards_without_the_state_are_refused() -> None:
    with pytest.raises(CannotRead, match="state"):
        guards_of("+- RootGuardManager", [], (), inference=False)


def test_the_number_of_threads_does_not_count() -> None:
    before = state_here()
    torch.set_num_threads(torch.get_num_threads() + 1)
    assert list(before.mismatches()) == []
    with torch.no_grad():
        assert [each.factor for each in before.mismatches()] == ["grad_mode"]
    assert "num_threads" not in state_text(str(GlobalStateGuard().__getstate__()))


@pytest.mark.parametrize(
    "text",
    [
        "L['target']._modules['encoder']._parameters['weight']",
        "G['m'].f.__defaults__[0]",
        "list(dict.keys(L['kwargs']))[1]",
        "type(L['x']).__mro__[1]",
        "dict(type(L['x']).__dict__)['forward']",
        "L['x'].size()[0]",
        "L['x'][-1]['k'][(1, 2)]",
    ],
)
def test_places_are_written_as_they_were_read(text: str) -> None:
    table = PlaceTable()
    number = table.index(text)
    assert expression_of(tuple(table.nodes), number) == text


@pytest.mark.parametrize(
    "text", ["print(1)", "L", "x", "L['x']()", "L['x'][y]", "[1][0]", "L['x'] + 1", "L['x'][1:2]", ""]
)
def test_other_texts_are_no_places(text: str) -> None:
    with pytest.raises(NotAPlace):
        PlaceTable().index(text)


def test_looking_puts_nothing_into_a_dictionary() -> None:
    from collections import defaultdict

    held: Any = defaultdict(list)
    table = PlaceTable()
    table.index("L['x']['k']")
    values_at(tuple(table.nodes), {"x": held}, lambda name: None, lambda number: True)
    assert not held


def test_places_for_people() -> None:
    table = PlaceTable()
    number = table.index("L['target']._modules['layer']._modules['0']._parameters['weight']")
    assert text_of(tuple(table.nodes), number) == "target.layer.0.weight"
