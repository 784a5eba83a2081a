"""An interpreter inside a container image: runs ``python ARGUMENTS`` there, with the caller's environment.

:mod:`perfbisect.environments.builders.image` copies it into environments as ``bin/python``, beside a
:class:`Container` in ``container.json``. Standard library only. The process becomes the container tool's:
signals, output and exit code are those of the program inside, whose processes keep ``PERFBISECT_TOKEN``.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pwd
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SETTINGS = "container.json"
LABEL = "perfbisect.token"

_PATHS = (
    "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_ASSETS_CACHE", "HUGGINGFACE_HUB_CACHE",
    "HF_TOKEN_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "TMPDIR",
)  # fmt: skip
"""Variables that name a file or folder of the host, which is mounted at the same path."""

TOOL_VARIABLES = frozenset({
    "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF", "CONTAINER_HOST",
    "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG",
    "ENROOT_CONFIG_PATH", "ENROOT_CACHE_PATH", "ENROOT_DATA_PATH", "ENROOT_RUNTIME_PATH",
    "SLURM_JOB_ID", "SLURM_CONF",
    "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS",
})  # fmt: skip
"""Variables of the tools, which stay outside."""

_OF_HOST = TOOL_VARIABLES | {
    "PATH", "HOME", "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "CUDA_HOME", "CUDA_PATH", "NVIDIA_VISIBLE_DEVICES",
}  # fmt: skip
"""Variables that describe the host; an image has its own."""

_MASK = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Container:
    """What an environment's interpreter runs in.

    ``image``: its id, or for ``enroot`` and ``pyxis`` a file in the environment's folder. ``arguments``:
    further ones of the tool.
    """

    tool: str
    image: str
    python: str
    arguments: Sequence[str]


@dataclass(frozen=True)
class ContainerHost:
    """What a container gets of its host.

    ``cores``: the processors that the caller may use, empty for all. ``nvidia``: it has NVIDIA devices.
    ``amd``: groups of its AMD devices, empty without any.
    """

    user: int
    group: int
    cores: tuple[int, ...] = ()
    nvidia: bool = False
    amd: tuple[int, ...] = ()


@dataclass(frozen=True)
class ContainerRun:
    """A program to run in a container.

    ``env``: its variables. ``mounts``: paths that are the same inside. ``gpus``: NVIDIA devices, by the
    driver's number or UUID.
    """

    folder: Path
    cwd: Path
    arguments: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[str, ...]
    gpus: tuple[str, ...]
    host: ContainerHost


def model_cache(environ: Mapping[str, str], folder: Path) -> str:
    """The hub's folder of downloaded models; in the environment's ``folder`` for a user who has no home."""
    home = environ.get("HOME", "")
    if not home:
        with suppress(KeyError):
            home = pwd.getpwuid(os.getuid()).pw_dir
    caches = environ.get("XDG_CACHE_HOME") or f"{home or folder / 'caches' / 'home'}/.cache"
    return environ.get("HF_HOME") or f"{caches}/huggingface"


def prepare_run(
    folder: Path, cwd: Path, arguments: Sequence[str], environ: Mapping[str, str], host: ContainerHost
) -> ContainerRun:
    """Select variables, mounts and devices; ``folder``: the environment's.

    Arguments that are paths of the host are mounted too: a model's folder, a chat template.
    """
    env = {
        name: value
        for name, value in environ.items()
        if name not in _OF_HOST and (value or not name.startswith("PYTHON"))
    }
    env |= {"HF_HOME": model_cache(environ, folder), "USER": environ.get("USER") or str(host.user)}
    gpus = tuple(filter(None, environ.get(_MASK, "all").split(","))) if host.nvidia else ()
    if gpus and all(gpu.isdigit() for gpu in gpus):
        # Inside, devices are counted from 0, in the driver's order.
        order = sorted(gpus, key=int)
        env[_MASK] = ",".join(str(order.index(gpu)) for gpu in gpus)
    layers, paths = env.get("PYTHONPATH", "").split(":"), (env.get(name, "") for name in _PATHS)
    mounts: list[Path] = []
    words = (str(folder), str(cwd), *arguments, *layers, *paths)
    for path in sorted({Path(word) for word in words if word.startswith("/")}):
        is_there = path != path.parent and os.access(path, os.F_OK)
        if is_there and not any(map(path.is_relative_to, mounts)):
            mounts.append(path)
    return ContainerRun(folder, cwd, tuple(arguments), env, tuple(map(str, mounts)), gpus, host)


def _variables(launch: ContainerRun) -> list[str]:
    """Variables by name, so that their values are not in the process table."""
    words = (*sorted(launch.env), f"HOME={launch.folder / 'caches' / 'home'}")
    return [part for word in words for part in ("--env", word)]


def _container_words(container: Container, launch: ContainerRun, words: Sequence[str]) -> list[str]:
    """Arguments of podman and docker.

    The network is the host's: the server's port is then its own process's, without a proxy before it. Process
    ids are the container's: none outlives its first process, which ``--init`` keeps apart from the engine.
    """
    host = launch.host
    run = ["run", "--rm", "--init", "--pull=never", "--network=host", "--ipc=host", "--log-driver=none"]
    run += ["--cap-drop=all", "--security-opt=no-new-privileges", "--security-opt=label=disable"]
    run += [f"--user={host.user}:{host.group}", f"--workdir={launch.cwd}"]
    run += [f"--label={LABEL}={launch.env.get('PERFBISECT_TOKEN', '')}"]
    for path in launch.mounts:
        row = io.StringIO()
        csv.writer(row, lineterminator="").writerow(("type=bind", f"source={path}", f"target={path}"))
        run += ["--mount", row.getvalue()]
    if host.amd:
        run += ["--device=/dev/kfd", "--device=/dev/dri"]
    program = (f"--entrypoint={container.python}", container.image, *launch.arguments)
    return [container.tool, *run, *_variables(launch), *words, *container.arguments, *program]


def podman(container: Container, launch: ContainerRun) -> list[str]:
    words = ["--http-proxy=false", *(f"--device=nvidia.com/gpu={gpu}" for gpu in launch.gpus)]
    words += ["--userns=keep-id"] if launch.host.user else []
    words += ["--group-add=keep-groups"] if launch.host.amd else []
    return _container_words(container, launch, words)


def docker(container: Container, launch: ContainerRun) -> list[str]:
    """A daemon starts the container, so the caller's cores and groups are not inherited."""
    words = [f"--group-add={group}" for group in launch.host.amd]
    words += [f"--cpuset-cpus={','.join(map(str, launch.host.cores))}"] if launch.host.cores else []
    if launch.gpus:
        listed = ",".join(launch.gpus)
        words.append("--gpus=all" if listed == "all" else f'--gpus="device={listed}"')
    return _container_words(container, launch, words)


def enroot(container: Container, launch: ContainerRun) -> list[str]:
    """Processes, user and network are the host's; a hook of enroot's mounts the devices."""
    words = [part for path in launch.mounts for part in ("--mount", f"{path}:{path}")]
    words += [*_variables(launch), "--env", f"NVIDIA_VISIBLE_DEVICES={','.join(launch.gpus) or 'void'}"]
    image = str(launch.folder / container.image)
    return ["enroot", "start", *words, *container.arguments, image, container.python, *launch.arguments]


def pyxis(container: Container, launch: ContainerRun) -> list[str]:
    """A step of the Slurm job in which perfbisect runs; Slurm selects the devices."""
    mounts = ",".join(f"{path}:{path}" for path in launch.mounts)
    words = [f"--container-image={launch.folder / container.image}", f"--container-mounts={mounts}"]
    words += [f"--container-workdir={launch.cwd}", f"--container-env={','.join(sorted(launch.env))}"]
    step = ("srun", "--ntasks=1", "--overlap", "--no-container-entrypoint", "--no-container-mount-home")
    return [*step, *words, *container.arguments, container.python, *launch.arguments]


TOOLS: dict[str, Callable[[Container, ContainerRun], list[str]]] = {
    "podman": podman,
    "docker": docker,
    "enroot": enroot,
    "pyxis": pyxis,
}
"""Command lines that run a program in an image, by tool."""


def main() -> None:
    """Become the container tool."""
    folder = Path(__file__).absolute().parents[1]
    container = Container(**json.loads((folder / SETTINGS).read_text()))
    allowed, renders = os.sched_getaffinity(0), sorted(Path("/dev/dri").glob("renderD*"))
    amd = (Path("/dev/kfd"), *renders) if Path("/dev/kfd").exists() else ()
    host = ContainerHost(
        os.getuid(),
        os.getgid(),
        tuple(sorted(allowed)) if len(allowed) != os.cpu_count() else (),
        Path("/dev/nvidiactl").exists(),
        tuple(sorted({path.stat().st_gid for path in amd})),
    )
    with suppress(OSError):
        Path(model_cache(os.environ, folder)).mkdir(parents=True, exist_ok=True)
    launch = prepare_run(folder, Path.cwd(), sys.argv[1:], os.environ, host)
    argv = TOOLS[container.tool](container, launch)
    own = {name: os.environ[name] for name in _OF_HOST if name in os.environ}
    os.execvpe(argv[0], argv, {**launch.env, **own})


if __name__ == "__main__":
    main()
