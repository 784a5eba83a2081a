"""Model families: a cell and an engine -> the server to start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from perfbisect.common.arguments import merge_options, option_tokens
from perfbisect.errors import UsageError
from perfbisect.model.cell import LOCAL, Cell
from perfbisect.model.metric import Need

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""Keeps engines and clients from contacting a hub."""


@dataclass(frozen=True)
class Endpoint:
    """Address and model name of an attempt's server, unique to the attempt."""

    port: int
    model_name: str
    host: str = "127.0.0.1"

    @property
    def base_url(self) -> str:
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True)
class Engine:
    """The engine that a command is for: options change between commits.

    ``date``: of the commit, ISO 8601; empty if unknown. ``root``: local folder with the change's tree.
    """

    version: str = ""
    date: str = ""
    root: str = ""


UNKNOWN = Engine()
"""Commands are those of the newest known engine."""


@dataclass(frozen=True)
class ProbeRequest:
    """An HTTP request and the checks of its response."""

    path: str
    body: Mapping[str, object]
    must_contain: str = ""
    """Dotted path whose value must not be empty: ``choices.0.text``, ``choices.*.message.audio.data``."""
    content_type: str = ""
    """Prefix of the content type of a binary response: ``audio/``."""
    at_least: int = 0
    """Minimum bytes of a binary response."""
    answer_at: str = ""
    """As ``must_contain``: where the text of the answer is."""
    expected: str = ""
    """What that text has to have; empty: the answer is not read."""
    form: bool = False
    """Send the body as a multipart form, in which bytes are files."""


@dataclass(frozen=True)
class ServerCommand:
    """Starts a server: arguments after the interpreter (``-m module ...``), environment and probes.

    With a ``result`` it is no server: a benchmark in one process with its engine, which nobody asks anything.
    """

    args: tuple[str, ...]
    env: Mapping[str, str]
    first_request: ProbeRequest | None = None
    reset_requests: tuple[ProbeRequest, ...] = ()
    """Empty the caches between runs; without any, a launch has one run."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts by file name, written into the server's folder."""
    image_check: ProbeRequest | None = None
    """Requests the reference's image again, in base64 at ``must_contain``."""
    result: str = ""
    """The file in its folder that it writes at its end: the values of the launch. Empty: it serves."""
    iterates: bool = False
    """The result has a value for each iteration, so that a launch may have several runs."""


class Family(ABC):
    """A kind of model; a new one is a module with a subclass and a line in ``FAMILIES``.

    ``module``: of the server's command line; ``reserved``: options of ``serve`` that belong to the attempt or
    to a key of the cell.
    """

    name: str
    headline: str
    guards: tuple[str, ...]
    module: str
    reserved: tuple[str, ...]
    environment: Mapping[str, str] = {}
    has_kv_cache = True
    backends: Mapping[str, tuple[str, ...]] = {}
    """Backends of ``vllm bench serve`` that ask it, the usual first, and the endpoints of each."""
    request_metrics: tuple[str, ...] = ("ttft", "tpot", "itl", "e2el")
    """What that client reports of each request."""
    run_metrics: tuple[str, ...] = (
        *("request_throughput", "output_throughput", "total_token_throughput"),
        *("failed", "output_tokens", "input_tokens"),
    )
    """What it reports of a run; without ``output_tokens`` an answer has none."""
    newer_metrics: tuple[str, ...] = ()
    """What only newer clients report of a run."""
    has_sampling = True
    """Whether requests may set their sampling."""

    @property
    def package(self) -> str:
        """The import name of its engine."""
        return self.module.partition(".")[0]

    result = ""
    """The file that a launch writes which is one process and measures itself. Empty: it serves."""

    def server(self, cell: Cell, endpoint: Endpoint, engine: Engine = UNKNOWN) -> ServerCommand:
        """The server command of one attempt: offline if possible, without usage reports.

        Raises:
            UsageError: this family does not support the cell.
            ServerError: this engine does not support the cell; another one may.
        """
        if taken := [name for name in self.reserved if name in cell.serve_args]:
            raise UsageError(
                f"cell {cell.name}: serve_args cannot set {', '.join(taken)}: these have keys of their own "
                "in the cell, or belong to the attempt",
                field="serve_args",
            )
        first = self.first_request(cell, endpoint.model_name) if self.serves else None
        if cell.expected_answer is not None and not (first and first.expected):
            message = f"cell {cell.name}: expected_answer: the answers of family {self.name} are not read"
            raise UsageError(message, field="expected_answer")
        address: dict[str, object] = {
            "host": endpoint.host,
            "port": endpoint.port,
            "served-model-name": endpoint.model_name,
        }
        own = {
            **(address if self.serves else {}),
            "revision": hub_revision(cell.revision.model),
            **self.options(cell, engine),
        }
        quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_HOST_IP": "127.0.0.1"}
        env = {**quiet, **self.environment, **(OFFLINE if cell.needs_no_hub else {}), **cell.env}
        return ServerCommand(
            args=(
                *("-m", self.module, *self.words(cell)),
                *option_tokens(own, negatable=True),
                *option_tokens(merge_options(self.defaults(cell), cell.serve_args), negatable=True),
            ),
            env=env,
            first_request=first,
            reset_requests=self.reset_requests(env),
            files=self.files(cell),
            image_check=self.image_check(cell, endpoint.model_name),
            result=self.result,
            iterates=self.iterates(cell),
        )

    def words(self, cell: Cell) -> tuple[str, ...]:
        """The command of the module, and the model; raises as :meth:`server`."""
        return "serve", cell.model

    @property
    def serves(self) -> bool:
        """Whether a launch is a server with a client."""
        return not self.result

    @abstractmethod
    def options(self, cell: Cell, engine: Engine) -> dict[str, object]:
        """Options of the server from keys of the cell; raises as :meth:`server`."""

    def lacks(self, cell: Cell, need: Need) -> str:
        """Why a server of the cell cannot have what a metric needs; empty if it may.

        A deploy YAML may set what the cell does not.
        """
        options = [*cell.serve_args, *(name for one in cell.variants.values() for name in one.serve_args)]
        is_speculative = any(name.startswith(_SPECULATIVE) for name in options)
        if need == "speculative decoding" and cell.deploy_yaml is None and not is_speculative:
            return f"no server of {cell.name} has speculative-config"
        if need in ("kv cache", "prefix caching") and not self.has_kv_cache:
            return f"servers of family {self.name} have none"
        if need == "devices" and not cell.gpus:
            return f"{cell.name} uses none (gpus: 0)"
        for name, value in cell.serve_args.items():
            if need in _SWITCHED_OFF and (name, value) in _SWITCHED_OFF[need]:
                return f"{cell.name} turns it off ({name}: {str(value).lower()})"
        return ""

    @abstractmethod
    def first_request(self, cell: Cell, model: str) -> ProbeRequest:
        """:raises UsageError: the endpoint is another family's."""

    def defaults(self, cell: Cell) -> Mapping[str, object]:  # noqa: ARG002
        """Serve arguments that a cell may override."""
        return {}

    def reset_requests(self, env: Mapping[str, str]) -> tuple[ProbeRequest, ...]:  # noqa: ARG002
        """Requests that empty the caches of a server with this environment."""
        return ()

    def iterates(self, cell: Cell) -> bool:  # noqa: ARG002
        """Whether the result of a benchmark without a server has a value for each iteration."""
        return False

    def files(self, cell: Cell) -> dict[str, str]:  # noqa: ARG002
        """Texts by file name for the server's folder."""
        return {}

    def image_check(self, cell: Cell, model: str) -> ProbeRequest | None:  # noqa: ARG002
        """The request of the reference's image. :raises UsageError: unsupported endpoint."""
        return None


_SPECULATIVE = ("speculative-config", "spec-")
_SWITCHED_OFF: Mapping[Need, tuple[tuple[str, object], ...]] = {
    "prefix caching": (("enable-prefix-caching", False), ("no-enable-prefix-caching", True)),
    "compilation": (("enforce-eager", True),),
}


def hub_revision(revision: str | None) -> str | None:
    """A revision that a hub knows; None for local files."""
    return None if revision is None or revision.startswith(LOCAL) else revision


def _families() -> dict[str, Family]:
    from perfbisect.serving.families import offline, pooling, sglang, staged, text, transcription

    own = (text.FAMILY, pooling.FAMILY, transcription.FAMILY)
    others = (offline.OfflineFamily(), sglang.FAMILY)
    return {family.name: family for family in (*own, *staged.STAGED, *others)}


FAMILIES: dict[str, Family] = _families()


def family_at(endpoint: str) -> Family | None:
    """The family that ``vllm bench serve`` asks at an endpoint."""
    known = (family for family in FAMILIES.values() if endpoint in chain(*family.backends.values()))
    return next(known, None)
