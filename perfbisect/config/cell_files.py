"""Cell documents -> files that read back as the same cells."""

from __future__ import annotations

from pathlib import Path

import yaml

from perfbisect.config.specifications import Imported


def write_cell(folder: Path, imported: Imported) -> Path:
    """Writes a cell file with what lies beside it; returns its path.

    :raises OSError: the folder cannot be written.
    """
    for name, text in imported.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    path = folder / f"{imported.stem}.yaml"
    text = yaml.safe_dump(dict(imported.document), sort_keys=False, allow_unicode=True, width=100)
    path.write_text(text, encoding="utf-8")
    return path
