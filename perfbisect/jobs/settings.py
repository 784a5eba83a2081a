"""A job's repository, environment, client and machine."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class PlanPart(BaseModel):
    """A frozen part of a plan that rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MeasurementConfig(PlanPart):
    """The measurement configuration as typed, enough to rebuild it on resume."""

    repository: str = ""
    cache: str = ""
    environment: str
    client: str = ""
    """Specification of the client's environment; empty: pinned by the environment."""
    exclude_newer: str = ""
    constraints: str = ""
    machine: str = ""
    """Machine profile by name or file; empty: detected."""
    typed: str = ""
    """The command line."""

    @property
    def instrument(self) -> str:
        """Description of the client."""
        if self.client == "change":
            return "each change's own"
        return self.client or "one, pinned: that of --env, or where it has none the newest change's"
