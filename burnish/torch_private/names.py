"""A private name of torch as data, and how it is looked up."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from burnish.torch_private.versions import RELEASES

# The versions in which a name was looked for and found, unless its line has others: names that torch added or removed
# between two versions. A name that is in the last version is expected in all later ones.
SEEN = tuple(f"{major}.{minor}" for major, minor in RELEASES)
SINCE_2_12, SINCE_2_13, SINCE_2_14 = (SEEN[SEEN.index(first) :] for first in ("2.12", "2.13", "2.14"))
UNTIL_2_13 = SEEN[: SEEN.index("2.13") + 1]

# What is done without a name. These are shared by many; others are said where the name is listed.
EAGER = "calls run in eager"
NO_REGIONS = "each block of a model is traced by itself"
NO_WARM_START = "a second process compiles again"
NO_REGIONS_NOR_WARM_START = f"{NO_REGIONS}, and {NO_WARM_START}"
NO_BACKGROUND_PAUSES = "a compile in the background pauses between its stages only"
ORDER_OF_SETS = "sets that a compiled function makes have an order that Dynamo gives them"
ABSENCE_MISSED = "an attribute that is set after compiling, and was not there before, may not be noticed"
IDENTITY_MISSED = "two objects that become one after compiling may not be noticed"
FACTS_MISSED = "a change of how large a tensor's storage is may not be noticed"
LAZY_WEIGHTS = "a lazy module may draw its weights in another order"
CONTEXTS_TRACED = "a custom autograd function is traced as if each gradient were there and nothing dirty"
BACKWARDS_ALIKE = "a second derivative of a custom autograd function may be wrong where its backward sets grad mode"
FUNCTIONS_INLINED = "a custom autograd function of which nothing is recorded is traced as any other function"
CHECKPOINTS_ALIKE = "a reentrant checkpoint gives its weights gradients also where eager's gives none"
BOUNDS_MISSED = "a deque may become longer than its maxlen in a compiled function"
DRAWS_TRACED = "what Python's generators draw in a compiled function may be drawn again in each call"
NUMPY_AS_TORCH = "a compiled function takes a NumPy number for an array: types of results may differ"
WORDS_OF_ERRORS = "the text of an exception that a compiled function catches may not be Python's"
ENVIRONMENT_MISSED = "an environment variable that is set after compiling may not be noticed"
AS_TORCH_DOES = "torch does as it always does, which takes longer"


class PrivateNameMissing(AttributeError):
    """A name was used that the running torch does not have, or cannot load."""

    @property
    def failure(self) -> str:
        """What loading that part of torch raised, if that says nothing about the name; "" if the name is not there."""
        cause = self.__cause__
        if cause is None or isinstance(cause, AttributeError):
            return ""
        if isinstance(cause, ModuleNotFoundError) and str(cause.name).partition(".")[0] == "torch":
            return ""
        return f"{type(cause).__name__}: {cause}".removesuffix(": ")


class _NoOther:
    """Says that a missing name has nothing in its place."""


_NO_OTHER = _NoOther()


@dataclass(frozen=True)
class PrivateName:
    """`path` is where torch has it. An attribute of an object has the path of its class, and `on` makes an object to
    look at where the class itself has no such attribute. `instead` is used where torch has it not."""

    path: str
    used_for: str
    fallback: str = EAGER
    seen_in: tuple[str, ...] = SEEN
    on: Callable[[], object] | None = None
    instead: object = _NO_OTHER
    with_cuda_only: bool = False
    probed: bool = True  # False for what torch sets only on objects that take long to make

    @property
    def torch_name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def name(self) -> str:
        """What the rest of burnish imports it as."""
        return self.torch_name.lstrip("_")

    def __str__(self) -> str:
        return f"{self.path}: {self.used_for} (torch {', '.join(self.seen_in)}; without it, {self.fallback})"

    def found(self) -> Any:
        """Raises PrivateNameMissing."""
        try:
            return look_up(self.path) if self.on is None else getattr(self.on(), self.torch_name)
        except Exception as error:  # importing a part of torch may raise anything
            raise PrivateNameMissing(f"torch has no {self.path} (without it, {self.fallback})") from error

    def found_or_stand_in(self) -> Any:
        try:
            return self.found()
        except PrivateNameMissing as error:
            return _stand_in(self.name, str(error)) if self.instead is _NO_OTHER else self.instead


def look_up(path: str) -> Any:
    """What a dotted path leads to: modules are imported on the way, unless something of that name is there already."""
    first, *rest = path.split(".")
    found: Any = importlib.import_module(first)
    walked = first
    for part in rest:
        walked = f"{walked}.{part}"
        found = getattr(found, part) if hasattr(found, part) else importlib.import_module(walked)
    return found


def lookup_in(module: dict[str, Any], names: Iterable[PrivateName]) -> Callable[[str], Any]:
    """A module's `__getattr__`, by which its names are looked up when they are first asked for."""
    listed: Mapping[str, PrivateName] = {each.name: each for each in names}

    def __getattr__(name: str) -> Any:
        if name not in listed:
            raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}")
        found = module[name] = listed[name].found_or_stand_in()
        return found

    return __getattr__


class _Raising(type):
    """The class of stand-ins: whatever is done with one says what is missing."""

    message: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise PrivateNameMissing(cls.message)

    def __getattr__(cls, name: str) -> Any:
        raise PrivateNameMissing(cls.message)


def _stand_in(name: str, message: str) -> Any:
    """For a name that torch does not have. Nothing is an instance of it; it can be caught as an exception, and derived
    from, so that modules which do so can be imported. Used in any other way, it raises PrivateNameMissing."""
    return _Raising(name, (Exception,), {"message": message})
