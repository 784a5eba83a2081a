"""A pretend ``ssh``: a "machine" is a folder with an ``env`` file; commands run there, without a network."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_SSH = """\
#!/bin/sh
while [ "$1" != -- ]; do shift; done
machine={machines}/$2
shift 2
if [ ! -d "$machine" ] || [ -e "$machine/down" ]; then
  echo "ssh: connect to host: No route to host" >&2
  exit 255
fi
cd "$machine" || exit 255
unset PERFBISECT_STATE
set -a
. ./env
exec sh -c "$*"
"""

_AGENT = """\
#!/bin/sh
exec {python} -c "from perfbisect.cli import main; main()" "$@"
"""


@dataclass(frozen=True)
class PretendMachines:
    """Machines below a folder, and the ``ssh`` that reaches them."""

    folder: Path

    def __post_init__(self) -> None:
        bin_folder = self.folder / "bin"
        bin_folder.mkdir(parents=True)
        ssh = bin_folder / "ssh"
        ssh.write_text(_SSH.format(machines=self.folder))
        ssh.chmod(0o755)

    def path(self, before: str) -> str:
        """PATH with the pretend ssh first."""
        return f"{self.folder / 'bin'}:{before}"

    def add(self, name: str, **variables: str) -> Path:
        """Make a machine whose commands see these variables; returns its home folder."""
        home = self.folder / name
        agent = home / ".perfbisect" / "agent" / "bin" / "perfbisect"
        agent.parent.mkdir(parents=True)
        agent.write_text(_AGENT.format(python=sys.executable))
        agent.chmod(0o755)
        values: Mapping[str, str] = {"HOME": str(home), "PERFBISECT_LOCKS": str(home / "locks"), **variables}
        (home / "env").write_text("".join(f"{key}='{value}'\n" for key, value in values.items()))
        return home

    def bundles(self, name: str) -> list[Path]:
        """Folders of the bundles that a machine was sent."""
        return sorted((self.folder / name / ".perfbisect" / "bundles").glob("*"))
