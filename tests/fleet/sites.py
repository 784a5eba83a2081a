"""Sites: an engine with two machines, "fast" and "slow", on this host.

All that a site needs is in its folder: keys, configurations, daemons' files, and the homes of its machines.
"""

from __future__ import annotations

import getpass
import importlib.util
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest

from perfbisect.fleet.connection import Connection
from perfbisect.fleet.folders import FolderFleet
from perfbisect.fleet.hosts import FleetHost, HostSettings, read_hosts
from perfbisect.fleet.ray_cluster import RayCluster
from perfbisect.fleet.slurm import SlurmOptions, slurm_hosts
from perfbisect.system.processes import TOKEN_VARIABLE

MACHINES = ("fast", "slow")
_QUICK = f"{sys.executable} {Path(__file__).with_name('quick_agent.py')}"
MAIN = (sys.executable, "-c", "from perfbisect.cli import main; main()")
"""The command line of perfbisect."""
_REAL = shlex.join(MAIN)
_COMMAND = """\
#!/bin/sh
home={homes}/{name}
export PYTHONPATH={root} PERFBISECT_LOCKS=$home/locks PERFBISECT_STATE=$home/state OMP_NUM_THREADS=1
export PERFBISECT_CACHE={homes}/cache PERFBISECT_LIMITS=off PERFBISECT_BACKOFF=0.1
export CUDA_VISIBLE_DEVICES={name} HOLD=$home/hold MEASURED=$home/measured
unset PERFBISECT_TOKEN
[ ! -e "$home/variables" ] || . "$home/variables"
[ ! -e "$home/real" ] || exec {real} "$@"
exec {quick} "$@"
"""


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def await_that(happened: Callable[[], bool], what: str, seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def find_tool(name: str) -> str:
    """The path of a program, which many systems keep out of a user's PATH."""
    path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if path is None:
        pytest.fail(f"there is no {name}: make test-fleet installs it", pytrace=False)
    return path


def run_tool(name: str, *words: str) -> str:
    done = subprocess.run([find_tool(name), *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{name} {words}: {done.stderr}"
    return done.stdout


def start_daemon(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Started in the background: its log is where its configuration says. It ends with this process."""
    return subprocess.Popen(
        [find_tool("setpriv"), "--pdeathsig", "KILL", *command],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
    )  # fmt: skip


def _processes(wanted: Callable[[psutil.Process], bool]) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and wanted(process):
                yield process
        except psutil.Error:
            continue


def processes_below(folder: Path) -> list[psutil.Process]:
    """Processes that work in a folder or below it."""
    return list(_processes(lambda process: process.cwd().startswith(str(folder))))


class Site(ABC):
    """``folder``: of everything; its path is short, for the paths of sockets."""

    name: str
    is_shared = False
    """Whether its machines share the folder of the bundles."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.homes = folder, folder / "homes"

    def make(self) -> None:
        """Write what the machines need, before the first start."""
        for name in MACHINES:
            (self.homes / name).mkdir(parents=True)
        self._write_commands()

    def _write_commands(self) -> None:
        for name in MACHINES:
            self.write_command(self.homes / name / "agent", name)

    def write_command(self, path: Path, name: str) -> None:
        """Write how the agent of a machine is called; ``name`` may be a shell's expansion."""
        root = Path(__file__).parents[2]
        path.write_text(_COMMAND.format(homes=self.homes, name=name, root=root, real=_REAL, quick=_QUICK))
        path.chmod(0o755)

    @abstractmethod
    def fleet(self) -> FolderFleet:
        """A new object of the engine, as another process would make it."""

    @abstractmethod
    def start(self) -> None:
        """Start the daemons."""

    @abstractmethod
    def stop(self) -> None:
        """End the daemons and all that they started."""

    def bundle(self, machine: str, token: str) -> Path:
        folder = self.folder / "shared" if self.is_shared else self.homes / machine / "perfbisect"
        return folder / "bundles" / token

    def run_folder(self, token: str) -> Path:
        """The agent's own folder of a bundle, on whichever machine."""
        found = [self.bundle(name, token) / "run" for name in MACHINES]
        return next((folder for folder in found if folder.exists()), found[0])

    def use_real_agent(self) -> None:
        for name in MACHINES:
            (self.homes / name / "real").touch()

    def hold(self, machine: str = "fast") -> None:
        """Launches of a machine go on until :meth:`release`."""
        (self.homes / machine / "hold").touch()

    def release(self, machine: str = "fast") -> None:
        (self.homes / machine / "hold").unlink(missing_ok=True)

    def set_variables(self, machine: str, text: str) -> None:
        """Shell commands that run before the machine's agent."""
        (self.homes / machine / "variables").write_text(text)

    def clean(self) -> None:
        """Undo what a test set."""
        for name in MACHINES:
            for file in ("hold", "real", "variables", "measured"):
                (self.homes / name / file).unlink(missing_ok=True)

    def measured(self) -> list[str]:
        """Tokens of the launches that the quick agents made."""
        files = [self.homes / name / "measured" for name in MACHINES]
        return [line for file in files if file.exists() for line in file.read_text().split()]

    def agents(self, token: str) -> list[psutil.Process]:
        """The agent of a bundle, and the script that started it, which comes first."""
        folders = [str(self.bundle(name, token)) for name in MACHINES]
        return list(_processes(lambda process: process.cwd() in folders))

    def servers(self, token: str) -> list[psutil.Process]:
        """Processes of a bundle's launches."""
        journal = self.run_folder(token) / "journal.jsonl"
        text = journal.read_text() if journal.exists() else ""

        def is_of_it(process: psutil.Process) -> bool:
            launch = process.environ().get(TOKEN_VARIABLE, "").partition(".")[0]
            return bool(launch) and launch in text

        return list(_processes(is_of_it))

    def living(self, token: str) -> list[psutil.Process]:
        return self.agents(token) + self.servers(token)

    def kill_agent(self, token: str) -> None:
        """kill -9 of the agent and its script; its server lives on."""
        for process in self.agents(token):
            process.kill()
        await_that(lambda: not self.agents(token), "a killed agent lives")

    def fill_disk(self, machine: str, token: str) -> None:
        """Agents of the machine, also one that runs, cannot write from now on, as on a full disk.

        By the limit of a file's size, which needs no mount: a write fails with EFBIG in place of ENOSPC.
        """
        self.set_variables(machine, "ulimit -f 0\n")
        for process in self.agents(token):
            process.rlimit(psutil.RLIMIT_FSIZE, (0, 0))


class FolderSite(Site):
    """Machines that commands reach without ssh: folders of this host."""

    name = "folders"

    def fleet(self) -> FolderFleet:
        hosts = [
            FleetHost(
                name,
                Connection(),
                HostSettings(
                    folder=str(self.homes / name / "perfbisect"),
                    command=(str(self.homes / name / "agent"),),
                    profile="cpu",
                ),
            )
            for name in MACHINES
        ]
        return FolderFleet("folders", lambda: hosts)

    def start(self) -> None:
        """There is none."""

    def stop(self) -> None:
        """There is none."""


_SSHD = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
"""

_HOSTS = """\
options: [-F, none, -p, "{port}", -i, {folder}/key, -o, IdentitiesOnly=yes, -o, LogLevel=ERROR,
  -o, StrictHostKeyChecking=no, -o, UserKnownHostsFile={folder}/known_hosts]
profile: cpu
hosts:
"""

_HOST = """\
- {{name: {name}, address: "{user}@127.0.0.1", folder: {home}/perfbisect, command: [{home}/agent]}}
"""


class SshSite(Site):
    """Two machines behind one sshd, which listens on the loopback."""

    name = "ssh"

    def make(self) -> None:
        super().make()
        self._port = free_port()
        for key in ("host_key", "key"):
            run_tool("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key))
        (self.folder / "sshd_config").write_text(_SSHD.format(folder=self.folder, port=self._port))
        entries = [
            _HOST.format(name=name, user=getpass.getuser(), home=self.homes / name) for name in MACHINES
        ]
        hosts = _HOSTS.format(folder=self.folder, port=self._port) + "".join(entries)
        (self.folder / "hosts.yaml").write_text(hosts)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # no option of sshd moves it

    def fleet(self) -> FolderFleet:
        hosts = read_hosts(self.folder / "hosts.yaml")
        return FolderFleet("ssh", lambda: hosts)

    def start(self) -> None:
        self._sshd = start_daemon(
            [find_tool("sshd"), "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.folder / "log")]
        )
        await_that(self._answers, "sshd does not listen")

    def _answers(self) -> bool:
        assert self._sshd.poll() is None, (self.folder / "log").read_text()
        with socket.socket() as connecting:
            return connecting.connect_ex(("127.0.0.1", self._port)) == 0

    def kill_connections(self) -> int:
        """kill -9 of sshd's process of each connection; returns how many there were."""
        connections = psutil.Process(self._sshd.pid).children()
        for connection in connections:
            for process in (*connection.children(recursive=True), connection):
                if process.name().startswith("sshd"):
                    process.kill()
        psutil.wait_procs(connections, timeout=10)
        return len(connections)

    def stop(self) -> None:
        self.kill_connections()
        self._sshd.kill()
        self._sshd.wait()


_SLURM = """\
ClusterName=perfbisect
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SchedulerType=sched/builtin
SchedulerParameters=sched_min_interval=10000
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ReturnToService=2
SlurmdTimeout=6
KillWait=5
MessageTimeout=5
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmSite(Site):
    """A cluster of two nodes with its own munge; the nodes share the folder of the bundles."""

    name = "slurm"
    is_shared = True

    def make(self) -> None:
        super().make()
        self.write_command(self.folder / "agent", "$SLURMD_NODENAME")
        host, user = platform.node(), getpass.getuser()
        ports = [free_port() for _ in range(3)]
        cores = len(os.sched_getaffinity(0))
        nodes = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cores}"
            for name, port in zip(MACHINES, ports[1:], strict=True)
        ]
        (self.folder / "slurm.conf").write_text(
            _SLURM.format(folder=self.folder, host=host, user=user, ports=ports, nodes="\n".join(nodes))
        )
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # the other needs systemd
        for part in ("munge", "controller", *MACHINES):
            (self.folder / part).mkdir(mode=0o755)
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._conf = patch.dict(os.environ, SLURM_CONF=str(self.folder / "slurm.conf"))

    def fleet(self) -> FolderFleet:
        nodes = partial(
            slurm_hosts, SlurmOptions(), str(self.folder / "shared"), (str(self.folder / "agent"),)
        )
        return FolderFleet("slurm", cache(nodes))

    def start(self) -> None:
        self._conf.start()
        words = ["key-file=key", "socket=socket", "pid-file=pid", "log-file=log", "seed-file=seed"]
        paths = [f"--{name}={self.folder}/munge/{file}" for name, file in (word.split("=") for word in words)]
        self._daemons["munge"] = start_daemon([find_tool("munged"), "--foreground", "--force", *paths])
        self.start_controller()
        for name in MACHINES:
            self.start_node(name)

    def start_controller(self, *, forgets: bool = False) -> None:
        """Start slurmctld; ``forgets``: without what the one before knew of jobs."""
        await_that((self.folder / "munge" / "socket").exists, "munged does not listen")
        self._daemons["controller"] = start_daemon(
            [find_tool("slurmctld"), "-D", *(["-c"] if forgets else [])]
        )

    def start_node(self, name: str) -> None:
        """Start slurmd; returns once its node takes jobs."""
        self._daemons[name] = start_daemon([find_tool("slurmd"), "-D", "-N", name])
        self.await_node(name)

    def await_node(self, name: str) -> None:
        def is_idle() -> bool:
            for daemon, log in (("controller", "controller.log"), (name, f"{name}.log")):
                assert self._daemons[daemon].poll() is None, (self.folder / log).read_text()
            return self.node_state(name) in ("idle", "mixed", "allocated")

        await_that(is_idle, f"node {name} takes no jobs")

    def node_state(self, name: str) -> str:
        words = [find_tool("sinfo"), "--noheader", f"--nodes={name}", "--format=%T"]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()

    def save_jobs(self) -> None:
        """Wait until slurmctld has saved the jobs as they are, which it does seconds after a change."""
        saved = self.folder / "controller" / "job_state"
        before = time.time()
        run_tool("srun", "--nodelist=slow", "true")
        await_that(lambda: saved.exists() and saved.stat().st_mtime > before, "slurmctld saves nothing")

    def kill_controller(self) -> None:
        """kill -9 of slurmctld."""
        self._end("controller")

    def kill_slurmd(self, name: str) -> None:
        """kill -9 of slurmd; its jobs go on."""
        self._end(name)

    def kill_node(self, name: str) -> None:
        """A node's power cut: slurmd, and all that it started."""
        self._end(name)
        conf = os.environ["SLURM_CONF"]

        def is_of_it(process: psutil.Process) -> bool:
            variables = process.environ()
            words = process.cmdline()
            is_step = words[:1] == [f"slurmstepd-{name}"] or f"-N{name}" in words
            return variables.get("SLURM_CONF") == conf and (
                variables.get("SLURMD_NODENAME") == name or is_step
            )

        def kill_all() -> bool:
            left = list(_processes(is_of_it))
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            return not left

        await_that(kill_all, f"node {name} lives")

    def _end(self, name: str) -> None:
        self._daemons[name].kill()
        self._daemons[name].wait()

    def stop(self) -> None:
        with ExitStack() as all_of_it:
            all_of_it.callback(self._conf.stop)
            for name in self._daemons:
                all_of_it.callback(self.kill_node if name in MACHINES else self._end, name)


class RaySite(Site):
    """A cluster of two nodes on the loopback; they share the folder of the bundles."""

    name = "ray"
    is_shared = True

    def make(self) -> None:
        super().make()
        if importlib.util.find_spec("ray") is None:
            pytest.fail("there is no Ray: make test-fleet installs it", pytrace=False)
        self.write_command(self.folder / "agent", "$SITE_MACHINE")
        (self.folder / "ray").mkdir()
        variables = {
            "RAY_TMPDIR": str(self.folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps Ray on the loopback
            "RAY_enable_worker_prestart": "0",
            "RAY_ADDRESS": "127.0.0.1:1",  # of another cluster
        }
        self._variables = patch.dict(os.environ, variables)

    def fleet(self) -> FolderFleet:
        options = HostSettings(
            folder=str(self.folder / "shared"), command=(str(self.folder / "agent"),), profile="cpu"
        )
        self.cluster = RayCluster((self.folder / "address").read_text(), options)
        return FolderFleet("ray", self.cluster.hosts)

    def start(self) -> None:
        self._variables.start()
        with (self.folder / "cluster.log").open("wb") as log:
            self._cluster = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("ray_nodes.py")), str(self.folder / "address")],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
            )
        for name in MACHINES:
            self.start_node(name)

    def start_node(self, name: str) -> None:
        """Start a node; returns once it takes actors."""
        self._tell("start", name, lambda: self._mark(name).exists())

    def kill_node(self, name: str) -> None:
        """kill -9 of a node's daemon; its actors end by themselves, and perfbisect's agents go on."""
        actors = self._actors(name)
        self._tell("kill", name, lambda: not self._mark(name).exists() and not any(map(_lives, actors)))

    def _mark(self, name: str) -> Path:
        return self.folder / f"address.{name}"

    def _tell(self, verb: str, name: str, is_done: Callable[[], bool]) -> None:
        assert self._cluster.stdin is not None
        self._cluster.stdin.write(f"{verb} {name}\n".encode())
        self._cluster.stdin.flush()

        def is_told() -> bool:
            assert self._cluster.poll() is None, (self.folder / "cluster.log").read_text()
            return is_done()

        await_that(is_told, f"Ray does not {verb} node {name}", 120.0)

    def kill_actors(self) -> int:
        """kill -9 of the actors on all nodes; returns how many there were."""
        actors = self.actors()
        for actor in actors:
            with suppress(psutil.NoSuchProcess):  # it ended by itself meanwhile
                actor.kill()
        return len(actors)

    def actors(self) -> list[psutil.Process]:
        return [actor for name in MACHINES for actor in self._actors(name)]

    def _actors(self, machine: str) -> list[psutil.Process]:
        def is_one(process: psutil.Process) -> bool:
            is_actor = process.cmdline()[0].startswith("ray::PerfbisectCommands")
            return is_actor and process.environ().get("SITE_MACHINE") == machine

        return self._of_ray(is_one)

    def kill_relay(self) -> None:
        """kill -9 of the process through which the newest fleet speaks to Ray."""
        relay = self.cluster._relay
        assert relay is not None
        relay.kill()
        relay.wait()

    def _of_ray(self, wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
        """Processes of this site's cluster."""

        def is_one(process: psutil.Process) -> bool:
            return (
                bool(process.cmdline())
                and wanted(process)
                and str(self.folder) in (process.environ().get("RAY_TMPDIR", ""))
            )

        return list(_processes(is_one))

    def stop(self) -> None:
        assert self._cluster.stdin is not None
        self._cluster.stdin.close()
        try:
            self._cluster.wait(30)
        finally:
            self._cluster.kill()
            self._cluster.wait()
            for process in self._of_ray(lambda process: process.pid != os.getpid()):
                with suppress(psutil.Error):
                    process.kill()
            self._variables.stop()


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


SITES: dict[str, type[Site]] = {site.name: site for site in (FolderSite, SshSite, SlurmSite, RaySite)}
SOME_SITES = (
    "folders",
    pytest.param("ssh", marks=pytest.mark.fleet),
    pytest.param("slurm", marks=pytest.mark.fleet),
    pytest.param("ray", marks=[pytest.mark.fleet, pytest.mark.ray]),
)
"""Of tests that each engine passes; those with daemons are not in ``make test``."""
