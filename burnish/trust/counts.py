"""What a variant counts: for its statistics, and to change its engine after a few bad calls instead of one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counts:
    """Of one variant, for its statistics."""

    judgings: int = 0  # calls, or parts of calls, that were a trial
    rollbacks: int = 0
    samples: int = 0
    samples_dropped: int = 0
    unmet: int = 0  # calls that did not meet the graph's assumptions: eager served them


@dataclass
class Suspicions:
    """Observations about the serving engine, of which a few are no reason to change it."""

    doubts: int = 0  # doubtful samples, too few so far for a rollback
    slow: int = 0  # slow samples, less those that were not
    repeated_races: int = 0  # for slow samples
    unjudged: int = 0  # trials that raised, of calls that did not
