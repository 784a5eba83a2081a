"""``perfbisect.yaml`` at the root of the repository under test: what is typed every time."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from perfbisect.common.yaml_source import load, validate

FILE = "perfbisect.yaml"


class Settings(BaseModel):
    """Defaults for the options of the same names; what is typed goes before them.

    Paths may be relative to the file. ``env`` and ``client`` are environment specifications
    (docs/architecture.md); ``budget`` is a duration as the command line reads it (``3h``, ``90m``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    cell: str | None = Field(default=None, description="cell file or name, where none is given")
    env: str | None = Field(default=None, description="how a change gets an environment: NAME:ARGUMENT")
    client: str | None = Field(
        default=None, description="the client's environment: NAME:ARGUMENT, or 'change'"
    )
    state: str | None = Field(default=None, description="folder of journals, attempts and reports")
    cache: str | None = Field(default=None, description="folder of the environments")
    metric: str | None = Field(default=None, description="the metric that is judged")
    budget: str | None = Field(default=None, description="how long a bisection may measure")
    constraints: str | None = Field(default=None, description="file that pins the versions of dependencies")
    exclude_newer: str | None = Field(
        default=None, description="the day whose dependencies are used: 2026-11-01"
    )
    variant: str | None = Field(default=None, description="a variant of the cell, on all sides")
    machine: str | None = Field(default=None, description="the kind of machine: a name or a machine file")

    def path(self, name: str, root: Path) -> Path | None:
        """A setting that is a path, relative to ``root``, the folder of the file; None if unset."""
        value: str | None = getattr(self, name)
        return None if value is None else (root / Path(value).expanduser()).resolve()


def load_settings(root: Path | None) -> Settings:
    """The settings of a repository; all unset where there is no ``perfbisect.yaml``, or no repository.

    :raises LocatedError: an unknown key, a wrong type, no YAML: file, line, field, what is allowed.
    """
    if root is None or not (root / FILE).is_file():
        return Settings()
    document = load(root / FILE)
    if document.data is None:
        return Settings()
    return validate(document, Settings)
