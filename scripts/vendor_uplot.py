"""Builds uPlot into the package: ``python -m scripts.vendor_uplot``; needs npm.

The plotting script and its style are those of the npm package, which has to have the recorded digest. The
license stands at the head of the script, so that every page with figures carries it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

VERSION = "1.6.32"
SHA512 = "KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw=="
"""Of the package's archive, as the registry and lock files of npm write it."""

TARGET = Path(__file__).parent.parent / "perfbisect" / "report" / "vendor"


def built(archive: bytes) -> Mapping[str, str]:
    """The files to ship, by name. :raises ValueError: the archive is not that of the recorded version."""
    if base64.b64encode(hashlib.sha512(archive).digest()).decode() != SHA512:
        raise ValueError(f"this is not the archive of uPlot {VERSION}: its SHA-512 differs")
    with tarfile.open(fileobj=io.BytesIO(archive)) as package:

        def text(name: str) -> str:
            member = package.extractfile(f"package/{name}")
            assert member is not None, name
            return member.read().decode("utf-8")

        license_text = text("LICENSE")
        script = f"/*!\n{license_text.strip()}\n*/\n{text('dist/uPlot.iife.min.js')}"
        return {"LICENSE": license_text, "uplot.js": script, "uplot.css": text("dist/uPlot.min.css")}


def main() -> None:
    """Fetch the archive with npm and write the files."""
    with tempfile.TemporaryDirectory() as folder:
        command = ("npm", "pack", "--silent", f"uplot@{VERSION}", "--pack-destination", folder)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).iterdir()
        files = built(archive.read_bytes())
    TARGET.mkdir(exist_ok=True)
    for name, content in files.items():
        (TARGET / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
