"""Whether a call only returns its tensors. A call that also stores them (`self.last = x`, a hook that collects results)
would leave padded ones behind, which nobody slices.

Dynamo's code of a frame loads the inputs, calls the graph, rebuilds the results and repeats side effects. It has next
to no branches, so one walk over its instructions tells what each holds. What is not known here is refused.
"""

from __future__ import annotations

import collections
import dis
import sys
import types
from dataclasses import dataclass
from typing import Any, Literal

import torch

from burnish.capture.entry.unguarded import GRAPH, SET_ATTRIBUTE

# Of the call: an argument, a result of the graph or made of them. New: made here. Class: that of something new.
Kind = Literal["null", "outside", "of the call", "new", "class"]
_NAMED = "_make"
_STORES = "it stores tensors in an object: they would stay padded"
_SIZES = frozenset({"call_size", "call_stride", "call_storage_offset", "_as_tensor_fullprec"})
_MAKERS = frozenset({"__new__", _NAMED, "OrderedDict", "dict", "list", "tuple", "set", "frozenset", "Size"})
_READERS = frozenset({"items", "keys", "values"})
_WRITERS = frozenset({"clear", "__setitem__", "append", "extend", "update"})
_NOTHING = frozenset(
    {"RESUME", "NOP", "CACHE", "COPY_FREE_VARS", "MAKE_CELL", "PRECALL", "KW_NAMES", "EXTENDED_ARG", "END_FOR"}
)
_BUILDS = frozenset({"BUILD_LIST", "BUILD_TUPLE", "BUILD_SET", "BUILD_STRING"})
_ADDS = frozenset({"LIST_EXTEND", "LIST_APPEND", "SET_ADD", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE"})
_NULL_IS_LAST = sys.version_info >= (3, 13)


@dataclass(frozen=True)
class _Value:
    kind: Kind
    name: str = ""  # of what was loaded last
    owner: Kind = "outside"  # what it is an attribute of

    @property
    def is_kept_apart(self) -> bool:
        return self.kind in ("of the call", "new")


class _Escapes(Exception):
    """Why."""


_OURS, _NEW, _OUTSIDE, _NULL = _Value("of the call"), _Value("new"), _Value("outside"), _Value("null")


def escape(code: types.CodeType) -> str:
    """Why tensors may stay behind when Dynamo's code for a frame has run; empty if none does."""
    try:
        _Walk(code).run()
    except _Escapes as why:
        return str(why)
    except IndexError:
        return "Dynamo's code of it is not understood: it may store tensors"
    return ""


def _makes_a_named_tuple(made: object) -> bool:
    """`_make` of a named tuple as Python defines it, or the class of those that torch returns, such as max's."""
    if isinstance(made, type):
        return getattr(torch.return_types, made.__name__, None) is made
    code = getattr(getattr(made, "__func__", None), "__code__", None)
    return getattr(made, "__name__", "") == _NAMED and getattr(code, "co_filename", "") == collections.__file__


class _Walk:
    def __init__(self, code: types.CodeType) -> None:
        self._code = code
        self._stack: list[_Value] = []
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args, **kwargs
        self._locals = dict.fromkeys(code.co_varnames[:count], _OURS)

    def run(self) -> None:
        for each in dis.get_instructions(self._code):
            if each.opname not in _NOTHING:
                self._step(each)
            if each.opname.startswith("RETURN"):
                return
        raise IndexError

    def _step(self, each: dis.Instruction) -> None:
        name, arg, stack = each.opname, each.arg or 0, self._stack
        if name.startswith(("LOAD_", "STORE_FAST", "DELETE_FAST")):
            self._moves(name, arg, each.argval)
        elif name == "PUSH_NULL":
            stack.append(_NULL)
        elif name in ("POP_TOP", "GET_ITER", "JUMP_BACKWARD"):
            self._loops(name)
        elif name == "COPY":
            stack.append(stack[-arg])
        elif name == "SWAP":
            stack[-1], stack[-arg] = stack[-arg], stack[-1]
        elif name in _BUILDS or name in ("BUILD_MAP", "BUILD_CONST_KEY_MAP", "LIST_TO_TUPLE"):
            more = {"BUILD_MAP": 2 * arg, "BUILD_CONST_KEY_MAP": arg + 1, "LIST_TO_TUPLE": 1}
            self._pop(more.get(name, arg))
            stack.append(_NEW)
        elif name in _ADDS or name == "MAP_ADD":
            self._pop(2 if name == "MAP_ADD" else 1)
            if stack[-arg].kind != "new":
                raise _Escapes(_STORES)
        elif name == "BINARY_SUBSCR":
            held, index = self._pop(2)
            stack.append(_OURS if held.is_kept_apart or index.is_kept_apart else held)
        elif name == "UNPACK_SEQUENCE":
            (held,) = self._pop(1)
            stack += [_OURS if held.is_kept_apart else held] * arg
        elif name == "FOR_ITER":
            stack.append(_OURS if stack[-1].is_kept_apart else stack[-1])
        elif name in ("CALL", "CALL_KW"):
            if name == "CALL_KW":
                self._pop(1)
            stack.append(self._call(self._pop(arg)))
        elif name in ("RETURN_VALUE", "RETURN_CONST"):
            self._pop(1 if name == "RETURN_VALUE" else 0)
            if stack:
                raise IndexError
        elif name.startswith(("STORE_", "DELETE_")):
            raise _Escapes(_STORES)
        else:
            raise _Escapes(f"Dynamo's code of it has an instruction {name}: it may store tensors")

    def _loops(self, name: str) -> None:
        """After a loop its iterator is gone; newer Pythons remove it with an instruction of their own."""
        if name == "POP_TOP" or (name == "JUMP_BACKWARD" and not _NULL_IS_LAST):
            self._pop(1)

    def _pop(self, count: int) -> list[_Value]:
        if count > len(self._stack):
            raise IndexError
        taken = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return taken

    def _moves(self, name: str, arg: int, argval: Any) -> None:
        stack = self._stack
        if name == "LOAD_CONST":
            stack.append(_Value("outside", _NAMED) if _makes_a_named_tuple(argval) else _OUTSIDE)
        elif name in ("LOAD_FAST", "LOAD_FAST_CHECK"):
            stack.append(self._locals.get(argval, _OURS))
        elif name in ("LOAD_DEREF", "LOAD_CLOSURE"):
            stack.append(_Value("outside", argval))
        elif name == "LOAD_GLOBAL":
            value = [_Value("outside", argval)]
            null = [_NULL] if arg & 1 else []
            stack += [*value, *null] if _NULL_IS_LAST else [*null, *value]
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            (held,) = self._pop(1)
            kind: Kind = "of the call" if held.is_kept_apart else held.kind
            stack.append(_Value(kind, argval, held.kind))
            if name == "LOAD_METHOD" or (sys.version_info >= (3, 12) and arg & 1):
                stack.append(held)
        elif name == "STORE_FAST":
            (self._locals[argval],) = self._pop(1)
        elif name == "DELETE_FAST":
            self._locals.pop(argval, None)
        else:
            raise _Escapes(f"Dynamo's code of it has an instruction {name}: it may store tensors")

    def _call(self, given: list[_Value]) -> _Value:
        first, second = self._pop(2)
        if _NULL_IS_LAST:
            called, bound = first, second
        else:
            called, bound = (second, first) if first.kind == "null" else (first, second)
        args = given if bound.kind == "null" else [bound, *given]
        name = called.name
        if name.startswith(GRAPH) or name in _SIZES:
            return _OURS
        if name == "type":
            return _Value("class")
        if name in _MAKERS:
            return _NEW
        if name in _READERS and called.owner == "new":
            return _OURS
        if name == SET_ATTRIBUTE:
            written, value = given[0], given[2]
            if written.kind == "new" or not value.is_kept_apart:
                return _OUTSIDE
        elif name in _WRITERS:
            written = given[0] if called.owner == "class" else _Value(called.owner)
            if written.kind == "new":
                return _OUTSIDE
        elif not any(each.is_kept_apart for each in args):
            return _OUTSIDE
        raise _Escapes(_STORES)
