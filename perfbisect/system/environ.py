"""Process environment of servers and clients: allowed variables and redaction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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
_SECRET = re.compile(r"TOKEN|SECRET|KEY|PASSW|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
_SECRET_HOLDER = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|CREDENTIAL|AUTH", re.IGNORECASE)
"""Narrower: values are replaced in whole texts, and ``UV_KEYRING_PROVIDER=subprocess`` is no secret."""
_SHORTEST_SECRET = 6
_SECRET_VALUE = re.compile(r"\b(?:hf_|sk-|ghp_|github_pat_|glpat-|AKIA|eyJ)[A-Za-z0-9_\-.]{8,}")
_IN_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_SWITCH = re.compile(
    r"(--(?:[a-z0-9-]*-)?(?:token|secret|password|api-key))(=|\x00)([^\x00]+)", re.IGNORECASE
)

REDACTED = "(redacted)"


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
    environment["PATH"] = f"{interpreter.parent}:{path}".rstrip(":")
    for layer in layers:
        environment.update(layer)
    return environment


def with_proxies(environment: Mapping[str, str], shell: Mapping[str, str]) -> dict[str, str]:
    """Add the user's proxies: for downloads, never for serving or measuring."""
    return {**environment, **{name: value for name, value in shell.items() if _PROXIES.match(name)}}


def redacted(environment: Mapping[str, str]) -> dict[str, str]:
    """Replace secrets, recognised by name or format."""
    return {
        name: REDACTED if _SECRET.search(name) and value else without_secrets(value)
        for name, value in sorted(environment.items())
    }


def secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Values of variables named like secrets, except very short ones."""
    return tuple(
        value
        for name, value in environment.items()
        if _SECRET_HOLDER.search(name) and len(value) >= _SHORTEST_SECRET
    )


def without_secrets(text: str, known: Iterable[str] = ()) -> str:
    """Replace ``known`` secrets, access tokens and the user part of URLs."""
    for secret in filter(None, known):
        text = text.replace(secret, REDACTED)
    return _IN_URL.sub(REDACTED, _SECRET_VALUE.sub(REDACTED, text))


def redacted_argv(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Replace secrets in a command, such as the value of ``--api-key``."""
    joined = _SWITCH.sub(lambda found: found[1] + found[2] + REDACTED, "\x00".join(argv))
    return tuple(without_secrets(word) for word in joined.split("\x00"))
