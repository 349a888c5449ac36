"""Admission: which requests are decoded together, and which wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from treespec.request import Request


class Scheduler:
    """First come, first served, as many at once as there is room for.

    Attributes:
        waiting: Requests that were not admitted yet.
        active: Requests that are being decoded.
    """

    def __init__(self, requests: Sequence[Request], max_concurrent: int) -> None:
        """Queue the requests.

        Args:
            requests: In the order of their prompts.
            max_concurrent: Most requests to decode at once.
        """
        self.waiting = deque(requests)
        self.active: list[Request] = []
        self._max_concurrent = max_concurrent

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or active."""
        return bool(self.waiting or self.active)

    def admit(self, enter: Callable[[Request], bool]) -> None:
        """Admit waiting requests in order until one does not fit.

        Args:
            enter: Reserves a request's slots; false if there is no room now.
        """
        while self.waiting and len(self.active) < self._max_concurrent:
            if not enter(self.waiting[0]):
                break
            self.active.append(self.waiting.popleft())

    def retire(self) -> list[Request]:
        """Take the finished requests out and return them."""
        finished = [r for r in self.active if r.finish_reason is not None]
        self.active = [r for r in self.active if r.finish_reason is None]
        return finished
