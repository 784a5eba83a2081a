"""The server of a vLLM-Omni performance specification: its arguments, deploy YAML and devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from perfbisect.config import stage_configs
from perfbisect.config.specifications import Source, kebab, kind
from perfbisect.config.stages import placed, read_deploy

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

_PLATFORM = "cuda"
"""The kind of machine that the specifications are of."""

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
    text = _pinned(source, above, params, options.pop("deploy-config-inline", None))
    deploy = options.pop("deploy-config", None)
    out: dict[str, object] = {}
    if text is not None:
        out["deploy_yaml"] = {"text": text}
    elif deploy is not None:
        out["deploy_yaml"] = {"from": "change", "path": str(deploy).removeprefix("../")}
    if params.get("stage_overrides"):
        out["stage_overrides"] = params["stage_overrides"]
    if options:
        out["serve_args"] = options
    named = _named(text, params.get("stage_overrides"))
    return {**out, "env": dict(_ENVIRONMENT), "gpus": _gpus(server, named, options, staged=staged)}


def _options(source: Source, above: str, params: Mapping[str, Any]) -> dict[str, object]:
    """Serve arguments by name and as tokens, as options by name."""
    named, tokens = params.get("serve_args") or {}, params.get("extra_cli_args") or []
    for name, value, kinds in (("serve_args", named, (dict, list)), ("extra_cli_args", tokens, (list,))):
        if not isinstance(value, kinds):
            raise source.wrong(f"{above}.{name}", f"is {kind(value)}", "options, by name or as tokens")
    by_name, listed = (named, []) if isinstance(named, dict) else ({}, named)
    options: dict[str, object] = {kebab(name): value for name, value in by_name.items()}
    options |= _from_tokens(source, above, [*listed, *tokens])
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


def _pinned(source: Source, above: str, params: Mapping[str, Any], inline: object) -> str | None:
    """The text of a deploy YAML that stands in the specification or beside it.

    What stands beside it is carried as text: other commits have it otherwise, or not at all.
    """
    name = params.get("stage_config_name")
    if inline is None and name is None:
        return None
    field = "stage_config_name" if inline is None else "serve_args.deploy-config-inline"
    try:
        text = _stage_config(source, above, params) if inline is None else _content(inline)
        stage_configs.check(text)
    except ValueError as error:
        told = f"{name} {error}" if inline is None else str(error)
        raise source.wrong(f"{above}.{field}", told, "a deploy YAML with stages") from None
    return text


def _content(inline: object) -> str:
    if not isinstance(inline, Mapping):
        raise ValueError(f"is {kind(inline)}")
    return yaml.safe_dump(inline.get("content"), sort_keys=False, allow_unicode=True)


def _stage_config(source: Source, above: str, params: Mapping[str, Any]) -> str:
    """The text of a YAML that lies beside the specifications, with what the specification changes in it."""
    name = str(params["stage_config_name"])
    texts = (source.beside(f"{folder}/{name}") for folder in _STAGE_CONFIGS if "/" not in name)
    text = next((text for text in texts if text is not None), None)
    if text is None:
        raise source.wrong(
            f"{above}.stage_config_name",
            f"names {name}, which is not there",
            f"a file of {' or '.join(_STAGE_CONFIGS)}, seen from the specification",
        )
    update, delete = params.get("update"), params.get("delete")
    return stage_configs.changed(text, update or {}, delete or {}) if update or delete else text


def _named(text: str | None, overrides: object) -> int:
    """How many devices there must be for those that the stages name; 0 where they name none."""
    document = None if text is None else read_deploy(text, Path("deploy.yaml"))
    changed = overrides if isinstance(overrides, Mapping) else {}
    found = placed([document] if document else [], changed, _PLATFORM)
    return max((stage.needs for stage in found), default=0)


def _gpus(server: Mapping[str, Any], named: int, options: Mapping[str, object], *, staged: bool) -> int:
    """As many devices as the specification's mark says, else as the stages name, else as its parallel sizes
    multiply to."""
    if cards := _cards(server.get("mark")):
        return cards
    if named:
        return named
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
