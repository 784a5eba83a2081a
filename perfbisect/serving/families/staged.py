"""vLLM-Omni families: servers of several stages, and their options by era."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from perfbisect.errors import ServerError, UsageError
from perfbisect.model.cell import Cell, DeployYaml
from perfbisect.serving.eras import Era
from perfbisect.serving.families import (
    UNKNOWN,
    Endpoint,
    Engine,
    ProbeRequest,
    ServerCommand,
    check_serve_args,
    serve_arguments,
    server_environment,
)
from perfbisect.serving.families.probes import (
    CHAT,
    EDITS,
    IMAGES,
    SPEECH,
    VIDEOS,
    chat,
    chat_image,
    edit,
    image,
    speech,
    video,
)

DEPLOY_FILE = "deploy.yaml"
"""Name of a pinned deploy YAML in the server's folder."""

_MODULE = "vllm_omni.entrypoints.cli.main"
"""Until bede8e02 (#3082) vLLM-Omni replaced vLLM's script, so it is started by module."""

_RESERVED = (
    *("omni", "host", "port", "uds", "served-model-name", "model", "revision", "tokenizer"),
    *("deploy-config", "stage-configs-path", "stage-overrides", "stage-init-timeout", "init-timeout"),
)
"""Options set by the attempt or by a key of the cell."""

_LEGACY = re.compile(r"^stage_args\s*:", re.MULTILINE)
_INHERITS = re.compile(r"^base_config\s*:\s*(?P<base>\S+)", re.MULTILINE)


STAGE_INIT_TIMEOUT = Era("2026-02-02T00:00:00", (0, 16), "#1153", "--stage-init-timeout")
DEPLOY_CONFIG = Era("2026-04-19T02:36:00", (0, 20), "a3903810, #2383", "--deploy-config, --stage-overrides")
NO_STAGE_CONFIGS = Era("2026-08-01T00:00:00", (0, 27), "#5647", "no --stage-configs-path")
"""Eras of options; before ``DEPLOY_CONFIG`` only ``--stage-configs-path`` existed."""


@dataclass
class StagedFamily:
    """A family of vLLM-Omni.

    ``first_request`` and ``image_check`` build requests from a cell and a model name, and raise UsageError
    for an unsupported endpoint.
    """

    name: str
    headline: str
    guards: tuple[str, ...]
    first_request: Callable[[Cell, str], ProbeRequest]
    image_check: Callable[[Cell, str], ProbeRequest | None] = lambda cell, model: None  # noqa: ARG005

    def server(self, cell: Cell, endpoint: Endpoint, engine: Engine = UNKNOWN) -> ServerCommand:
        """``serve MODEL --omni`` with the cell's options, deploy YAML and stage overrides.

        Not every era can empty its caches, so a launch has one run. The deploy YAML sets the sampling seed.

        Raises:
            UsageError: a reserved option, a pinned deploy YAML that inherits, or another family's endpoint.
            ServerError: the engine's era cannot read the deploy YAML or overrides.
        """
        check_serve_args(cell, _RESERVED)
        own = {"omni": True, "init-timeout": int(cell.ready_timeout), **_overrides(cell, engine)}
        if _has(STAGE_INIT_TIMEOUT, engine):
            own["stage-init-timeout"] = int(cell.ready_timeout)
        files: dict[str, str] = {}
        if cell.deploy_yaml is not None:
            if cell.deploy_yaml.text is not None:
                files[DEPLOY_FILE] = _standalone(cell, cell.deploy_yaml.text)
            own |= _deploy_option(cell, cell.deploy_yaml, engine)
        return ServerCommand(
            args=serve_arguments(_MODULE, cell, endpoint, own, cell.serve_args),
            env=server_environment(cell, {}),
            first_request=self.first_request(cell, endpoint.model_name),
            files=files,
            image_check=self.image_check(cell, endpoint.model_name),
        )


def _has(era: Era, engine: Engine) -> bool:
    """Whether the engine is in the era; unknown engines count as the newest."""
    return era.reached(engine.date, engine.version) is not False


def _overrides(cell: Cell, engine: Engine) -> dict[str, object]:
    if not cell.stage_overrides:
        return {}
    if not _has(DEPLOY_CONFIG, engine):
        raise ServerError(
            f"cell {cell.name} sets stage_overrides, and --stage-overrides is there since "
            f"{DEPLOY_CONFIG.change}: this engine ({engine.date or engine.version}) is older"
        )
    return {"stage-overrides": json.dumps(cell.stage_overrides, sort_keys=True, separators=(",", ":"))}


def _deploy_option(cell: Cell, deploy: DeployYaml, engine: Engine) -> dict[str, object]:
    """The engine's option for the deploy YAML."""
    if deploy.text is not None:
        path, is_legacy = f"./{DEPLOY_FILE}", bool(_LEGACY.search(deploy.text))
    else:
        path = deploy.path or DEPLOY_FILE
        is_legacy = "stage_configs" in path
        path = f"{engine.root}/{path}" if engine.root and deploy.origin else path
    if is_legacy and NO_STAGE_CONFIGS.reached(engine.date, engine.version):
        raise ServerError(
            f"cell {cell.name}: its deploy YAML is of the old form (stage_args), which is gone since "
            f"{NO_STAGE_CONFIGS.change}: this engine ({engine.date or engine.version}) cannot read it"
        )
    if not is_legacy and not _has(DEPLOY_CONFIG, engine):
        raise ServerError(
            f"cell {cell.name}: its deploy YAML is of the form that is read since {DEPLOY_CONFIG.change}: "
            f"this engine ({engine.date or engine.version}) is older and reads stage configs"
        )
    return {"stage-configs-path" if is_legacy else "deploy-config": path}


def _standalone(cell: Cell, text: str) -> str:
    """Check a pinned deploy YAML. :raises UsageError: it inherits from another file."""
    if found := _INHERITS.search(text):
        raise UsageError(
            f"cell {cell.name}: the pinned deploy_yaml inherits from {found['base']}, which is not with it",
            next_step="write it out whole, or take it from the change: {from: change, path: ...}",
            field="deploy_yaml",
        )
    return text


def tts_first_request(cell: Cell, model: str) -> ProbeRequest:
    """Sound from the speech API, or from chat if that is the cell's endpoint."""
    if cell.endpoint == SPEECH:
        return speech(cell, model)
    if cell.endpoint == CHAT:
        return chat(cell, model)
    raise UsageError(
        f"cell {cell.name}: endpoint of tts is {SPEECH} (or {CHAT}), not {cell.endpoint}", field="endpoint"
    )


TTS = StagedFamily("tts", "audio_ttfp", ("failed", "audio_duration"), tts_first_request)


def omni_first_request(cell: Cell, model: str) -> ProbeRequest:
    """A chat, with sound if the cell has it; the speech API refuses these models since #2763."""
    if cell.endpoint != CHAT:
        raise UsageError(
            f"cell {cell.name}: endpoint of omni is {CHAT}, not {cell.endpoint}: the speech API refuses "
            "these models (#2763)",
            field="endpoint",
        )
    return chat(cell, model)


OMNI = StagedFamily("omni", "e2el", ("failed", "output_tokens"), omni_first_request)
"""The headline suits text-only cells; cells with sound set their own headline and guards."""

BACKENDS = {"vllm-omni": CHAT, "openai": IMAGES, "v1/videos": VIDEOS}
"""The diffusion benchmark's names of endpoints before #3137."""

_UNSET = "/v1/completions"
_KINDS = {CHAT: chat_image, IMAGES: image, EDITS: edit, VIDEOS: video}


def diffusion_endpoint(cell: Cell) -> str:
    """The cell's endpoint, or that of its backend. :raises UsageError: not a diffusion endpoint."""
    found = BACKENDS.get(cell.backend, cell.endpoint) if cell.endpoint == _UNSET else cell.endpoint
    if found not in _KINDS:
        raise UsageError(
            f"cell {cell.name}: endpoint {found} (backend {cell.backend}) is none of diffusion's: "
            f"{', '.join(_KINDS)}",
            field="endpoint",
        )
    return found


def first_request(cell: Cell, model: str) -> ProbeRequest:
    """One image or video of the cell's size, in two steps."""
    return _KINDS[diffusion_endpoint(cell)](cell, model)


def reference_request(cell: Cell, model: str) -> ProbeRequest | None:
    """Request the reference's image, or None. :raises UsageError: not a text-to-image endpoint."""
    if cell.reference is None:
        return None
    endpoint, made = diffusion_endpoint(cell), {CHAT: chat_image, IMAGES: image}
    if endpoint not in made or cell.task != "t2i":
        raise UsageError(
            f"cell {cell.name}: reference: compared are images made from text (task t2i, at "
            f"{', '.join(made)}), and this is {cell.task or 'no task'} at {endpoint}",
            field="reference",
        )
    return made[endpoint](cell, model, cell.reference.prompt, cell.reference.body)


DIFFUSION = StagedFamily("diffusion", "latency", ("failed",), first_request, reference_request)
