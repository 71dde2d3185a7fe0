"""The buckets of one form of call: given, or learnt from the sizes of its calls and planned anew when these drift."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from burnish.shapes.buckets import Plan, Sizes, plan
from burnish.shapes.strategy import Axis, Strategy
from burnish.shapes.traffic import SizeHistogram

_LOOKS_EVERY = 256  # calls
_DRIFTED = 1.25  # the cost of the traffic under the plan, as a multiple of what a new plan costs
_WORTH = 0.005  # share of the traffic's cost that a bucket must save


class Planner:
    """`bucket(sizes)` is the padded size of a call, in the order of `axes`; None if it has no bucket."""

    def __init__(self, strategy: Strategy, axes: Sequence[Axis], changed: Callable[[], None]) -> None:
        self.axes = tuple(axes)
        self.histogram = SizeHistogram()
        self._strategy = strategy
        self._changed = changed
        self._lock = threading.Lock()
        self._planning = False
        self.learns = any(axis.sizes is None for axis in axes)
        self.plan: Plan | None = None if self.learns else Plan(tuple(axis.sizes or () for axis in axes))
        self.plans = 0

    def add(self, sizes: Sizes) -> None:
        self.histogram.add(sizes)
        if not self.learns:
            return
        calls = self.histogram.calls
        if self.plan is None:
            if calls >= self._strategy.after:
                self.plan_now()
        elif calls % _LOOKS_EVERY == 0:
            self._look_beside()

    @property
    def is_ready(self) -> bool:
        return self.plan is not None

    def bucket(self, sizes: Sizes, fixed: Mapping[int, int]) -> Sizes | None:
        """`fixed` has the axes, by position, whose size is a constant in the traced graph."""
        if self.plan is None:
            return None
        asked = tuple(1 if k in fixed else size for k, size in enumerate(sizes))
        found = self.plan.bucket(asked)
        return None if found is None else tuple(fixed.get(k, size) for k, size in enumerate(found))

    def plan_now(self) -> None:
        counts = self.histogram.counts()
        found = self._planned(counts)
        if found.boundaries:
            with self._lock:
                self.plan, self.plans = found, self.plans + 1
            self._changed()

    def learn(self, traffic: Mapping[Sizes, float]) -> None:
        """Plan for this traffic, before any call."""
        for sizes, count in traffic.items():
            for _ in range(max(1, round(count))):
                self.histogram.add(sizes)
        if self.learns:
            self.plan_now()

    def _planned(self, counts: Mapping[Sizes, float]) -> Plan:
        total = sum(_product(sizes) * count for sizes, count in counts.items())
        return plan(
            counts,
            self._strategy.variants,
            per_bucket=_WORTH * total,
            most=[axis.most for axis in self.axes],
            given={k: axis.sizes for k, axis in enumerate(self.axes) if axis.sizes is not None},
        )

    def _look_beside(self) -> None:
        with self._lock:
            if self._planning:
                return
            self._planning = True
        try:
            threading.Thread(target=self._look, name="burnish-plan", daemon=True).start()
        except RuntimeError:  # no more threads, or the process ends: another call tries again
            self._planning = False

    def _look(self) -> None:
        try:
            counts = self.histogram.counts()
            found = self._planned(counts)
            if self.plan is not None and found.boundaries and self._has_drifted(self.plan, found, counts):
                with self._lock:
                    self.plan, self.plans = found, self.plans + 1
                self._changed()
        finally:
            self._planning = False

    def _has_drifted(self, old: Plan, new: Plan, counts: Mapping[Sizes, float]) -> bool:
        outside = sum(count for sizes, count in counts.items() if old.bucket(sizes) is None)
        if outside > 0.02 * sum(counts.values()):
            return True
        return _cost(old, counts) > _DRIFTED * _cost(new, counts)

    def __str__(self) -> str:
        boundaries = self.plan.boundaries if self.plan is not None else ()
        return " x ".join(f"{axis.name} {list(sizes)}" for axis, sizes in zip(self.axes, boundaries, strict=False))

    def waste(self) -> float:
        return self.plan.waste(self.histogram.counts()) if self.plan is not None else 0.0


def _cost(found: Plan, counts: Mapping[Sizes, float]) -> float:
    each = ((found.bucket(sizes), count) for sizes, count in counts.items())
    return sum(_product(bucket) * count for bucket, count in each if bucket is not None)


def _product(sizes: Sizes) -> float:
    total = 1.0
    for size in sizes:
        total *= size
    return total
