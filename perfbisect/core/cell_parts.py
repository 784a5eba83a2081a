"""The parts of a cell that have keys of their own."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from perfbisect.core.fields import ClientArgs, JsonMapping, ServeOverrides, Variables, Whole
from perfbisect.errors import UsageError

LOCAL = "sha256:"
"""How the revision of a local folder or file starts: the hash of its content."""

FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


class Sampling(BaseModel):
    """Sampling of every request: fixed by the cell, never by a hub's generation config.

    Of text greedy by default; other families sample as their deploy YAML says: greedy speech does not end.
    """

    model_config = FROZEN

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: Whole | None = None
    min_p: float | None = Field(default=None, ge=0, le=1)
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None


class Revision(BaseModel):
    """The state of model, tokenizer and data set: a hub's commit or tag, ``sha256:...`` of a local folder."""

    model_config = FROZEN

    model: str | None = None
    tokenizer: str | None = None
    dataset: str | None = None


class DeployYaml(BaseModel):
    """A deploy YAML: pinned (``text``, ``file``, ``at`` a commit), or the change's own (``from: change``).

    A bare path is ``from: change``. ``text`` is filled by whoever reads the file or the commit.
    """

    model_config = FROZEN

    text: str | None = None
    file: str | None = None
    at: str | None = None
    origin: Literal["change"] | None = Field(default=None, alias="from")
    path: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare_path(cls, value: object) -> object:
        return {"from": "change", "path": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_form(self) -> DeployYaml:
        named = [word for word in (self.file, self.at, self.origin) if word is not None]
        if len(named) > 1 or (not named and self.text is None) or (self.origin and self.text is not None):
            raise ValueError("say one of text, file, at (with path), from: change (with path)")
        if (self.at or self.origin) and not self.path:
            raise ValueError("needs path, the file inside the repository")
        if self.path and not (self.at or self.origin):
            raise ValueError("path belongs to at or from: change")
        return self

    def workload(self) -> dict[str, object]:
        """What enters the digest: the text where it is pinned, else the path.

        :raises UsageError: a file or commit that has not been read.
        """
        if self.text is not None:
            return {"text": self.text}
        if self.origin:
            return {"from": self.origin, "path": self.path}
        place = self.file if self.file else f"{self.path} at {self.at}"
        raise UsageError(
            f"the deploy YAML {place} has not been read, so the cell has no digest",
            next_step="name the repository: --repo PATH",
        )


class Reference(BaseModel):
    """An image that the server is asked to make again after the runs, with what made it.

    ``body``: fields of the request beside the prompt (``seed``, ``num_inference_steps``). ``content`` is
    filled by whoever reads the file.
    """

    model_config = FROZEN

    image: str = Field(min_length=1)
    prompt: str = Field(min_length=1)
    body: JsonMapping = Field(default_factory=dict)
    content: str | None = None

    def workload(self) -> dict[str, object]:
        """What enters the digest: the image by its content, not by where it lies."""
        return {"image": self.content or self.image, "prompt": self.prompt, "body": self.body}


class ClientSpec(BaseModel):
    """The load generator, with options and environment variables of its own."""

    model_config = FROZEN

    name: str = "vllm_bench"
    args: ClientArgs = Field(default_factory=dict)
    env: Variables = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value


class Variant(BaseModel):
    """Server-side overrides: part of the change, never of the workload. Null takes a serve argument away."""

    model_config = FROZEN

    serve_args: ServeOverrides = Field(default_factory=dict)
    env: Variables = Field(default_factory=dict)
    deploy_yaml: DeployYaml | None = None
    stage_overrides: JsonMapping = Field(default_factory=dict)
