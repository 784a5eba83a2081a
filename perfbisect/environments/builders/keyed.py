"""Environments that were brought to this machine, by key; builds nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perfbisect.environments.base import Builder, Environment, Refusal
from perfbisect.environments.cache import EnvironmentCache
from perfbisect.errors import MachineError
from perfbisect.model.change import Change


class KeyedBuilder(Builder):
    """``keys``: of the environments, by the id of their change; ``client``: of the client's."""

    name = spec = "keyed"

    def __init__(self, cache: Path, keys: Mapping[str, str], client: str = "") -> None:
        self.cache = EnvironmentCache(cache)
        self.keys = keys
        self.client_key = client

    def refuses(self, change: Change) -> Refusal | None:
        if change.id in self.keys:
            return None
        return Refusal(f"no environment of {change.short} was named", error=True)

    def key(self, change: Change) -> str:
        return self.keys[change.id]

    def cached(self, change: Change) -> bool:
        return change.id in self.keys

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        del log, timeout
        return self._find(self.key(change), change.short)

    def client(self) -> Environment | None:
        return self._find(self.client_key, "the client") if self.client_key else None

    def _find(self, key: str, what: str) -> Environment:
        environment = self.cache.find(key)
        if environment is None:
            raise MachineError(
                f"the environment of {what} is not on this machine: {key}",
                where=self.cache.folder(key),
                next_step="bring it there again",
            )
        return environment
