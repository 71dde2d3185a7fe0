"""What `shapes=` asks for, as data: parsed and checked once, when `burnish.compile` is called."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from burnish.errors import BadShapes

Kind = Literal["static", "dynamic", "buckets", "auto"]
WORDS = ("static", "dynamic", "pad", "auto")
DIMENSIONS: Mapping[str, int] = {"batch": 0, "sequence": 1, "height": 2, "width": 3}
_SETTINGS = ("strategy", "fills", "variants", "after", "mask")
VARIANTS, AFTER = 8, 64
Fill = int | float | bool


@dataclass(frozen=True)
class Axis:
    """A dimension of the call's tensors whose size varies: dimension `dim` of every tensor that has it, or of one
    argument. `sizes` are the buckets' boundaries; None: they are learnt."""

    name: str
    dim: int
    argument: str | None = None
    sizes: tuple[int, ...] | None = None
    most: int | None = None  # buckets of this dimension, if they are learnt

    def is_of(self, argument: str, dims: int) -> bool:
        """Whether an argument with so many dimensions has this one."""
        if self.argument is not None:
            return self.argument == argument and self.dim < dims
        return self.dim < dims and (self.dim < 2 or dims == 4)

    def __str__(self) -> str:
        return f"{self.name}={'auto' if self.sizes is None else list(self.sizes)}"


@dataclass(frozen=True)
class Strategy:
    """`variants` is the cap on compiled sizes, `after` the number of calls from which learnt buckets are planned.
    `mask` is the argument that gets a mask of ones if a call has none."""

    kind: Kind
    axes: tuple[Axis, ...] = ()
    fills: Mapping[str, Fill] = field(default_factory=dict)  # argument -> the value that padding has
    variants: int = VARIANTS
    after: int = AFTER
    mask: str | None = None

    @property
    def learns(self) -> bool:
        return self.kind == "auto" or any(axis.sizes is None for axis in self.axes)

    def __str__(self) -> str:
        axes = " ".join(map(str, self.axes))
        return f"{self.kind}{' ' + axes if axes and self.kind != 'auto' else ''}, at most {self.variants} variants"


def parse(shapes: object) -> Strategy | None:
    """Raises BadShapes, which says what to write instead."""
    if shapes is None or isinstance(shapes, Strategy):
        return shapes
    if isinstance(shapes, str):
        return _of_word(shapes, {}, VARIANTS, AFTER)
    if not isinstance(shapes, Mapping):
        raise BadShapes(shapes, f"it must be one of {', '.join(map(repr, WORDS))}, or a dict of dimensions")
    given = dict(shapes)
    fills = _fills(given.pop("fills", {}))
    variants = _count("variants", given.pop("variants", VARIANTS))
    after = _count("after", given.pop("after", AFTER))
    mask = given.pop("mask", None)
    if mask is not None and not isinstance(mask, str):
        raise BadShapes(mask, "mask is the name of an argument, such as 'attention_mask'")
    word = given.pop("strategy", None)
    axes = tuple(axis for name, value in given.items() for axis in _axes(name, value))
    if not axes:
        if word is None:
            raise BadShapes(shapes, "it names no dimension")
        return replace(_of_word(word, fills, variants, after), mask=mask)
    if word not in (None, "pad", "buckets", "auto"):
        raise BadShapes(shapes, f"the strategy {word!r} has no buckets; leave out {', '.join(map(str, given))}")
    fixed = [len(axis.sizes) for axis in axes if axis.sizes is not None]
    cells = 1
    for count in fixed:
        cells *= count
    if cells > variants:
        if "variants" in shapes:
            raise BadShapes(shapes, f"its buckets make {cells} variants, and variants={variants}")
        variants = cells
    return Strategy("buckets", axes, fills, variants, after, mask)


def axes_named(names: Sequence[str]) -> tuple[Axis, ...]:
    """The axes of a trace: dimensions by name, or ARGUMENT.DIM."""
    found = []
    for name in names:
        argument, _, dim = name.rpartition(".")
        if name in DIMENSIONS:
            found.append(Axis(name, DIMENSIONS[name]))
        elif argument and dim.isdigit():
            found.append(Axis(name, int(dim), argument))
        else:
            reason = f"dimensions are {', '.join(DIMENSIONS)}, or ARGUMENT.DIM, such as input_ids.1"
            raise BadShapes(name, reason, _near(name, tuple(DIMENSIONS)))
    return tuple(found)


def _of_word(word: object, fills: Mapping[str, Fill], variants: int, after: int) -> Strategy:
    if word == "static" or word == "dynamic":
        return Strategy(word, (), fills, variants, after)
    learnt = tuple(Axis(name, dim) for name, dim in DIMENSIONS.items())
    if word == "pad":
        one = tuple(Axis(name, dim, most=1) for name, dim in DIMENSIONS.items())
        return Strategy("buckets", one, fills, variants, after)
    if word == "auto":
        return Strategy("auto", learnt, fills, variants, after)
    raise BadShapes(word, f"strategies are {', '.join(map(repr, WORDS))}", _near(str(word), WORDS))


def _axes(name: object, value: object) -> list[Axis]:
    if not isinstance(name, str) or not name:
        raise BadShapes(name, "a dimension or an argument is named by text")
    if name in DIMENSIONS:
        return [_axis(name, DIMENSIONS[name], None, value)]
    if isinstance(value, Mapping):
        if not value:
            raise BadShapes(name, "it names no dimension of that argument")
        return [_axis(f"{name}.{dim}", _dim(name, dim), name, sizes) for dim, sizes in value.items()]
    words = (*DIMENSIONS, *_SETTINGS)
    reason = f"dimensions are {', '.join(DIMENSIONS)}; for one argument's: {{{name!r}: {{1: [64, 128]}}}}"
    raise BadShapes(name, reason, _near(name, words))


def _axis(name: str, dim: int, argument: str | None, value: object) -> Axis:
    if value == "auto":
        return Axis(name, dim, argument)
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, (list, tuple)) or not value:
        raise BadShapes(value, f"{name} takes a size, a list of sizes, or 'auto'")
    for size in value:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise BadShapes(size, f"a size of {name} is a whole number of at least 1")
    return Axis(name, dim, argument, tuple(sorted(set(value))))


def _dim(name: str, dim: object) -> int:
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 0:
        raise BadShapes(dim, f"a dimension of {name} is a whole number, counted from 0")
    return dim


def _fills(value: object) -> dict[str, Fill]:
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str) and isinstance(fill, (int, float)) for name, fill in value.items()
    ):
        raise BadShapes(value, "fills is a dict of arguments and numbers, such as {'labels': -100}")
    return dict(value)


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadShapes(value, f"{name} is a whole number of at least 1")
    return value


def _near(word: str, valid: tuple[str, ...]) -> str | None:
    close = difflib.get_close_matches(word.lower(), valid, n=1, cutoff=0.5)
    return close[0] if close else None
