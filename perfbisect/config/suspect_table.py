"""The table behind a ranking of suspects: the shipped one, or the user's own in its place."""

from __future__ import annotations

from pathlib import Path

from perfbisect.config.validation import validate
from perfbisect.config.yaml_lines import load
from perfbisect.core.suspect_table import Table

SHIPPED = Path(__file__).with_name("suspects.yaml")


def load_suspect_table(path: Path = SHIPPED) -> Table:
    """The table of a file.

    :raises UsageError: the file cannot be read.
    :raises LocatedError: a key, weight or pattern that is wrong: file, line, field, what is allowed.
    """
    return validate(load(path), Table)
