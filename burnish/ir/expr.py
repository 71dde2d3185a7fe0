"""Integer expressions: sizes and indices.

A `Dim` is a plain `int` where it is known and an `Expr` where it is not, so static graphs never pay for symbols.
An `Expr` is a polynomial over atoms in canonical order; an atom is a symbol, a floor division or a remainder.
Canonical form makes equality structural, which is what fusion relies on: two accesses are the same element exactly
when their offsets are the same expression.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

UNBOUNDED = -(1 << 63)  # below every number that can be passed


@dataclass(frozen=True, slots=True)
class Sym:
    """A named integer: an axis or a size, which is never negative, or a number of the caller's, which may be. `lo` is
    its least value, `UNBOUNDED` where nothing is known; `hi` its largest where one is known (axes: size - 1)."""

    name: str
    lo: int = 0
    hi: Dim | None = None

    def __lt__(self, other: object) -> bool:
        return _atom_key(self) < _atom_key(other)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Div:
    """floor(numerator / denominator), denominator > 0."""

    num: Expr
    den: Dim


@dataclass(frozen=True, slots=True)
class Mod:
    """numerator - denominator * floor(numerator / denominator), denominator > 0."""

    num: Expr
    den: Dim


@dataclass(frozen=True, slots=True)
class Extreme:
    """max (or min) of two expressions."""

    kind: str  # "max" | "min"
    a: Dim
    b: Dim


Atom = Sym | Div | Mod | Extreme
_KEPT = 1 << 15  # cached answers: equal blocks of a model repeat the same queries
Monomial = tuple[Atom, ...]


def _atom_key(atom: Atom) -> str:
    return atom.name if isinstance(atom, Sym) else repr(atom)


class Expr:
    """A polynomial: {monomial: coefficient}. Never constant: arithmetic that ends in a constant returns an int."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = terms
        self._hash = hash(frozenset(terms.items()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and self._hash == other._hash and self.terms == other.terms)

    def __add__(self, other: Dim) -> Dim:
        out = dict(self.terms)
        for mono, coef in terms_of(other).items():
            out[mono] = out.get(mono, 0) + coef
        return _normal(out)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + (-other)

    def __rsub__(self, other: Dim) -> Dim:
        return (-self) + other

    def __mul__(self, other: Dim) -> Dim:
        if isinstance(other, int):
            return 0 if other == 0 else Expr({m: c * other for m, c in self.terms.items()})
        out: dict[Monomial, int] = {}
        for m1, c1 in self.terms.items():
            for m2, c2 in other.terms.items():
                mono = tuple(sorted(m1 + m2, key=_atom_key))
                out[mono] = out.get(mono, 0) + c1 * c2
        return _normal(out)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)

    def __repr__(self) -> str:
        return render(self)


Dim = int | Expr


def terms_of(x: Dim) -> dict[Monomial, int]:
    if isinstance(x, Expr):
        return x.terms
    return {(): x} if x else {}


def sym(name: str, lo: int = 0, hi: Dim | None = None) -> Expr:
    return Expr({(Sym(name, lo, hi),): 1})


def of(atom: Atom) -> Expr:
    return Expr({(atom,): 1})


def _normal(terms: dict[Monomial, int]) -> Dim:
    terms = {m: c for m, c in terms.items() if c}
    if not terms:
        return 0
    if len(terms) > 1 and any(isinstance(a, Mod) for m in terms for a in m):
        terms = _rejoin(terms)
    if len(terms) == 1 and () in terms:
        return terms[()]
    return Expr(terms) if terms else 0


def _rejoin(terms: dict[Monomial, int]) -> dict[Monomial, int]:
    """(x // n) * n + x % n is x: a reshape that split an axis and one that joins it again cancel."""
    for mono, coef in terms.items():
        for i, atom in enumerate(mono):
            if not isinstance(atom, Mod):
                continue
            rest = mono[:i] + mono[i + 1 :]
            scale = Expr({rest: coef}) if rest else coef
            whole = floordiv(atom.num, atom.den)
            partner = terms_of(scale * atom.den * whole if isinstance(scale, Expr) else whole * atom.den * scale)
            if partner and all(terms.get(m) == c for m, c in partner.items()):
                out = {m: c for m, c in terms.items() if m != mono and m not in partner}
                joined = terms_of(atom.num * scale)
                for m, c in joined.items():
                    out[m] = out.get(m, 0) + c
                return terms_of(_normal(out))
    return terms


# --- bounds -----------------------------------------------------------------------------------------------------


def upper(x: Dim) -> Dim | None:
    """An upper bound of x with every axis at its extreme; None where none is known. May mention size symbols."""
    return _bound(x, True)


def lower(x: Dim) -> Dim | None:
    return _bound(x, False)


def _bound(x: Dim, high: bool) -> Dim | None:
    if isinstance(x, int):
        return x
    total: Dim = 0
    for mono, coef in x.terms.items():
        term: Dim = coef
        for atom in mono:
            b = _atom_bound(atom, high == (coef > 0))
            if b is None or (len(mono) > 1 and not _never_negative(atom)):
                return None  # the extremes of a product lie at its factors' extremes only while no sign changes
            term = term * b
        total = total + term
    return total


def _atom_bound(atom: Atom, high: bool) -> Dim | None:
    if isinstance(atom, Sym):
        if atom.hi is None:  # a size: stands for itself
            return of(atom)
        return atom.hi if high else atom.lo
    if isinstance(atom, Mod):
        if not high:
            return 0
        top = upper(atom.num)
        if isinstance(top, int) and isinstance(atom.den, int):
            return min(top, atom.den - 1) if is_nonneg(atom.num) else atom.den - 1
        return atom.den - 1
    if isinstance(atom, Div):
        b = _bound(atom.num, high)
        return None if b is None else floordiv(b, atom.den)
    return None


def _never_negative(atom: Atom) -> bool:
    if isinstance(atom, Sym):
        return atom.lo >= 0
    return isinstance(atom, Mod) or (isinstance(atom, Div) and is_nonneg(atom.num))


def is_nonneg(x: Dim) -> bool:
    """True when x >= 0 is certain for every value of its axes and sizes."""
    low = least(x)
    return low is not None and low >= 0


def least(x: Dim) -> int | None:
    """A number that x is certainly not below; None if none is known."""
    low = lower(x)
    if low is None or isinstance(low, int):
        return low
    total = 0
    for mono, coef in low.terms.items():
        value = coef
        for atom in mono:
            bound = _least_of(atom)
            if coef < 0 or bound is None or (bound < 0 and len(mono) > 1):
                return None
            value *= bound
        total += value
    return total


def _least_of(atom: Atom) -> int | None:
    if isinstance(atom, Sym):
        return atom.lo
    if not isinstance(atom, Div | Mod) or not is_nonneg(atom.num):
        return None
    if isinstance(atom, Mod) or not isinstance(atom.den, int):
        return 0
    return (least(atom.num) or 0) // atom.den


def is_less(a: Dim, b: Dim) -> bool:
    """True when a < b is certain."""
    top = upper(a)
    return top is not None and is_nonneg(b - top - 1)


def steps_over(steps: Iterable[tuple[Dim, Dim]]) -> bool:
    """Whether each step exceeds the reach of all steps before it. They come with their counts, narrowest first."""
    reach: Dim = 0
    for step, count in steps:
        if not is_less(reach, step):
            return False
        reach = reach + step * (count - 1)
    return True


# --- division ---------------------------------------------------------------------------------------------------


def _divide_terms(x: Dim, den: Dim) -> tuple[Dim, Dim]:
    """Split x into (q, r) with x == q * den + r, taking into q every term that den divides."""
    quotient: dict[Monomial, int] = {}
    remainder: dict[Monomial, int] = {}
    if isinstance(den, int):
        for mono, coef in terms_of(x).items():
            if coef % den == 0:
                quotient[mono] = coef // den
            else:
                remainder[mono] = coef
    else:
        if len(den.terms) != 1:
            return (1, 0) if x == den else (0, x)
        ((dmono, dcoef),) = den.terms.items()
        for mono, coef in terms_of(x).items():
            left = list(mono)
            try:
                for atom in dmono:
                    left.remove(atom)
            except ValueError:
                left = None  # type: ignore[assignment]
            if left is not None and coef % dcoef == 0:
                quotient[tuple(left)] = coef // dcoef
            else:
                remainder[mono] = coef
    return _normal(quotient), _normal(remainder)


def floordiv(x: Dim, den: Dim) -> Dim:
    if isinstance(x, int) and isinstance(den, int):
        return x // den
    if den == 1:
        return x
    q, r = _divide_terms(x, den)
    if is_nonneg(r) and is_less(r, den):
        return q
    if isinstance(r, int):
        if isinstance(den, int):
            return q + r // den
        return q + of(Div(Expr({(): r}), den)) if r else q
    if len(r.terms) == 1:
        ((mono, coef),) = r.terms.items()
        if coef == 1 and len(mono) == 1 and isinstance(mono[0], Div):
            inner = mono[0]
            return q + floordiv(inner.num, inner.den * den)
        if coef == 1 and len(mono) == 1 and isinstance(mono[0], Mod):
            inner_mod = mono[0]
            parts, rest = _divide_terms(inner_mod.den, den)
            if rest == 0:
                return q + mod(floordiv(inner_mod.num, den), parts)
    return q + of(Div(r, den))


def mod(x: Dim, den: Dim) -> Dim:
    if isinstance(x, int) and isinstance(den, int):
        return x % den
    if den == 1:
        return 0
    _, r = _divide_terms(x, den)
    if is_nonneg(r) and is_less(r, den):
        return r
    if isinstance(r, int):
        return r % den if isinstance(den, int) else of(Mod(Expr({(): r}), den))
    if len(r.terms) == 1:
        ((mono, coef),) = r.terms.items()
        if coef == 1 and len(mono) == 1 and isinstance(mono[0], Mod):
            inner = mono[0]
            if _divide_terms(inner.den, den)[1] == 0:
                return mod(inner.num, den)
    return of(Mod(r, den))


def maximum(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if is_nonneg(a - b):
        return a
    if is_nonneg(b - a):
        return b
    return of(Extreme("max", a, b))


def minimum(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if is_nonneg(a - b):
        return b
    if is_nonneg(b - a):
        return a
    return of(Extreme("min", a, b))


def product(dims: tuple[Dim, ...] | list[Dim]) -> Dim:
    total: Dim = 1
    for d in dims:
        total = total * d
    return total


# --- walking ----------------------------------------------------------------------------------------------------


def substitute(x: Dim, env: Mapping[str, Dim]) -> Dim:
    """Replace symbols by expressions, simplifying again."""
    if isinstance(x, int) or not env:
        return x
    return _substituted(x, tuple(env.items()))


@functools.lru_cache(maxsize=_KEPT)
def _substituted(x: Expr, pairs: tuple[tuple[str, Dim], ...]) -> Dim:
    env = dict(pairs)
    if not any(s.name in env for s in symbols(x)):
        return x
    total: Dim = 0
    for mono, coef in x.terms.items():
        term: Dim = coef
        for atom in mono:
            term = term * _substitute_atom(atom, env)
        total = total + term
    return total


def _substitute_atom(atom: Atom, env: Mapping[str, Dim]) -> Dim:
    if isinstance(atom, Sym):
        return env.get(atom.name, of(atom)) if atom.name in env else of(atom)
    if isinstance(atom, Div):
        return floordiv(substitute(atom.num, env), substitute(atom.den, env))
    if isinstance(atom, Mod):
        return mod(substitute(atom.num, env), substitute(atom.den, env))
    pick = maximum if atom.kind == "max" else minimum
    return pick(substitute(atom.a, env), substitute(atom.b, env))


def symbols(x: Dim) -> tuple[Sym, ...]:
    """Every occurrence of a symbol, repeated ones included."""
    return () if isinstance(x, int) else _symbols(x)


@functools.lru_cache(maxsize=_KEPT)
def _symbols(x: Expr) -> tuple[Sym, ...]:
    found: list[Sym] = []
    for mono in x.terms:
        for atom in mono:
            if isinstance(atom, Sym):
                found.append(atom)
            else:
                inner = (atom.a, atom.b) if isinstance(atom, Extreme) else (atom.num, atom.den)
                found += (*symbols(inner[0]), *symbols(inner[1]))
    return tuple(found)


def mentions(x: Dim, names: set[str] | frozenset[str]) -> bool:
    return any(s.name in names for s in symbols(x))


def coefficient(x: Dim, name: str) -> Dim | None:
    """d such that x == d * name + (rest free of name); None where x is not affine in name."""
    total: Dim = 0
    for mono, coef in terms_of(x).items():
        hits = [a for a in mono if isinstance(a, Sym) and a.name == name]
        others = [a for a in mono if not (isinstance(a, Sym) and a.name == name)]
        if any(name in {s.name for s in symbols(of(a))} for a in others) or len(hits) > 1:
            return None
        if hits:
            total = total + (Expr({tuple(others): coef}) if others else coef)
    return total


def evaluate(x: Dim, env: Mapping[str, int]) -> int:
    value = substitute(x, env)
    if not isinstance(value, int):
        raise KeyError(f"{x} has symbols without a value: {sorted({s.name for s in symbols(value)})}")
    return value


def render(x: Dim, name: Callable[[str], str] = lambda n: n, python: bool = True) -> str:
    """Text in Python or C syntax. C's / and % truncate, so a quotient that may be negative goes through a helper."""
    if isinstance(x, int):
        return str(x)
    parts: list[str] = []
    for mono, coef in sorted(x.terms.items(), key=lambda mc: (mc[0] == (), [_atom_key(a) for a in mc[0]])):
        factors = [_render_atom(a, name, python) for a in mono]
        if coef != 1 or not factors:
            factors.insert(0, str(coef) if coef >= 0 else f"({coef})")
        parts.append("*".join(factors))
    text = " + ".join(parts)
    return text if len(parts) == 1 else f"({text})"


def _render_atom(atom: Atom, name: Callable[[str], str], python: bool) -> str:
    if isinstance(atom, Sym):
        return name(atom.name)
    if isinstance(atom, Extreme):
        fn = atom.kind if python else f"bn_{atom.kind}_i64"
        return f"{fn}({render(atom.a, name, python)}, {render(atom.b, name, python)})"
    num, den = render(atom.num, name, python), render(atom.den, name, python)
    if isinstance(atom.den, Expr) and not den.startswith("("):
        den = f"({den})"
    if python:
        return f"({num}{'//' if isinstance(atom, Div) else '%'}{den})"
    if is_nonneg(atom.num):
        return f"({num} {'/' if isinstance(atom, Div) else '%'} {den})"
    return f"bn_{'floordiv' if isinstance(atom, Div) else 'mod'}_i64({num}, {den})"


def dot(index: tuple[Dim, ...], strides: tuple[Dim, ...]) -> Dim:
    total: Dim = 0
    for i, s in zip(index, strides, strict=True):
        total = total + i * s
    return total


def contiguous_strides(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    return tuple(product(tuple(shape[i + 1 :])) for i in range(len(shape)))
