"""The one stopwatch: it waits for the device before it reads the clock."""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Measures the phases of a step.

    On CUDA every reading waits for the device, so that a phase is charged with the
    work that it started; on the CPU there is nothing to wait for.
    """

    def __init__(self, device: torch.device) -> None:
        """Start."""
        self._device = device
        self._start = self._last = self._now()

    def lap(self) -> float:
        """Return the seconds since the last lap, and begin the next one."""
        now = self._now()
        elapsed, self._last = now - self._last, now
        return elapsed

    def total(self) -> float:
        """Return the seconds since the start."""
        return self._now() - self._start

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
