"""A stand-in for podman: images are folders, ``run`` starts this Python with the folder on its path.

Not a container: it proves what is asked of the tool, not what podman does with it (tests/images does).
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
from pathlib import Path


def install(folder: Path, store: Path, name: str = "podman") -> Path:
    """Put the command into a new folder, to be first on PATH.

    ``store``: folders ``NAME=TAG``, with ``%`` for slashes, of ``image.json`` and the engine's package.
    """
    folder.mkdir()
    here = str(Path(__file__).parents[2])
    lines = (f"#!{sys.executable}", "import sys", f"sys.path.insert(0, {here!r})")
    more = ("from tests.fakes.container_tool import main", f"main({str(store)!r}, *sys.argv[1:])")
    (folder / name).write_text("\n".join((*lines, *more)))
    (folder / name).chmod(0o755)
    return folder


def main(store: str, command: str, *words: str) -> None:
    found = {path.parent: json.loads(path.read_text()) for path in sorted(Path(store).glob("*/image.json"))}
    named = {folder.name.replace("%", "/").replace("=", ":"): image for folder, image in found.items()}
    if command == "images":
        print("\n".join(f"{name} {image['Id']}" for name, image in named.items()))
    elif command == "image":
        rows = [image for name, image in named.items() if words[1] in (name, image["Id"])]
        print(json.dumps(rows))
        sys.exit(0 if rows else 125)
    elif command == "manifest":
        unknown = "manifest unknown" if "missing" in words[1] else "dial tcp: connection refused"
        sys.exit(f"Error: reading manifest: {unknown}")
    elif command == "save":
        folder = next(folder for folder, image in found.items() if image["Id"] == words[-1])
        with tarfile.open(words[words.index("--output") + 1], "w") as archive:
            archive.add(folder, ".")
    elif command == "load":
        with tarfile.open(words[words.index("--input") + 1]) as archive:
            archive.extractall(Path(store) / f"<none>={len(found)}")
    elif command == "run":
        run(next(folder for folder, image in found.items() if image["Id"] in words), words)
    else:
        print(f"pretend {command}")


def run(root: Path, words: tuple[str, ...]) -> None:
    """Start the program of a ``run`` command in place of this one."""
    entry = next(place for place, word in enumerate(words) if word.startswith("--entrypoint="))
    given = [words[place + 1].partition("=") for place, word in enumerate(words[:entry]) if word == "--env"]
    env = {name: value if mark else os.environ[name] for name, mark, value in given}
    os.execve(sys.executable, [sys.executable, *words[entry + 2 :]], {**env, "PYTHONPATH": str(root)})
