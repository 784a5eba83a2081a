"""vLLM-Omni families: servers of several stages, and their options by era."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from perfbisect.errors import ServerError, UsageError
from perfbisect.model.cell import Cell
from perfbisect.serving.eras import Era
from perfbisect.serving.families import Engine, Family, ProbeRequest
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

_LEGACY = re.compile(r"^stage_args\s*:", re.MULTILINE)
_INHERITS = re.compile(r"^base_config\s*:\s*(?P<base>\S+)", re.MULTILINE)


STAGE_INIT_TIMEOUT = Era("2026-02-02T00:00:00", (0, 16), "#1153", "--stage-init-timeout")
DEPLOY_CONFIG = Era("2026-04-19T02:36:00", (0, 20), "a3903810, #2383", "--deploy-config, --stage-overrides")
NO_STAGE_CONFIGS = Era("2026-08-01T00:00:00", (0, 27), "#5647", "no --stage-configs-path")
"""Eras of options; before ``DEPLOY_CONFIG`` only ``--stage-configs-path`` existed."""


class StagedFamily(Family):
    """A family of vLLM-Omni; ``requests``: what makes the first request at each endpoint, the usual first.

    Not every era can empty its caches, so a launch has one run. The deploy YAML sets the sampling seed.
    """

    def __init__(
        self,
        name: str,
        headline: str,
        guards: tuple[str, ...],
        requests: Mapping[str, Callable[[Cell, str], ProbeRequest]],
        refused: str = "",
    ) -> None:
        self.name, self.headline, self.guards = name, headline, guards
        self._requests, self._refused = requests, refused

    module = "vllm_omni.entrypoints.cli.main"
    """Until bede8e02 (#3082) vLLM-Omni replaced vLLM's script, so it is started by module."""
    reserved = (
        *("omni", "host", "port", "uds", "served-model-name", "model", "revision", "tokenizer"),
        *("deploy-config", "stage-configs-path", "stage-overrides", "stage-init-timeout", "init-timeout"),
    )

    def options(self, cell: Cell, engine: Engine) -> dict[str, object]:
        """Deploy YAML and stage overrides in the form that the engine's era reads."""
        own: dict[str, object] = {"omni": True, "init-timeout": int(cell.ready_timeout)}
        at = engine.date or engine.version
        if cell.stage_overrides:
            if not _has(DEPLOY_CONFIG, engine):
                raise ServerError(
                    f"cell {cell.name} sets stage_overrides, and --stage-overrides is there since "
                    f"{DEPLOY_CONFIG.change}: this engine ({at}) is older"
                )
            own["stage-overrides"] = json.dumps(cell.stage_overrides, sort_keys=True, separators=(",", ":"))
        if _has(STAGE_INIT_TIMEOUT, engine):
            own["stage-init-timeout"] = int(cell.ready_timeout)
        deploy = cell.deploy_yaml
        if deploy is None:
            return own
        if deploy.text is not None:
            path, is_legacy = f"./{DEPLOY_FILE}", bool(_LEGACY.search(deploy.text))
        else:
            path = deploy.path or DEPLOY_FILE
            # The text belongs to the change and is not read here: the folder tells the form.
            is_legacy = "stage_configs" in path
            path = f"{engine.root}/{path}" if engine.root and deploy.origin else path
        if is_legacy and NO_STAGE_CONFIGS.reached(engine.date, engine.version):
            raise ServerError(
                f"cell {cell.name}: its deploy YAML is of the old form (stage_args), which is gone since "
                f"{NO_STAGE_CONFIGS.change}: this engine ({at}) cannot read it"
            )
        if not is_legacy and not _has(DEPLOY_CONFIG, engine):
            raise ServerError(
                f"cell {cell.name}: its deploy YAML is of the form that is read since "
                f"{DEPLOY_CONFIG.change}: this engine ({at}) is older and reads stage configs"
            )
        return own | {"stage-configs-path" if is_legacy else "deploy-config": path}

    def first_request(self, cell: Cell, model: str) -> ProbeRequest:
        """:raises UsageError: none of the family's endpoints."""
        if cell.endpoint not in self._requests:
            usual, *others = self._requests
            known = "".join([usual, *(f" (or {other})" for other in others)])
            raise UsageError(
                f"cell {cell.name}: endpoint of {self.name} is {known}, not {cell.endpoint}{self._refused}",
                field="endpoint",
            )
        return self._requests[cell.endpoint](cell, model)

    def files(self, cell: Cell) -> dict[str, str]:
        """The pinned deploy YAML. :raises UsageError: it inherits from another file."""
        text = cell.deploy_yaml.text if cell.deploy_yaml else None
        if text is None:
            return {}
        # The base is a path in the engine's tree, which another commit may have with another content.
        if found := _INHERITS.search(text):
            raise UsageError(
                f"cell {cell.name}: the pinned deploy_yaml inherits from {found['base']}, "
                "which is not with it",
                next_step="write it out whole, or take it from the change: {from: change, path: ...}",
                field="deploy_yaml",
            )
        return {DEPLOY_FILE: text}


def _has(era: Era, engine: Engine) -> bool:
    """Whether the engine is in the era; unknown engines count as the newest."""
    # An engine without date and version is most likely built from today's main.
    return era.reached(engine.date, engine.version) is not False


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


class DiffusionFamily(StagedFamily):
    """Images and videos."""

    has_kv_cache = False

    def first_request(self, cell: Cell, model: str) -> ProbeRequest:
        """One image or video of the cell's size, in two steps."""
        return _KINDS[diffusion_endpoint(cell)](cell, model)

    def image_check(self, cell: Cell, model: str) -> ProbeRequest | None:
        """The request of the reference's image. :raises UsageError: no request of this cell makes one."""
        reference = cell.reference
        if reference is None:
            return None
        endpoint = diffusion_endpoint(cell)
        by_task = {"t2i": (CHAT, IMAGES), "i2i": (CHAT, EDITS), "ti2i": (CHAT, EDITS)}
        made = by_task.get(cell.task, ())
        if endpoint not in made or (reference.input and (endpoint != CHAT or cell.task == "t2i")):
            of = f"{cell.task or 'no task'} at {endpoint}{' with an input' if reference.input else ''}"
            raise UsageError(
                f"cell {cell.name}: reference: compared are images of the tasks {', '.join(by_task)}, "
                f"at {CHAT}, {IMAGES} or {EDITS}, with an input where {CHAT} edits; this is {of}",
                field="reference",
            )
        if endpoint == CHAT:
            return chat_image(cell, model, reference.prompt, reference.body, reference.input)
        return {IMAGES: image, EDITS: edit}[endpoint](cell, model, reference.prompt, reference.body)


STAGED = (
    StagedFamily("tts", "audio_ttfp", ("failed", "audio_duration"), {SPEECH: speech, CHAT: chat}),
    # The headline suits chats without sound; cells with sound set their own headline and guards.
    StagedFamily(
        "omni",
        "e2el",
        ("failed", "output_tokens"),
        {CHAT: chat},
        ": the speech API refuses these models (#2763)",
    ),
    DiffusionFamily("diffusion", "latency", ("failed",), _KINDS),
)
"""Speech; chats; images and videos."""
