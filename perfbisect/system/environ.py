"""Process environment of servers and clients: allowed variables."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping
from pathlib import Path

_LOOPBACK = "127.0.0.1,localhost,::1"

_NAMES = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "XDG_CACHE_HOME",
    "HF_HOME", "HF_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT", "HF_HUB_CACHE", "HF_DATASETS_CACHE",
    "HF_ASSETS_CACHE", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_CACHE",
})  # fmt: skip
_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "ROCR_", "HIP_", "ASCEND_", "ZE_")
"""Variables that select devices. Variables that tune an engine (``VLLM_``, ``OMP_``, ``NCCL_``, ``PYTHON``)
would silently change the workload: they come from the cell only."""

_PROXIES = re.compile(r"^(?:https?|ftp|all|no)_proxy$", re.IGNORECASE)


def user_name() -> str:
    """The login name of the user of this process, or the number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without an entry, as in containers
        return str(os.getuid())


def allowed(shell: Mapping[str, str]) -> dict[str, str]:
    """The variables that a server or client gets; the loopback needs no proxy."""
    passed = {name: value for name, value in shell.items() if name in _NAMES or name.startswith(_PREFIXES)}
    return {**passed, "NO_PROXY": _LOOPBACK, "no_proxy": _LOOPBACK}


def for_interpreter(
    shell: Mapping[str, str], interpreter: Path, *layers: Mapping[str, str]
) -> dict[str, str]:
    """The environment of ``interpreter``: allowed variables, its folder first on PATH, then the layers.

    A later layer wins. Engines compile with tools (``ninja``) that are installed beside the interpreter.
    """
    environment = allowed(shell)
    path = environment.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    # An empty entry of PATH is the current folder.
    environment["PATH"] = f"{interpreter.parent}:{path}".rstrip(":")
    for layer in layers:
        environment.update(layer)
    return environment


def with_proxies(environment: Mapping[str, str], shell: Mapping[str, str]) -> dict[str, str]:
    """Add the user's proxies: for downloads, never for serving or measuring."""
    return {**environment, **{name: value for name, value in shell.items() if _PROXIES.match(name)}}
