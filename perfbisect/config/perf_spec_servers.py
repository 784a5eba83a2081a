"""The server of a vLLM-Omni performance specification: its arguments, deploy YAML and devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from perfbisect.config import stage_configs
from perfbisect.config.specifications import Source, kebab

_KEYS = (
    *("model", "serve_args", "extra_cli_args", "stage_overrides", "use_omni", "trust_remote_code"),
    *("stage_config_name", "update", "delete"),
)
_STAGE_CONFIGS = ("../stage_configs", "../deploy")
"""Where the YAML of a ``stage_config_name`` stands, seen from the specification: at first, and since."""

_ENVIRONMENT = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
"""What the harness sets for every server."""

_STAGED = 2
"""Devices of the nightly's machine, on which a server of stages runs where nothing says which it takes."""

_PARALLEL = (
    *("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "cfg-parallel-size"),
    *("ulysses-degree", "usp", "ring-degree", "ring"),
)
"""Options of which each multiplies the devices. The VAE and HSDP share those of the others."""


def serving(source: Source, place: str, server: Mapping[str, Any], *, staged: bool) -> dict[str, object]:
    """Serve arguments, deploy YAML, stage overrides, environment and number of devices of a server.

    ``staged``: it runs a pipeline of stages, each on devices of its own.

    :raises LocatedError: a key that is not known, what is no option, or a stage config that is not there.
    """
    params: Mapping[str, Any] = server["server_params"]
    above = f"{place}.server_params"
    source.unknown(above, params, _KEYS)
    options = _options(source, above, params)
    out: dict[str, object] = {}
    inline, deploy = options.pop("deploy-config-inline", None), options.pop("deploy-config", None)
    if isinstance(inline, Mapping):
        out["deploy_yaml"] = {"text": yaml.safe_dump(inline.get("content"), sort_keys=False)}
    elif params.get("stage_config_name"):
        out["deploy_yaml"] = {"text": _stage_config(source, above, params)}
    elif deploy is not None:
        out["deploy_yaml"] = {"from": "change", "path": str(deploy).removeprefix("../")}
    if params.get("stage_overrides"):
        out["stage_overrides"] = params["stage_overrides"]
    if options:
        out["serve_args"] = options
    return {**out, "env": dict(_ENVIRONMENT), "gpus": _gpus(server, out, options, staged=staged)}


def _options(source: Source, above: str, params: Mapping[str, Any]) -> dict[str, object]:
    """Serve arguments by name and as tokens, as options by name."""
    named = params.get("serve_args") or {}
    tokens = list(params.get("extra_cli_args") or ())
    options: dict[str, object] = {}
    if isinstance(named, Mapping):
        options = {kebab(name): value for name, value in named.items()}
    else:
        tokens = [*named, *tokens]
    options |= _from_tokens(source, above, tokens)
    if params.get("trust_remote_code"):
        options["trust-remote-code"] = True
    return options


def _from_tokens(source: Source, above: str, tokens: Sequence[object]) -> dict[str, object]:
    """What follows a name is its value."""
    options: dict[str, object] = {}
    name = ""
    for token in tokens:
        text = str(token)
        if text.startswith("--"):
            name, equals, value = text.removeprefix("--").partition("=")
            options[name] = value if equals else True
        elif not name or options[name] is not True:
            raise source.wrong(above, f"holds {text!r}", "options such as --max-len 1")
        else:
            options[name] = token
    return options


def _stage_config(source: Source, above: str, params: Mapping[str, Any]) -> str:
    """The text of a YAML that lies beside the specifications, with what the specification changes in it.

    It is carried as text: other commits have it otherwise, or not at all.
    """
    name = str(params["stage_config_name"])
    texts = (source.beside(f"{folder}/{name}") for folder in _STAGE_CONFIGS if "/" not in name)
    text = next((text for text in texts if text is not None), None)
    if text is None:
        raise source.wrong(
            f"{above}.stage_config_name",
            f"names {name}, which is not there",
            f"a file of {' or '.join(_STAGE_CONFIGS)}, seen from the specification",
        )
    update, delete = params.get("update") or {}, params.get("delete") or {}
    try:
        return stage_configs.changed(text, update, delete) if update or delete else text
    except ValueError as error:
        allowed = "paths of that file"
        raise source.wrong(f"{above}.stage_config_name", f"{name} {error}", allowed) from None


def _gpus(
    server: Mapping[str, Any], out: Mapping[str, object], options: Mapping[str, object], *, staged: bool
) -> int:
    """Devices: as many as the specification's mark says, else as its stages name, else as its parallel sizes
    multiply to."""
    if cards := _cards(server.get("mark")):
        return cards
    overrides = out.get("stage_overrides")
    stages = overrides.values() if isinstance(overrides, Mapping) else ()
    named = [
        number
        for stage in stages
        if isinstance(stage, Mapping)
        for number in stage_configs.numbers(stage.get("devices"))
    ]
    deploy = out.get("deploy_yaml")
    if isinstance(deploy, Mapping) and "text" in deploy:
        named += stage_configs.stage_devices(str(deploy["text"]))
    if named:
        return max(named) + 1
    sizes = [size for name in _PARALLEL if isinstance(size := options.get(name), int)]
    return max(math.prod(sizes), _STAGED if staged else 1)


def _cards(mark: object) -> int:
    """``num_cards`` of a pytest mark, 0 where none says it."""
    for entry in mark if isinstance(mark, list) else ():
        hardware = entry.get("hardware_marks") if isinstance(entry, Mapping) else None
        cards = hardware.get("num_cards") if isinstance(hardware, Mapping) else None
        if isinstance(cards, int):
            return cards
    return 0
