"""The command line of a container: what it gets of the host, by tool. Nothing is run."""

from __future__ import annotations

import pwd
from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.environments.container import TOOLS, Container, ContainerHost, ContainerRun, prepare_run
from perfbisect.environments.images import STORES, full_reference

ALICE = ContainerHost(1000, 1001)
IMAGE = f"sha256:{'a' * 64}"


def launch(folder: Path, host: ContainerHost = ALICE, *arguments: str, **env: str) -> ContainerRun:
    env = {"PATH": "/usr/bin", "HOME": str(folder / "nobody"), "PERFBISECT_TOKEN": "t0k", **env}
    (folder / "env").mkdir(exist_ok=True)
    return prepare_run(folder / "env", folder, arguments or ("-m", "vllm"), env, host)


def command(tool: str, folder: Path, host: ContainerHost = ALICE, *arguments: str, **env: str) -> list[str]:
    image = "image.sqsh" if tool in ("enroot", "pyxis") else IMAGE
    container = Container(tool, image, "python3", ("--more", "words"))
    return TOOLS[tool](container, launch(folder, host, *arguments, **env))


def test_each_tool_finds_and_runs() -> None:
    assert list(TOOLS) == list(STORES)


@pytest.mark.parametrize("tool", ["podman", "docker"])
def test_what_every_container_has(tool: str, tmp_path: Path) -> None:
    words = command(tool, tmp_path, HF_TOKEN="hf_secret", VLLM_X="1")
    assert words[:3] == [tool, "run", "--rm"]
    assert words[-4:] == ["--entrypoint=python3", IMAGE, "-m", "vllm"]
    wanted = {
        "--init", "--pull=never", "--network=host", "--ipc=host", "--cap-drop=all", "--user=1000:1001",
        "--security-opt=no-new-privileges", f"--workdir={tmp_path}", "--label=perfbisect.token=t0k",
    }  # fmt: skip
    assert wanted <= set(words)
    given = {words[place + 1] for place, word in enumerate(words) if word == "--env"}
    home = f"HOME={tmp_path / 'env' / 'caches' / 'home'}"
    assert given == {"HF_HOME", "HF_TOKEN", "PERFBISECT_TOKEN", "USER", "VLLM_X", home}
    assert not any("hf_secret" in word for word in words), "values are not in the process table"
    assert words.index("--more") < words.index("--entrypoint=python3")


@pytest.mark.parametrize("home", [None, ""])
def test_models_without_a_home_variable(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are where the account's home has them, or with the environment: never at the root of the disk."""
    env = {"PATH": "/usr/bin", **({} if home is None else {"HOME": home})}
    account = pwd.struct_passwd(("u", "x", 7, 7, "", str(tmp_path / "u"), "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: account)
    assert (
        prepare_run(tmp_path, tmp_path, (), env, ALICE).env["HF_HOME"] == f"{tmp_path}/u/.cache/huggingface"
    )
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    inside = f"{tmp_path}/caches/home/.cache/huggingface"
    assert prepare_run(tmp_path, tmp_path, (), env, ALICE).env["HF_HOME"] == inside


def test_mounts(tmp_path: Path) -> None:
    """The environment, the working folder, caches, layers, and arguments that are paths; none twice."""
    for name in ("env/layer", "models", "scratch", "work", "weights, all"):
        (tmp_path / name).mkdir(parents=True)
    env = {"HF_HOME": str(tmp_path / "models"), "TMPDIR": str(tmp_path / "scratch"), "HF_TOKEN_PATH": "/none"}
    paths = f"{tmp_path / 'env' / 'layer'}:/nonexistent"
    weights = str(tmp_path / "weights, all")
    made = prepare_run(
        tmp_path / "env",
        tmp_path / "work",
        ("serve", weights, "/", "-x"),
        {**env, "PYTHONPATH": paths},
        ALICE,
    )
    names = ("env", "models", "scratch", "weights, all", "work")
    assert made.mounts == tuple(str(tmp_path / name) for name in names)
    words = TOOLS["podman"](Container("podman", IMAGE, "python3", ()), made)
    assert f'type=bind,"source={weights}","target={weights}"' in words, "commas are quoted"


def test_variables_that_stay_outside(tmp_path: Path) -> None:
    host = {"LD_LIBRARY_PATH": "/x", "CUDA_HOME": "/x", "DOCKER_HOST": "unix:///x", "PYTHONPATH": ""}
    assert set(launch(tmp_path, **host, LANG="C").env) == {"HF_HOME", "LANG", "PERFBISECT_TOKEN", "USER"}


@pytest.mark.parametrize(
    ("mask", "podman", "docker", "inside"),
    [
        (None, ["--device=nvidia.com/gpu=all"], "--gpus=all", None),
        ("", [], None, ""),
        ("3", ["--device=nvidia.com/gpu=3"], '--gpus="device=3"', "0"),
        ("6,2", ["--device=nvidia.com/gpu=6", "--device=nvidia.com/gpu=2"], '--gpus="device=6,2"', "1,0"),
        ("MIG-a", ["--device=nvidia.com/gpu=MIG-a"], '--gpus="device=MIG-a"', "MIG-a"),
    ],
)
def test_nvidia_devices(
    mask: str | None, podman: list[str], docker: str | None, inside: str | None, tmp_path: Path
) -> None:
    """Only those of the slot are there, counted from 0 in the driver's order."""
    env = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    host = replace(ALICE, nvidia=True)
    assert [word for word in command("podman", tmp_path, host, **env) if "=nvidia" in word] == podman
    assert [word for word in command("docker", tmp_path, host, **env) if "--gpus" in word] == (
        [docker] if docker else []
    )
    assert launch(tmp_path, host, **env).env.get("CUDA_VISIBLE_DEVICES") == inside
    assert not any("=nvidia" in word for word in command("podman", tmp_path, ALICE, **env))


def test_amd_devices_users_and_cores(tmp_path: Path) -> None:
    host = ContainerHost(1000, 1001, cores=(2, 3), amd=(44, 109))
    podman, docker = (command(tool, tmp_path, host) for tool in ("podman", "docker"))
    assert {"--device=/dev/kfd", "--device=/dev/dri"} <= set(podman) & set(docker)
    assert {"--group-add=keep-groups", "--userns=keep-id", "--http-proxy=false"} <= set(podman)
    assert {"--group-add=44", "--group-add=109", "--cpuset-cpus=2,3"} <= set(docker)
    assert "--userns=keep-id" not in command("podman", tmp_path, ContainerHost(0, 0))


def test_enroot_and_pyxis(tmp_path: Path) -> None:
    """By their documents: neither was ever run."""
    host, env = replace(ALICE, nvidia=True), {"CUDA_VISIBLE_DEVICES": "5", "HF_TOKEN": "hf_secret"}
    file, here = str(tmp_path / "env" / "image.sqsh"), str(tmp_path)
    words = command("enroot", tmp_path, host, **env)
    assert words[:4] == ["enroot", "start", "--mount", f"{here}:{here}"]
    assert words[-7:] == ["NVIDIA_VISIBLE_DEVICES=5", "--more", "words", file, "python3", "-m", "vllm"]
    words = command("pyxis", tmp_path, host, **env)
    names = "CUDA_VISIBLE_DEVICES,HF_HOME,HF_TOKEN,PERFBISECT_TOKEN,USER"
    assert words[0] == "srun" and words[-5:] == ["--more", "words", "python3", "-m", "vllm"]
    assert {
        f"--container-image={file}", f"--container-mounts={here}:{here}", f"--container-env={names}",
        f"--container-workdir={here}", "--no-container-mount-home",
    } <= set(words)  # fmt: skip


@pytest.mark.parametrize(
    ("reference", "full"),
    [
        ("vllm:a", "docker.io/library/vllm:a"),
        ("vllm/vllm-openai:a", "docker.io/vllm/vllm-openai:a"),
        ("localhost/x:a", "localhost/x:a"),
        ("host:5000/x:a", "host:5000/x:a"),
        ("public.ecr.aws/q/x:a", "public.ecr.aws/q/x:a"),
    ],
)
def test_full_references(reference: str, full: str) -> None:
    assert full_reference(reference) == full
