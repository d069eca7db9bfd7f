"""Which visitor's job is running, so that it can be cancelled."""

from __future__ import annotations

import threading


class Jobs:
    """One running job per visitor; starting another or pressing Cancel ends it at its next step."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, threading.Event] = {}

    def start(self, visitor: str) -> threading.Event:
        """The event that is set when this job is to end."""
        self.cancel(visitor)
        with self._lock:
            return self._running.setdefault(visitor, threading.Event())

    def cancel(self, visitor: str) -> bool:
        """Whether there was a job to cancel."""
        with self._lock:
            event = self._running.pop(visitor, None)
        if event is not None:
            event.set()
        return event is not None

    def end(self, visitor: str, event: threading.Event) -> None:
        """The job is over by itself."""
        with self._lock:
            if self._running.get(visitor) is event:
                del self._running[visitor]
