"""Noise with the structure of the real thing: per launch, per run, per request, a few bad launches."""

import math
import os
import random
import threading
import time

from . import faults, pace

IDLE_SECONDS = 0.08
"""A pause this long between requests begins another run."""


def generator(*labels):
    """A generator from the operating system, or from PRETEND_SEED and these labels."""
    seed = os.environ.get("PRETEND_SEED")
    if seed is None:
        return random.SystemRandom()
    return random.Random(":".join(map(str, (seed, *labels))))


def device_factor():
    """How much slower the visible device is: ``PRETEND_SLOW_DEVICES=GPU-b:2,1:1.5`` names those that are."""
    slow = dict(part.split(":") for part in os.environ.get("PRETEND_SLOW_DEVICES", "").split(",") if part)
    return max(float(slow.get(name, 1)) for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))


class Noise:
    """The slowness of each request of one launch, as a factor around 1. Safe to call from several threads."""

    def __init__(self, port, model):
        number = faults.launch_number()
        self._random = generator(*((number,) if number else (port, model)))
        self._launch = self._factor(pace.LAUNCH_SD)
        if self._random.random() < pace.OUTLIER_PROBABILITY:
            self._launch *= pace.OUTLIER_FACTOR
        self._launch *= device_factor()
        self._run = 1.0
        self._last = -math.inf
        self._lock = threading.Lock()

    def _factor(self, deviation):
        return math.exp(self._random.gauss(0.0, deviation))

    def request(self):
        """Draw the factor of one request."""
        with self._lock:
            if time.monotonic() - self._last > IDLE_SECONDS:
                self._run = self._factor(pace.RUN_SD)
            return self._launch * self._run * self._factor(pace.REQUEST_SD)

    def finished(self):
        """A request has ended: the pause begins."""
        with self._lock:
            self._last = time.monotonic()
