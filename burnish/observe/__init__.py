"""What burnish tells the people who run it: stats, metrics, log lines and an event file, all from one source."""

from burnish.observe.events import Event

__all__ = ["Event"]
