"""``perfbisect.yaml`` at the root of the repository under test: defaults of options."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from perfbisect.common.yaml_source import load, validate

FILE = "perfbisect.yaml"


class Settings(BaseModel):
    """Defaults of the options of the same names. Paths may be relative to the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    cell: str | None = Field(default=None, description="cell file or name")
    env: str | None = Field(default=None, description="how a change gets an environment: NAME:ARGUMENT")
    client: str | None = Field(default=None, description="the client's: NAME:ARGUMENT, or 'change'")
    state: str | None = Field(default=None, description="folder of journals, attempts and reports")
    cache: str | None = Field(default=None, description="folder of the environments")
    metric: str | None = Field(default=None, description="the metric that is judged")
    budget: str | None = Field(default=None, description="how long a bisection may measure: 3h, 90m")
    constraints: str | None = Field(default=None, description="file that pins the versions of dependencies")
    exclude_newer: str | None = Field(default=None, description="the day of the dependencies: 2026-11-01")
    variant: str | None = Field(default=None, description="a variant of the cell, on all sides")
    machine: str | None = Field(default=None, description="the kind of machine: a name or a machine file")
    fleet: str | None = Field(
        default=None, description="machines that measure: ssh:hosts.yaml, slurm, ray:auto"
    )

    def path(self, name: str, root: Path) -> Path | None:
        """A setting that is a path, relative to the folder of the file; None if unset."""
        value: str | None = getattr(self, name)
        return None if value is None else (root / Path(value).expanduser()).resolve()


def load_settings(root: Path | None) -> Settings:
    """The settings of a repository, unset without ``perfbisect.yaml``. :raises LocatedError: invalid."""
    if root is None or not (root / FILE).is_file():
        return Settings()
    document = load(root / FILE)
    return Settings() if document.data is None else validate(document, Settings)
