"""The calls of one object that was compiled with `shapes=`: each is padded to the sizes of a compiled variant, where
that is proven to be safe, and its results are sliced back.

    call ─ form.py: its form, its sizes ─► planner.py: its bucket ─► variant.py: the program for that bucket
             │ the first of a form                                      │ the first in a bucket
             ▼                                                          ▼
        tracer.py: the graph with symbolic sizes, its proof         an entrance compiles it, for static sizes

Why this is right. The tracer has one graph G for all sizes, and guards under which the target computes G. If they pass
for a call's own arguments and for the padded ones, the target computes G on both, and the proof says that the results
on the padded ones begin with the results on the call's own. A variant is another program for the target on the padded
arguments; its guards notice later changes of the module's state. So these conditions are checked when a variant is
compiled, and those on sizes once for each set of sizes.

Calls that are not padded go to an entrance with symbolic sizes, or, where nothing is known yet, to the original. Calls
with a size of 0 or 1 are not padded in that dimension, because the traced graph is about sizes from 2 on.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch

from burnish.bucketed.form import Call, Reader, Shapes
from burnish.bucketed.planner import Planner
from burnish.bucketed.proof import prove_padding
from burnish.bucketed.results import NotFinite, ResultsDiffer, Slicing, padded, repeated
from burnish.bucketed.tracer import Prover, Traced, Tracer
from burnish.bucketed.variant import Contest, Variant
from burnish.capture.entry.entrance import Entrance
from burnish.errors import BadWarmup, SealedError
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.signals import is_handlers_own
from burnish.shapes.buckets import Sizes
from burnish.shapes.record import BucketStats, ShapeStats
from burnish.shapes.strategy import Axis, Strategy
from burnish.shapes.traffic import counted
from burnish.trust.record import WholeCall
from burnish.trust.whole_call import WholeCallRace

_MOST_FORMS = 64
_MOST_ROUTES = 4096  # of one form
_LOOKS_EVERY = 256  # calls that are not padded, after which the reason is checked again
_RARE = 8  # calls without a bucket that eager serves, before a program with symbolic sizes is compiled
_HOT = 8  # calls of one size that may not be padded, before it gets a variant
_MOST_CHANGES = 8  # of the original's hooks or code, after which calls are no longer padded
_COMPILES_PER_VARIANT = 4  # of all plans and states together
_MISSED: Any = object()
_NOT_BUCKETED = "the call has no bucket, and there is no program with symbolic sizes"
_STRUCTURE = "a padded call returned another structure"
_NOT_FINITE = "a padded call returned an infinity or a NaN"
Serving = Literal["variant", "dynamic", "observed", "sealed"]


@dataclass
class Route:
    """Who serves the calls of one form with these sizes."""

    by: Serving
    sizes: Sizes = ()
    variant: Variant | None = None
    why: str = ""
    calls: int = 0


@dataclass
class Form:
    """The calls of one form. `dims[k]` are the tensors, with their dimension, that axis k is about."""

    axes: tuple[Axis, ...]
    dims: tuple[tuple[tuple[int, int], ...], ...]
    fills: tuple[float, ...]  # of the call's tensors
    planner: Planner
    routes: dict[Shapes, Route] = field(default_factory=dict)
    variants: dict[Shapes, Variant] = field(default_factory=dict)
    without_bucket: int = 0
    repeated: Counter[Shapes] = field(default_factory=Counter)


class BucketedCalls:
    """An entrance (`capture/entry/any_entrance.py`) made of three."""

    deferred = None

    def __init__(
        self,
        target: Callable[..., Any],
        strategy: Strategy,
        options: Options,
        log: CompileLog,
        prover: Prover = prove_padding,
    ) -> None:
        self.target = target
        self.strategy = strategy
        self.log = log
        self._options = options
        self._reader = Reader(target)
        self._lock = threading.RLock()
        most = strategy.variants * _COMPILES_PER_VARIANT
        static = dataclasses.replace(options, dynamic=False)
        self.static = Entrance(target, static, log, raced=False, recompiles=most + 8)
        self.dynamic = Entrance(target, dataclasses.replace(options, dynamic=True), log)
        self.tracer = Tracer(target, options, log.name, self._reader, prover, strategy.axes, strategy.fills)
        self.call: Callable[..., Any] = self._call
        self._clear()

    def _clear(self) -> None:
        self._forms: dict[Hashable, Form] = {}
        self._refusals: Counter[str] = Counter()
        self._needs: dict[str, None] = {}
        self._dynamic_calls = self._eager_calls = 0
        self._compiles = self._changes = 0
        self._sealed: Literal["", "open", "strict"] = ""

    # -- as an entrance ---------------------------------------------------------------------------------------

    @property
    def is_racing(self) -> bool:
        racing = any(contest.served == "racing" for v in self._variants() for contest in list(v.contests.values()))
        return racing or self.dynamic.is_racing

    def whole_calls(self) -> tuple[WholeCall, ...]:
        contests = [contest for variant in self._variants() for contest in list(variant.contests.values())]
        races = [contest.race for contest in contests if contest.race is not None]
        return (*(verdict for race in races for verdict in race.stats()), *self.dynamic.whole_calls())

    def restart(self) -> None:
        with self._lock:
            for entrance in (self.static, self.dynamic, self.tracer):
                entrance.restart()
            self._clear()
            self.call = self._call

    def suspend(self) -> None:
        with self._lock:
            self.dynamic.suspend()
            self.call = self.target

    def resume(self) -> None:
        with self._lock:
            self.dynamic.resume()
            self.call = self._call

    def seal(self, strict: bool = False) -> int:
        """Nothing compiles or is traced any more. Guards are still evaluated for each call."""
        with self._lock:
            symbolic = self.dynamic.seal(strict)
            if not symbolic:
                self.dynamic.seal_off()
            variants = len(self._variants())
            if variants or symbolic:
                self._sealed = "strict" if strict else "open"
                self._forget_routes()
            return variants + symbolic

    def seal_off(self) -> None:
        self.call = self.target

    def unseal(self) -> None:
        with self._lock:
            self._sealed = ""
            self.dynamic.unseal()
            self.call = self._call
            self._forget_routes()

    # -- a call -----------------------------------------------------------------------------------------------

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if not self.static.takes_ordinary_calls():
            return self._unusual(args, kwargs)
        call = self._reader.read(args, kwargs)
        if self.strategy.mask is not None:
            call = self._masked(call, self.strategy.mask)
        if not call.is_usual or not call.tensors:
            return self._dynamically(call)
        form = self._forms.get(call.form) or self._new_form(call)
        if form is None:
            return self._dynamically(call)
        route = form.routes.get(call.shapes)
        if route is not None:
            result = self._by(route, form, call)
            if result is not _MISSED:
                return result
        return self._unknown(form, call)

    def _masked(self, call: Call, name: str) -> Call:
        """The call with a mask that shows everything, if it has none. It is padded with 0, which hides."""
        if self._reader.has(name, call):
            return call
        ids = next((x for x in call.tensors if x.dim() >= 2), None)
        if ids is None:
            return call
        mask = torch.ones(ids.shape[:2], dtype=torch.long, device=ids.device)
        args, kwargs = self._reader.with_argument(name, mask, call)
        return self._reader.read(args, kwargs)

    def _by(self, route: Route, form: Form, call: Call) -> Any:
        if route.sizes:
            form.planner.add(route.sizes)
        if route.variant is not None:
            return self._by_variant(route.variant, form, call)
        route.calls += 1
        if route.by == "observed":
            self._eager_calls += 1
            return self.target(*call.args, **call.kwargs)
        if route.by == "sealed":
            return self._without_program(call.args, call.kwargs, route.why)
        if route.why:
            self._refusals[route.why] += 1
        if route.calls % _LOOKS_EVERY == 0:
            form.routes.pop(call.shapes, None)
        return self._dynamically(call)

    def _by_variant(self, variant: Variant, form: Form, call: Call) -> Any:
        if call.shapes not in variant.slicings:
            return _MISSED
        share = variant.share(call.shapes)
        contest = variant.contests.get(share) or self._contest(variant, form, share)
        if contest.served == "eager":
            variant.calls += 1
            return self.target(*call.args, **call.kwargs)
        if contest.served == "racing" and contest.race is not None:
            return contest.race.call(*call.args, **call.kwargs)
        return self._run(variant, form, call)

    def _contest(self, variant: Variant, form: Form, share: int) -> Contest:
        """A padded call does more work than the original, so the race is about calls as padded as this one."""
        contest, around = Contest(), self.static.surroundings()
        if self._options.gate and around is not None:
            kind = f"calls of {variant}" + ("" if share == 5 else f", at most {share * 25} % of it not padding")
            contest.served = "racing"
            contest.race = WholeCallRace(
                partial(self._raced, variant, form),
                self.target,
                lambda args, kwargs: kind,
                around,
                told=partial(self._told, contest),
            )
        return variant.contests.setdefault(share, contest)

    def _run(self, variant: Variant, form: Form, call: Call) -> Any:
        slicing = variant.slicings.get(call.shapes)
        larger = call if slicing is None else _enlarged(call, variant.shapes, form.fills)
        if not variant.holds(self.static, larger.args, larger.kwargs):
            form.routes.pop(call.shapes, None)
            return _MISSED
        if slicing is None:
            variant.calls += 1
            return variant.call(larger)
        variant.calls += 1
        variant.padded_calls += 1
        try:
            result = variant.call(larger)
        except Exception as error:  # the caller's own mistake raises again
            return self._raised(error, form, call)
        return self._sliced(slicing, result, form, call)

    def _raced(self, variant: Variant, form: Form, *args: Any, **kwargs: Any) -> Any:
        call = self._reader.read(args, kwargs)
        result = self._run(variant, form, call)
        return self._unknown(form, call) if result is _MISSED else result

    def _dynamically(self, call: Call) -> Any:
        if self._has_no_program:
            return self._without_program(call.args, call.kwargs, _NOT_BUCKETED)
        self._dynamic_calls += 1
        return self.dynamic.call(*call.args, **call.kwargs)

    def _unusual(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Under a mode, in a checkpoint, while something is traced; or after a change of the original."""
        if self.static.is_stale():
            with self._lock:
                if self.static.is_stale() and self._changes < _MOST_CHANGES and not self._sealed:
                    self._changes += 1
                    self.static.restart()
                    self.tracer.restart()
                    self._forms.clear()
                    return self._call(*args, **kwargs)
        if self._has_no_program:
            return self._without_program(args, kwargs, _NOT_BUCKETED)
        self._dynamic_calls += 1
        return self.dynamic.call(*args, **kwargs)

    @property
    def _has_no_program(self) -> bool:
        """Whether calls without a bucket are left to eager."""
        return bool(self._sealed) and self.dynamic.call is self.target

    def _without_program(self, args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> Any:
        self._eager_calls += 1
        self.log.noticed(f"sealed call in eager: {why}")
        if self._sealed == "strict":
            raise SealedError(self.log.name, why)
        return self.target(*args, **kwargs)

    # -- the first call with these sizes ------------------------------------------------------------------------

    def _new_form(self, call: Call) -> Form | None:
        with self._lock:
            known = self._forms.get(call.form)
            if known is not None or len(self._forms) >= _MOST_FORMS:
                return known
            names = [self._reader.name(place) for place in call.places]
            named = [(axis, _dims_of(axis, names, call)) for axis in self.strategy.axes]
            found = [(axis, dims) for axis, dims in named if dims]
            axes = tuple(axis for axis, _ in found)
            form = Form(
                axes,
                tuple(dims for _, dims in found),
                tuple(float(self.strategy.fills.get(name, 0)) for name in names),
                Planner(self.strategy, axes, partial(self._replanned, call.form)),
            )
            self._forms[call.form] = form
            return form

    def _replanned(self, key: Hashable) -> None:
        form = self._forms.get(key)
        if form is not None:
            for variant in list(form.variants.values()):
                variant.is_stale = True
            form.routes.clear()

    def _forget_routes(self) -> None:
        for form in self._forms.values():
            form.routes.clear()

    def _unknown(self, form: Form, call: Call) -> Any:
        with self._lock:
            if self.strategy.kind == "static":
                route: Route | Any = self._own_sizes(form, call, ())
                return self._after(route, form, call)
            traced = self.tracer.fitting(call)
            if traced is None:
                if self._sealed:
                    route = self._put(form, call, Route("sealed", why="its sizes or the module's state are new"))
                    return self._by(route, form, call)
                result, traced = self.tracer.trace(call)
                self._note(traced)
                if self.tracer.fitting(call) is None:  # Dynamo leaves it alone, or has traced it too often
                    self._put(form, call, Route("dynamic", why=traced.refusal))
                if not traced.refusal:
                    sizes = self._sizes(form, traced, call)
                    if not isinstance(sizes, str) and sizes[0]:
                        form.planner.add(sizes[0])
                self._eager_calls += 1
                return result
            route = self._routed(form, traced, call)
        return self._after(route, form, call)

    def _after(self, route: Any, form: Form, call: Call) -> Any:
        if isinstance(route, _Served):
            return route.result
        result = self._by(route, form, call)
        return self._dynamically(call) if result is _MISSED else result  # another thread has changed the module

    def _note(self, traced: Traced) -> None:
        if traced.refusal:
            self.log.noticed(f"not padded: {traced.refusal}")
        elif traced.proven is not None:
            self._needs |= dict.fromkeys(traced.proven.needs)

    def _put(self, form: Form, call: Call, route: Route) -> Route:
        if len(form.routes) >= _MOST_ROUTES:
            form.routes.clear()
        form.routes[call.shapes] = route
        return route

    def _routed(self, form: Form, traced: Traced, call: Call) -> Route | _Served:
        if traced.refusal:
            return self._refused(form, traced.refusal, call)
        found = self._sizes(form, traced, call)
        if isinstance(found, str):
            return self._refused(form, found, call)
        sizes, fixed = found
        if 0 in sizes:
            return self._put(form, call, Route("dynamic", sizes, why="a size of 0"))
        if not form.planner.is_ready:
            if self._sealed:
                return self._put(form, call, Route("sealed", sizes, why="its buckets were not planned"))
            return self._put(form, call, Route("observed", sizes))
        bucket = form.planner.bucket(sizes, fixed)
        if bucket is None:
            return self._outside(form, traced, call, sizes)
        shapes = _shapes_of(form, traced, call, bucket)
        return self._of_shapes(form, traced, call, sizes, shapes)

    def _of_shapes(self, form: Form, traced: Traced, call: Call, sizes: Sizes, shapes: Shapes) -> Route | _Served:
        """The call's route through the variant of these sizes."""
        if shapes == call.shapes:
            return self._own_sizes(form, call, sizes)
        larger = _enlarged(call, shapes, form.fills)
        if self.tracer.fitting(larger) is not traced:
            return self._refused(form, "the traced graph is not that of the padded sizes", call)
        slicing = _slicing(traced, call)
        variant = self._held(form, shapes, larger)
        if variant is None:
            if not self._can_compile():
                return self._larger(form, traced, call, sizes)
            try:
                result, variant = self._compiled(form, larger)
            except Exception as error:
                return _Served(self._raised(error, form, call))
            if variant is None:
                return _Served(self._sliced(slicing, result, form, call))
            variant.remember(call.shapes, slicing)
            self._put(form, call, Route("variant", sizes, variant))
            variant.calls += 1
            variant.padded_calls += 1
            return _Served(self._sliced(slicing, result, form, call))
        variant.remember(call.shapes, slicing)
        return self._put(form, call, Route("variant", sizes, variant))

    def _own_sizes(self, form: Form, call: Call, sizes: Sizes) -> Route | _Served:
        """A call of exactly a variant's sizes needs no proof."""
        variant = self._held(form, call.shapes, call)
        if variant is None:
            if not self._can_compile():
                return self._put(form, call, Route("dynamic", sizes, why="" if self._sealed else "enough variants"))
            result, variant = self._compiled(form, call)
            if variant is None:
                self._put(form, call, Route("dynamic", sizes, why="it is not compiled as one graph"))
                return _Served(result)
            variant.calls += 1
            variant.remember(call.shapes, None)
            self._put(form, call, Route("variant", sizes, variant))
            return _Served(result)
        variant.remember(call.shapes, None)
        return self._put(form, call, Route("variant", sizes, variant))

    def _sliced(self, slicing: Slicing, result: Any, form: Form, call: Call) -> Any:
        try:
            return slicing.of(result)
        except ResultsDiffer:
            self._put(form, call, Route("dynamic", why=_STRUCTURE))
            return self._not_padded(_STRUCTURE, call)
        except NotFinite:
            return self._not_padded(_NOT_FINITE, call)

    def _raised(self, error: Exception, form: Form, call: Call) -> Any:
        """A padded call raised: its sizes may be too large for a table of the model's."""
        if is_handlers_own(error):
            raise error
        why = f"a padded call raised {type(error).__name__}"
        self._put(form, call, Route("dynamic", why=why))
        return self._not_padded(why, call)

    def _not_padded(self, why: str, call: Call) -> Any:
        self._refusals[why] += 1
        return self._dynamically(call)

    def _held(self, form: Form, shapes: Shapes, larger: Call) -> Variant | None:
        variant = form.variants.get(shapes)
        if variant is not None and variant.holds(self.static, larger.args, larger.kwargs):
            return variant
        return None

    def _can_compile(self) -> bool:
        """Whether there is room for one more variant, if necessary instead of one that an earlier plan has made."""
        cap = self.strategy.variants
        if self._sealed or self._compiles >= cap * _COMPILES_PER_VARIANT:
            return False
        if len(self._variants()) >= cap:
            self._drop_the_dead()
        if len(self._variants()) >= cap:
            for form in self._forms.values():
                stale = [(v.calls, shapes) for shapes, v in form.variants.items() if v.is_stale]
                if stale:
                    del form.variants[min(stale, key=lambda each: each[0])[1]]
                    break
        return len(self._variants()) < cap

    def _drop_the_dead(self) -> None:
        """Variants whose code Dynamo has dropped."""
        for form in self._forms.values():
            for shapes, variant in list(form.variants.items()):
                if self.static.entry_of(variant.code) is None:
                    del form.variants[shapes]

    def _compiled(self, form: Form, larger: Call) -> tuple[Any, Variant | None]:
        """Make the call, compiling it."""
        self._compiles += 1
        result = self.static.call(*larger.args, **larger.kwargs)
        entry = self.static.fitting(larger.args, larger.kwargs)
        run = self.static.function_of(entry) if entry is not None else None
        if run is None:
            return result, None
        variant = Variant(larger.shapes, entry.code, run)
        form.variants[larger.shapes] = variant
        return result, variant

    def _told(self, contest: Contest, verdict: WholeCall) -> None:
        contest.served = verdict.served
        self.log.emit("gate", reason=f"{verdict}", engine=verdict.served)

    # -- calls that are not padded ------------------------------------------------------------------------------

    def _refused(self, form: Form, why: str, call: Call) -> Route | _Served:
        """Sizes that are frequent, or that the user has listed, may still have a variant of their own."""
        self._refusals[why] += 1
        if len(form.repeated) >= _MOST_ROUTES:
            form.repeated.clear()
        form.repeated[call.shapes] += 1
        hot = self.strategy.kind == "auto" and form.repeated[call.shapes] >= _HOT
        if self._sealed or hot or self._is_listed(form, call):
            route = self._own_sizes(form, call, ())
            if isinstance(route, _Served) or route.by == "variant":
                return route
        looked = form.repeated[call.shapes] < _HOT and self.strategy.kind == "auto"
        route = Route("dynamic", why=why)
        return route if looked else self._put(form, call, route)

    def _is_listed(self, form: Form, call: Call) -> bool:
        if not form.axes or any(axis.sizes is None for axis in form.axes):
            return False
        return all(
            axis.sizes is not None and all(call.shapes[k][d] in axis.sizes for k, d in dims)
            for axis, dims in zip(form.axes, form.dims, strict=True)
        )

    def _outside(self, form: Form, traced: Traced, call: Call, sizes: Sizes) -> Route | _Served:
        """Larger than every bucket."""
        if self._sealed:
            return self._larger(form, traced, call, sizes)
        form.without_bucket += 1
        if form.without_bucket <= _RARE:
            return Route("observed", sizes)
        return self._put(form, call, Route("dynamic", sizes, why="larger than every bucket"))

    def _larger(self, form: Form, traced: Traced, call: Call, sizes: Sizes) -> Route | _Served:
        """The smallest compiled variant to which the call may be padded; else symbolic sizes, or eager if sealed."""
        fitting = [v for v in form.variants.values() if _can_hold(form, traced, call, v.shapes)]
        for variant in sorted(fitting, key=lambda v: sum(shape.numel() for shape in v.shapes)):
            larger = _enlarged(call, variant.shapes, form.fills)
            if not variant.holds(self.static, larger.args, larger.kwargs):
                continue
            if self.tracer.fitting(larger) is not traced:
                continue
            variant.remember(call.shapes, _slicing(traced, call))
            return self._put(form, call, Route("variant", sizes, variant))
        if self._has_no_program:
            return self._put(form, call, Route("sealed", sizes, why="no compiled variant is large enough"))
        return self._put(form, call, Route("dynamic", sizes, why="" if self._sealed else "enough variants"))

    # -- sizes --------------------------------------------------------------------------------------------------

    def _sizes(self, form: Form, traced: Traced, call: Call) -> tuple[Sizes, Mapping[int, int]] | str:
        """The size of each axis, and those that are constants of the traced graph; or why there is none."""
        sizes: list[int] = []
        fixed: dict[int, int] = {}
        for k, (axis, dims) in enumerate(zip(form.axes, form.dims, strict=True)):
            varied = {call.shapes[t][d] for t, d in dims if traced.varies(t, d)}
            if len(varied) > 1:
                text = ", ".join(map(str, sorted(varied)))
                return f"the dimensions called {axis.name} have the sizes {text}: name them by argument"
            if varied:
                sizes.append(varied.pop())
            else:
                fixed[k] = max(call.shapes[t][d] for t, d in dims)
                sizes.append(fixed[k])
        return tuple(sizes), fixed

    # -- before traffic arrives -----------------------------------------------------------------------------------

    def axes_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
        """The dimensions of a call like this one that may be padded."""
        return tuple(axis.name for axis in self._form_to_warm(args, kwargs)[1].axes)

    def _form_to_warm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Form]:
        call = self._reader.read(args, kwargs)
        if self.strategy.mask is not None:
            call = self._masked(call, self.strategy.mask)
        if not call.is_usual:
            raise BadWarmup("a tensor of the example is not contiguous, or is passed twice: such calls are not padded")
        form = self._forms.get(call.form) or self._new_form(call)
        if form is None:
            raise BadWarmup(f"there have been calls of {_MOST_FORMS} kinds already, and the example is of another")
        if self.strategy.axes and not form.axes:
            named = ", ".join(axis.name for axis in self.strategy.axes)
            raise BadWarmup(f"the example has none of the dimensions of shapes=: {named}")
        return call, form

    def calls_to_warm(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], requests: Sequence[Mapping[str, int]]
    ) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Calls like this one, for each bucket; those that are learnt are planned from `requests`. The first calls are
        traced, so later ones depend on what came of that."""
        call, form = self._form_to_warm(args, kwargs)
        usual = self._sizes_asked(form, call)
        traffic = counted([{**usual, **each} for each in requests], list(usual))
        args, kwargs = self._resized(form, call, [max(2, size) for size in usual.values()])
        yield args, kwargs
        call = self._reader.read(args, kwargs)
        if traffic:
            form.planner.learn(traffic)
        plan = form.planner.plan
        if plan is None:
            return
        used = {plan.bucket(sizes) for sizes in traffic} if traffic else set(itertools.product(*plan.boundaries))
        for bucket in sorted(each for each in used if each is not None):
            yield self._resized(form, call, bucket)

    def _sizes_asked(self, form: Form, call: Call) -> dict[str, int]:
        each = zip(form.axes, form.dims, strict=True)
        return {axis.name: max(call.shapes[t][d] for t, d in dims) for axis, dims in each}

    def _resized(self, form: Form, call: Call, sizes: Sequence[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Each dimension that may vary, cut or repeated from its beginning."""
        traced = self.tracer.fitting(call)
        tensors = list(call.tensors)
        for dims, size in zip(form.dims, sizes, strict=True):
            for t, d in dims:
                have = tensors[t].shape[d]
                if have != size and (traced is None or not traced.dims or traced.varies(t, d)):
                    tensors[t] = repeated(tensors[t], d, size)
        larger = call.with_tensors(tensors)
        return larger.args, larger.kwargs

    def variant_of(self, *args: Any, **kwargs: Any) -> str:
        """The sizes of the variant that serves calls like this one; empty if none does, or if none was made yet."""
        call = self._reader.read(args, kwargs)
        form = self._forms.get(call.form)
        route = form.routes.get(call.shapes) if form is not None else None
        return str(route.variant) if route is not None and route.variant is not None else ""

    # -- what the user reads ------------------------------------------------------------------------------------

    def _variants(self) -> list[Variant]:
        return [variant for form in list(self._forms.values()) for variant in list(form.variants.values())]

    def shape_stats(self) -> ShapeStats:
        forms = list(self._forms.values())
        variants = self._variants()
        return ShapeStats(
            strategy=str(self.strategy),
            plans=tuple(str(f.planner) for f in forms if f.planner.plan is not None),
            buckets=tuple(BucketStats(str(v), v.calls, v.padded_calls, v.served) for v in variants),
            variants=len(variants),
            compiles=self._compiles,
            traces=self.tracer.traces,
            waste=max([f.planner.waste() for f in forms], default=0.0),
            dynamic_calls=self._dynamic_calls,
            eager_calls=self._eager_calls,
            refusals=dict(self._refusals),
            needs=tuple(self._needs),
        )


@dataclass(frozen=True)
class _Served:
    """A call that was made while its route was looked for."""

    result: Any


def _slicing(traced: Traced, call: Call) -> Slicing:
    assert traced.results is not None and traced.proven is not None
    return Slicing(traced.results, traced.cuts(traced.symbols(call)), traced.proven.finite)


def _dims_of(axis: Axis, names: Sequence[str], call: Call) -> tuple[tuple[int, int], ...]:
    return tuple(
        (k, axis.dim) for k, (name, x) in enumerate(zip(names, call.tensors, strict=True)) if axis.is_of(name, x.dim())
    )


def _enlarged(call: Call, shapes: Shapes, fills: Sequence[float]) -> Call:
    each = zip(call.tensors, shapes, fills, strict=True)
    return call.with_tensors([padded(x, shape, fill) for x, shape, fill in each])


def _shapes_of(form: Form, traced: Traced, call: Call, bucket: Sizes) -> Shapes:
    shapes = [list(shape) for shape in call.shapes]
    for dims, size in zip(form.dims, bucket, strict=True):
        for tensor, d in dims:
            if traced.varies(tensor, d):
                shapes[tensor][d] = size
    return tuple(map(torch.Size, shapes))


def _can_hold(form: Form, traced: Traced, call: Call, shapes: Shapes) -> bool:
    """Whether only dimensions that may be padded differ, and those are as large."""
    padded_dims = {(t, d) for dims in form.dims for t, d in dims if traced.varies(t, d)}
    for t, (have, want) in enumerate(zip(call.shapes, shapes, strict=True)):
        for d, (small, large) in enumerate(zip(have, want, strict=True)):
            if small != large and ((t, d) not in padded_dims or small > large):
                return False
    return True
