"""What the families of vLLM-Omni share: a server of several stages, and how it is started in each era."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from perfbisect.common.arguments import merge_options, option_tokens
from perfbisect.errors import ServerError, UsageError
from perfbisect.model.cell import LOCAL, Cell, DeployYaml
from perfbisect.serving.eras import Era
from perfbisect.serving.families import OFFLINE, UNKNOWN, Endpoint, Engine, Request, ServerCommand
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
"""The name under which a pinned deploy YAML lies in the server's folder."""

_MODULE = ("-m", "vllm_omni.entrypoints.cli.main", "serve")
"""By module: until bede8e02 (#3082) vLLM-Omni laid its own script over that of vLLM."""

_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_HOST_IP": "127.0.0.1"}

_OURS = (
    *("omni", "host", "port", "uds", "served-model-name", "model", "revision", "tokenizer"),
    *("deploy-config", "stage-configs-path", "stage-overrides", "stage-init-timeout", "init-timeout"),
)
"""Options that an attempt or a key of the cell sets."""

_LEGACY = re.compile(r"^stage_args\s*:", re.MULTILINE)
_INHERITS = re.compile(r"^base_config\s*:\s*(?P<base>\S+)", re.MULTILINE)


STAGE_INIT_TIMEOUT = Era("2026-02-02T00:00:00", (0, 16), "#1153", "--stage-init-timeout")
DEPLOY_CONFIG = Era("2026-04-19T02:36:00", (0, 20), "a3903810, #2383", "--deploy-config, --stage-overrides")
NO_STAGE_CONFIGS = Era("2026-08-01T00:00:00", (0, 27), "#5647", "no --stage-configs-path")
"""Where options came and went. Before ``DEPLOY_CONFIG`` there was ``--stage-configs-path`` alone."""


class StagedFamily:
    """See :class:`perfbisect.serving.families.Family`.

    ``first_request`` is made of a cell and a model name; it raises UsageError at an endpoint that the family
    has not. ``likeness`` is made alike, where the cell brings a reference.
    """

    def __init__(
        self,
        name: str,
        headline: str,
        guards: tuple[str, ...],
        first_request: Callable[[Cell, str], Request],
        reference_request: Callable[[Cell, str], Request | None] | None = None,
    ) -> None:
        self.name, self.headline, self.guards = name, headline, guards
        self.first_request, self.likeness = first_request, reference_request

    def server(self, cell: Cell, endpoint: Endpoint, engine: Engine = UNKNOWN) -> ServerCommand:
        """``serve MODEL --omni``: the cell's options, its deploy YAML and overrides of stages.

        No request empties what such a server keeps between runs (caches of prefixes, of media, of voices),
        not in every era: one run a launch. The seed of sampling is the deploy YAML's.

        :raises UsageError: a serve argument that is not the cell's to set, a pinned deploy YAML that
            inherits from a file, an endpoint of another family.
        :raises ServerError: the engine is of an era that cannot read the cell's deploy YAML or overrides.
        """
        taken = [name for name in _OURS if name in cell.serve_args]
        if taken:
            raise UsageError(
                f"cell {cell.name}: serve_args cannot set {', '.join(taken)}: these have keys of their own "
                "in the cell, or belong to the attempt",
                field="serve_args",
            )
        own: dict[str, object] = {
            "omni": True,
            "host": endpoint.host,
            "port": endpoint.port,
            "served-model-name": endpoint.model_name,
            "revision": _hub(cell.revision.model),
            "init-timeout": int(cell.ready_timeout),
            **_overrides(cell, engine),
        }
        if _has(STAGE_INIT_TIMEOUT, engine):
            own["stage-init-timeout"] = int(cell.ready_timeout)
        files: dict[str, str] = {}
        if cell.deploy_yaml is not None:
            if cell.deploy_yaml.text is not None:
                files[DEPLOY_FILE] = _standalone(cell, cell.deploy_yaml.text)
            own |= _deployed(cell, cell.deploy_yaml, engine)
        return ServerCommand(
            args=(
                *(*_MODULE, cell.model),
                *option_tokens(merge_options(own, {}), negatable=True),
                *option_tokens(cell.serve_args, negatable=True),
            ),
            env={**_ENVIRONMENT, **(OFFLINE if cell.needs_no_hub else {}), **cell.env},
            first_request=self.first_request(cell, endpoint.model_name),
            files=files,
            likeness=self.likeness(cell, endpoint.model_name) if self.likeness else None,
        )


def _has(era: Era, engine: Engine) -> bool:
    """True in that era; an engine of which nothing is known is the newest."""
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


def _deployed(cell: Cell, deploy: DeployYaml, engine: Engine) -> dict[str, object]:
    """The option that names the deploy YAML, as the engine knows it, with the file."""
    path = f"{engine.root}/{deploy.path}" if engine.root and deploy.origin else deploy.path or DEPLOY_FILE
    if deploy.text is not None:
        path = f"./{DEPLOY_FILE}"
    legacy = (
        bool(_LEGACY.search(deploy.text))
        if deploy.text is not None
        else "stage_configs" in (deploy.path or "")
    )
    if legacy and NO_STAGE_CONFIGS.reached(engine.date, engine.version):
        raise ServerError(
            f"cell {cell.name}: its deploy YAML is of the old form (stage_args), which is gone since "
            f"{NO_STAGE_CONFIGS.change}: this engine ({engine.date or engine.version}) cannot read it"
        )
    if not legacy and not _has(DEPLOY_CONFIG, engine):
        raise ServerError(
            f"cell {cell.name}: its deploy YAML is of the form that is read since {DEPLOY_CONFIG.change}: "
            f"this engine ({engine.date or engine.version}) is older and reads stage configs"
        )
    return {"stage-configs-path" if legacy else "deploy-config": path}


def _standalone(cell: Cell, text: str) -> str:
    """The text, which must not need another file. :raises UsageError: it inherits from one."""
    found = _INHERITS.search(text)
    if found:
        raise UsageError(
            f"cell {cell.name}: the pinned deploy_yaml inherits from {found['base']}, which is not with it",
            next_step="write it out whole, or take it from the change: {from: change, path: ...}",
            field="deploy_yaml",
        )
    return text


def _hub(revision: str | None) -> str | None:
    return None if revision is None or revision.startswith(LOCAL) else revision


def tts_first_request(cell: Cell, model: str) -> Request:
    """Sound by the speech API, or by chat where the cell asks there."""
    if cell.endpoint == SPEECH:
        return speech(cell, model)
    if cell.endpoint == CHAT:
        return chat(cell, model)
    raise UsageError(
        f"cell {cell.name}: endpoint of tts is {SPEECH} (or {CHAT}), not {cell.endpoint}", field="endpoint"
    )


TTS = StagedFamily("tts", "audio_ttfp", ("failed", "audio_duration"), tts_first_request)


def omni_first_request(cell: Cell, model: str) -> Request:
    """A chat, with sound where the cell's answers have it.

    The speech API refuses these models since #2763.
    """
    if cell.endpoint != CHAT:
        raise UsageError(
            f"cell {cell.name}: endpoint of omni is {CHAT}, not {cell.endpoint}: the speech API refuses "
            "these models (#2763)",
            field="endpoint",
        )
    return chat(cell, model)


OMNI = StagedFamily("omni", "e2el", ("failed", "output_tokens"), omni_first_request)
"""End to end, since a cell may ask for text alone; a cell with sound names its own headline and guards."""

BACKENDS = {"vllm-omni": CHAT, "openai": IMAGES, "v1/videos": VIDEOS}
"""What vLLM-Omni's own diffusion benchmark calls an endpoint, before it was named by its path (#3137)."""

_UNSET = "/v1/completions"
_KINDS = {CHAT: chat_image, IMAGES: image, EDITS: edit, VIDEOS: video}


def diffusion_endpoint(cell: Cell) -> str:
    """Where the cell's requests go: its endpoint, or the one that its backend stands for.

    :raises UsageError: neither is one of diffusion's.
    """
    found = BACKENDS.get(cell.backend, cell.endpoint) if cell.endpoint == _UNSET else cell.endpoint
    if found not in _KINDS:
        raise UsageError(
            f"cell {cell.name}: endpoint {found} (backend {cell.backend}) is none of diffusion's: "
            f"{', '.join(_KINDS)}",
            field="endpoint",
        )
    return found


def first_request(cell: Cell, model: str) -> Request:
    """One small picture or video of the cell's own size, in two steps."""
    return _KINDS[diffusion_endpoint(cell)](cell, model)


def reference_request(cell: Cell, model: str) -> Request | None:
    """Asks for the image of the cell's reference; None where it brings none.

    :raises UsageError: the cell's endpoint answers with no image, or makes it from another one.
    """
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
