"""perfbisect on a machine of a fleet: ``perfbisect agent install``.

``FOLDER/agents/VERSION-DIGEST/`` is a virtual environment made by the uv that is sent along; ``FOLDER/agent``
links to it once it works. Machines need Python and no package index of their own where ``wheels`` are sent.
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import IO, Annotated, Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field

import perfbisect
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Argument, Option, prints
from perfbisect.commands.workspace import Workspace
from perfbisect.common.text import hint
from perfbisect.environments.uv import find_uv
from perfbisect.errors import MachineError, UsageError
from perfbisect.fleet.hosts import FleetHost
from perfbisect.fleet.specs import build_hosts, make_fleet, split_fleet
from perfbisect.jobs.documents import Document
from perfbisect.system.commands import capture
from perfbisect.system.logs import excerpt_lines

_INSTALL_S = 1800.0

_FACTS = 'uname -sm; [ -x "$1/bin/uv" ] && "$1/bin/uv" --version; true'

_UNPACK_WHEELS = 'umask 022; rm -rf "$1/wheels"; mkdir -p "$1/wheels" && tar -C "$1/wheels" -xf -'

_PUT_UV = """\
mkdir -p "$1/bin" && cd "$1/bin" && cat > uv.part && chmod 755 uv.part && mv uv.part uv
"""

_INSTALL = """\
folder=$1 name=$2
shift 2
cd "$folder" || exit 1
environment=$PWD/agents/$name
if [ ! -e "$environment/complete" ]; then
  rm -rf "$environment"
  bin/uv venv --quiet "$environment" || exit 1
  bin/uv pip install --quiet --python "$environment/bin/python" --find-links wheels "$@" \\
    wheels/perfbisect-*.whl || exit 1
  touch "$environment/complete"
fi
ln -sfn "$environment" agent.new && mv -T agent.new agent && agent/bin/perfbisect --version
"""


class InstalledDocument(Document):
    """``perfbisect agent install``: the version that answers on each machine."""

    schema_: Literal["perfbisect.agent-install/1"] = Field(
        default="perfbisect.agent-install/1", alias="schema"
    )
    versions: Mapping[str, str]


@prints("perfbisect.fleet.install:InstalledDocument")
def install(
    workspace: Workspace,
    *,
    hosts: Annotated[tuple[str, ...], Argument("HOST...")],
    fleet: Annotated[str, Option("The machines: ssh:hosts.yaml or ray:ADDRESS.", metavar="SPEC")],
    wheels: Annotated[
        Path | None,
        Option("Folder with wheels of all dependencies, for machines without a package index."),
    ] = None,
) -> CommandResult:
    """Install this version of perfbisect into its folder on each HOST, with the uv that is sent along.

    \b
    Examples:
      perfbisect agent install box1 box2 --fleet ssh:hosts.yaml
      perfbisect agent install box1 --fleet ssh:hosts.yaml --wheels wheels
      perfbisect agent install gpu-node-1 --fleet ray:auto

    Exit code: 0; 2 no such host; 5 a machine does not answer, or the installation failed there.
    """
    listed = make_fleet(fleet, workspace.state)
    if any(name == "slurm" for name, _ in split_fleet(fleet)):
        raise UsageError(
            f"--fleet {fleet}: perfbisect is installed on machines that ssh or Ray reaches only",
            next_step="--fleet ssh:hosts.yaml or ray:ADDRESS; Slurm's nodes share the one that is here",
        )
    known = {host.name: host for host in (*listed.hosts(), *build_hosts(fleet))}
    for name in hosts:
        if name not in known:
            raise UsageError(
                f"{fleet} has no machine {name!r}{hint(name, known)}", next_step=f"one of {', '.join(known)}"
            )
    if wheels is not None and not any(wheels.glob("*.whl")):
        raise UsageError(
            "--wheels: no wheel is there",
            where=wheels,
            next_step=f"pip download --only-binary :all: -d {wheels} -r requirements/runtime.txt",
        )
    with tempfile.TemporaryDirectory() as folder:
        wheel = _own_wheel(Path(folder))
        machines = {name: known[name].below(known[name].home()) for name in hosts}
        versions = {name: _install_on(host, wheel, wheels) for name, host in machines.items()}
    lines = [f"{name}: perfbisect {version}" for name, version in versions.items()]
    return CommandResult(InstalledDocument(versions=versions), lines)


def _own_wheel(folder: Path) -> Path:
    """A wheel of the perfbisect that runs, in ``folder``.

    Raises:
        MachineError: it cannot be made.
    """
    installed = distribution("perfbisect")
    try:
        direct = json.loads(installed.read_text("direct_url.json") or "{}")
    except ValueError:
        direct = {}
    if not direct.get("dir_info", {}).get("editable", False):
        return _repacked(installed, folder)
    source = Path(unquote(urlsplit(direct["url"]).path))
    argv = [str(find_uv()), "build", "--quiet", "--wheel", "--python", sys.executable]
    # Without isolation the build needs no package index, if setuptools is installed.
    for isolation in (["--no-build-isolation"], []):
        done = capture([*argv, *isolation, "--out-dir", str(folder), str(source)], _INSTALL_S)
        if done.returncode == 0:
            return next(folder.glob("perfbisect-*.whl"))
    raise MachineError(f"no wheel of perfbisect can be made: {excerpt_lines(done.stderr, 500)}", where=source)


def _repacked(installed: Distribution, folder: Path) -> Path:
    """The wheel that an installation came from, but for what an installer adds."""
    added = ("INSTALLER", "REQUESTED", "direct_url.json", "RECORD")
    files = [
        file
        for file in installed.files or ()
        if ".." not in file.parts and "__pycache__" not in file.parts and file.name not in added
    ]
    info = next(file.parts[0] for file in files if file.parts[0].endswith(".dist-info"))
    path = folder / f"perfbisect-{installed.version}-py3-none-any.whl"
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in files:
            data = Path(str(installed.locate_file(file))).read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{file.as_posix()},sha256={digest},{len(data)}")
            wheel.writestr(file.as_posix(), data)
        wheel.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
    return path


def _install_on(host: FleetHost, wheel: Path, wheels: Path | None) -> str:
    """Install a wheel of perfbisect on a machine; returns the version that answers there.

    ``wheels``: a folder with the wheels of all dependencies, for a machine without a package index.

    Raises:
        MachineError: the machine does not answer, or the installation failed.
    """
    folder = host.folder
    facts = _run(host, "look at", _FACTS, folder).splitlines()
    here = f"{platform.system()} {platform.machine()}"
    if facts[:1] != [here]:
        raise MachineError(f"{host.name} is {facts[0] if facts else 'unknown'}, and uv here is for {here}")
    if len(facts) < 2:
        with find_uv().open("rb") as binary:
            _run(host, "send uv to", _PUT_UV, folder, given=binary)
    sent = [wheel, *(sorted(wheels.glob("*.whl")) if wheels is not None else ())]
    _send(host, sent)
    # A digest of the members: a wheel's own depends on when it was made.
    with zipfile.ZipFile(wheel) as archive:
        rows = sorted(f"{member.filename} {member.CRC}" for member in archive.infolist())
    digest = hashlib.sha256("\n".join(rows).encode()).hexdigest()[:12]
    name = f"{perfbisect.__version__}-{digest}"
    # Where wheels are sent the machine may have no network at all.
    offline = ["--offline", "--no-index"] if wheels is not None else []
    answer = _run(host, "install perfbisect on", _INSTALL, folder, name, *offline)
    return answer.splitlines()[0].split()[-1]


def _send(host: FleetHost, wheels: Sequence[Path]) -> None:
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for wheel in wheels:
                archive.add(wheel, wheel.name)
        packed.seek(0)
        _run(host, "send wheels to", _UNPACK_WHEELS, host.folder, given=packed)


def _run(host: FleetHost, what: str, script: str, *arguments: str, given: bytes | IO[bytes] = b"") -> str:
    answer = host.connection.run_script(script, *arguments, given=given, timeout=_INSTALL_S)
    return answer.checked(f"{what} {host.name}", host.folder).text
