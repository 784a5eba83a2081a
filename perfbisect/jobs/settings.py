"""Where and with what a job measures, as data."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Data(BaseModel):
    """A part of a plan: frozen, and every key that is not named is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Setting(Data):
    """Where and with what is measured: how the user wrote it, so that it can be made again."""

    repository: str = ""
    cache: str = ""
    environment: str
    client: str = ""
    """Specification of the client's environment; empty: the environment's own pinned one."""
    exclude_newer: str = ""
    constraints: str = ""
    machine: str = ""
    """Name or file of the kind of machine; empty: what this machine is taken for."""
    typed: str = ""
    """The perfbisect command as typed."""

    @property
    def instrument(self) -> str:
        """The client in words."""
        if self.client == "change":
            return "each change's own"
        return self.client or "one, pinned: that of --env, or where it has none the newest change's"
