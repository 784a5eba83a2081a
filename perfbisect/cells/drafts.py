"""A reported workload -> the text of a cell file, in which what the report does not say is marked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from perfbisect.cells.importers.base import SAMPLING
from perfbisect.cells.importers.vllm_ci import judged_fields, server_fields
from perfbisect.cells.reports.report import ReportedWorkload, hub_name
from perfbisect.clients.multi_turn_bench import CLIENT as MULTI_TURN
from perfbisect.clients.multi_turn_bench import DATASET
from perfbisect.common.secret_references import literal_secrets
from perfbisect.common.text import line
from perfbisect.common.yaml_source import dump
from perfbisect.errors import UsageError
from perfbisect.model.cell import SERVER
from perfbisect.serving.eras import SERVER_SAMPLING
from perfbisect.serving.families import FAMILIES, Family, family_at
from perfbisect.serving.families.offline import BENCHMARKS
from perfbisect.serving.families.pooling import is_pooling
from perfbisect.serving.families.probes import EDITS, IMAGES, SPEECH, VIDEOS
from perfbisect.serving.families.text import COMPLETIONS

_LOAD: Mapping[str, object] = {
    "dataset_name": "random",
    "dataset_args": {"random-input-len": 512, "random-output-len": 128},
    "ignore_eos": True,
    "num_prompts": 32,
    "max_concurrency": 1,
}
"""Requests of one user, where a report has no client."""
_LOADS = ("num_prompts", "max_concurrency", "request_rate")
"""One of them says the load."""

_SOUND = ("audio_ttfp", "audio_rtf", "audio_duration", "e2el")
_FAMILIES: Mapping[str, str] = {SPEECH: "tts", IMAGES: "diffusion", EDITS: "diffusion", VIDEOS: "diffusion"}
"""Families of vLLM-Omni by their endpoint; others are chats."""

_CLIENT_ONLY = ("lora-modules", "lora-assignment", "trust-remote-code", "goodput", "header", "logprobs")
"""Arguments of the client that are none of the data set."""

_CLIENT_DEFAULT = "not said: the client's default"
_TAKEN = "not said: taken here"
_FILES = (DATASET, "sharegpt", "custom", "custom_mm", "sonnet", "burstgpt", "spec_bench")


@dataclass
class CellDraft:
    """A cell of a report. ``document``: the file's keys; ``marks``: what is said beside one of them.

    ``unsaid``: what stands in no key; ``needs``: files that the cell reads, beside it.
    """

    document: dict[str, object] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    unsaid: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, report: ReportedWorkload, model: str = "") -> CellDraft:
        """The cell of a report; ``model``: where the report does not say it.

        Raises:
            UsageError: no model is said, or no family serves it.
        """
        named = model or report.fields.get("model")
        if not named:
            where = "it is set elsewhere" if "model" in report.unsaid else "it is nowhere"
            raise UsageError(
                "; ".join([f"the report does not say the model: {where}", *report.notes, *report.unread]),
                next_step="add --model NAME: a hub's name, or a folder",
            )
        draft = cls()
        endpoint = str(report.fields.get("endpoint", COMPLETIONS))
        own = family_at(endpoint) or FAMILIES["text"]
        if report.engine == "vllm_omni" or endpoint in _FAMILIES:
            own = FAMILIES[_FAMILIES.get(endpoint, "omni")]
        elif "endpoint" not in report.fields and is_pooling(report.serve_args or {}):
            own = FAMILIES["pooling"]
        own = FAMILIES["offline"] if report.offline else own
        family = own.name
        draft.add("family", family)
        draft.add_model(report, str(named), has_model=bool(model))
        draft.add("task", report.offline or ("generate" if family == "text" else None))
        if deploy := report.fields.get("deploy_yaml"):
            draft.add("deploy_yaml", {"from": "change", "path": str(deploy)})
        if report.offline:
            draft.add_benchmark(report)
        else:
            draft.add_requests(report, own)
        draft.add("stage_overrides", report.fields.get("stage_overrides"))
        draft.add_server(report)
        draft.document |= judged_fields((report.serve_args or {}) if family == "text" else {}, family)
        if report.offline:
            draft.document["headline"] = BENCHMARKS[report.offline]
        if family == "tts":
            draft.document["percentile_metrics"] = list(_SOUND)
        return draft

    def add(self, name: str, value: object, mark: str = "") -> None:
        """Set a key that has a value; a mark alone is a line of what is not said."""
        if value in (None, {}, [], ""):
            self.unsaid += [f"{name}: {mark}"] if mark else []
            return
        self.document[name] = value
        if mark:
            self.marks[name] = mark

    def add_model(self, report: ReportedWorkload, named: str, *, has_model: bool) -> None:
        local = named if os.path.exists(named) else hub_name(named)  # noqa: PTH110 - may be too long for a path
        there = f"in the report {named}" if local != named else ""
        self.add("model", local, "not said by the report" if has_model else there)
        tokenizer = report.fields.get("tokenizer")
        self.add("tokenizer", hub_name(str(tokenizer)) if tokenizer else None)
        self.add("revision", report.fields.get("revision"))

    def add_benchmark(self, report: ReportedWorkload) -> None:
        """What a benchmark without a server does: the data set's lengths, and options of its own."""
        lengths = {name: value for name, value in report.arguments.items() if name.endswith("-len")}
        if report.offline == "throughput":
            self.add("dataset_name", report.fields["dataset_name"], _default_of(report, "dataset_name"))
            if path := report.fields.get("dataset_path"):
                self._add_path(report.fields["dataset_name"], path)
            name = str(report.fields["dataset_name"]).replace("_", "-")
            lengths |= {key: value for key, value in report.arguments.items() if key.startswith(name)}
        self.add("dataset_args", lengths)
        self.add("num_prompts", report.fields.get("num_prompts"), _default_of(report, "num_prompts"))
        self.add("num_warmups", report.fields.get("num_warmups"))
        if "seed" in report.fields:
            self.add("seed", report.fields["seed"])
        others = {name: value for name, value in report.arguments.items() if name not in lengths}
        self.add("client", {"name": "offline_bench", "args": others} if others else "offline_bench")

    def _add_path(self, dataset: object, path: object) -> None:
        """The file of a data set, which is to be brought, or its name on a hub."""
        mark = "" if path else "not said: the file that the client reads"
        if dataset in _FILES:
            path = str(path or f"{dataset}.json")
            if path.startswith("/") and not os.path.exists(path):  # noqa: PTH110 - may be too long
                # Of a file on another machine the name is what is known.
                path, mark = path.rpartition("/")[2], f"in the report {path}"
            self.needs.append(path)
        self.add("dataset_path", path, mark if path else "")

    def add_requests(self, report: ReportedWorkload, own: Family) -> None:
        """What the client sends: said by the report, its client's default, or taken here."""
        fields, family = report.fields, own.name
        has_output = "output_tokens" in own.run_metrics
        has_load = report.closed or not fields.keys().isdisjoint(_LOADS)
        usual = next(iter(own.backends.items()), ("", ("",)))
        for name, taken in (("backend", usual[0]), ("endpoint", usual[1][0])):
            # The defaults of a cell are those of text.
            is_taken = name not in fields and family != "text"
            self.add(name, taken if is_taken else fields.get(name), _TAKEN if is_taken and taken else "")
        arguments = dict(report.arguments)
        sampling = {SAMPLING[name]: arguments.pop(name) for name in tuple(arguments) if name in SAMPLING}
        client = {name: arguments.pop(name) for name in _CLIENT_ONLY if name in arguments}
        if "dataset_name" in fields:
            named = fields["dataset_name"]
            self.add("dataset_name", named, _default_of(report, "dataset_name"))
            self._add_path(named, fields.get("dataset_path"))
            self.add("dataset_args", arguments)
        else:
            lengths = report.likely or _LOAD
            mark = "not said: means of the result" if report.likely else _TAKEN
            self.add("dataset_name", lengths["dataset_name"], mark)
            given = dict(lengths["dataset_args"]) if isinstance(lengths["dataset_args"], dict) else {}
            kept = {name: value for name, value in given.items() if has_output or "output" not in name}
            self.add("dataset_args", kept | arguments, "" if arguments.keys() >= kept.keys() else mark)
        self._add_sampling(report, family, sampling)
        if "ignore_eos" in fields:
            self.add("ignore_eos", fields["ignore_eos"], _default_of(report, "ignore_eos"))
        elif not report.closed and has_output:
            self.add("ignore_eos", True, _TAKEN)
        self.add("extra_body", fields.get("extra_body"))
        count = fields.get("num_prompts", _LOAD["num_prompts"])
        self.add(
            "num_prompts", count, _default_of(report, "num_prompts") if "num_prompts" in fields else _TAKEN
        )
        self.add("num_warmups", fields.get("num_warmups"), _default_of(report, "num_warmups"))
        if has_load and "max_concurrency" not in report.unsaid:
            self.add("max_concurrency", fields.get("max_concurrency"), _default_of(report, "max_concurrency"))
        else:
            self.add("max_concurrency", _LOAD["max_concurrency"], _TAKEN)
        for name in ("request_rate", "burstiness"):
            value = fields.get(name)
            if name not in report.defaults and value not in (None, float("inf"), 1.0):
                self.add(name, value)
        if "seed" not in report.defaults:
            self.add("seed", fields.get("seed"))
        named = {"diffusion": "diffusion_bench"}.get(family, "omni_bench")
        named = "vllm_bench" if own.package == "vllm" else named
        named = MULTI_TURN.name if fields.get("dataset_name") == DATASET else named
        is_usual = (family, named) == ("text", "vllm_bench")
        self.add("client", {"name": named, "args": client} if client else None if is_usual else named)

    def _add_sampling(self, report: ReportedWorkload, family: str, sampling: Mapping[str, object]) -> None:
        if family == "text" and report.is_silent_on_temperature:
            greedy = "sent 0" if report.has_server_sampling is False else "sends none"
            mark = f"not said: a client until {SERVER_SAMPLING.change} sent 0, since v0.15 it sends none"
            if report.has_server_sampling is not None:
                mark = f"not said: the client of {report.releases[-1]} {greedy}"
            silent = {"temperature": 0} if report.has_server_sampling is False else {"temperature": SERVER}
            value: object = {**silent, **sampling}
            self.add("sampling", SERVER if value == {"temperature": SERVER} else value, mark)
        else:
            self.add("sampling", dict(sampling), "")

    def add_server(self, report: ReportedWorkload) -> None:
        serve = dict(report.serve_args or {})
        self.add(
            "serve_args", serve, "" if report.serve_args is not None else "not said: the server's options"
        )
        env: dict[str, object] = dict(report.env or {})
        held = {"serve_args": serve, "env": env}
        for place in tuple(literal_secrets(held)):
            # A secret is named, not written: a cell is kept in journals.
            above: object = held
            for step in place[:-1]:
                above = above[step] if isinstance(above, dict) else None
            if isinstance(above, dict):
                name = re.sub(r"\W", "_", str(place[-1])).upper()
                above[place[-1]] = f"${{{name}}}"
                self.unsaid.append(f"{'.'.join(map(str, place))}: a secret, which ${name} is to have")
        self.add("env", env)
        gpus = server_fields(env, serve)["gpus"]
        parallel = [name for name in report.unsaid if name.endswith("parallel-size")]
        # 0 reserves no device, and is as much an answer as 1.
        self.document["gpus"] = gpus
        if parallel or report.serve_args is None:
            self.marks["gpus"] = "not said: the sizes of parallelism" if parallel else _TAKEN

    def text(self, notes: tuple[str, ...]) -> str:
        """The cell file."""
        rows = [f"# {line(note)}" for note in (*notes, *self.unsaid)]
        for name, value in self.document.items():
            dumped = dump({name: value})
            mark = self.marks.get(name)
            is_short = mark and dumped.count("\n") == 1 and len(dumped) + len(mark) < 100
            rows += [f"# {line(mark)}"] if mark and not is_short else []
            rows.append(dumped.rstrip("\n") + (f"  # {line(mark)}" if mark and is_short else ""))
        return "\n".join(rows) + "\n"


def _default_of(report: ReportedWorkload, name: str) -> str:
    return _CLIENT_DEFAULT if name in report.defaults else ""


def bisect_ends(report: ReportedWorkload) -> tuple[str, str]:
    """The good and the bad end that a report names; empty texts where it names no two.

    Of several releases the oldest and the newest; of commits the first that it calls good and bad, else the
    first and the last, which a report most often names in that order.
    """
    named = report.commits if len(report.commits) > 1 else report.releases
    words = [report.judged.get(one, "neither") for one in named]
    if len(named) < 2 or "" in words or words in (["good"] * len(words), ["bad"] * len(words)):
        return "", ""
    first = next((word for word in ("good", "neither") if word in words), "")
    bad = words.index("bad") if "bad" in words else max(i for i, word in enumerate(words) if word != "good")
    return named[words.index(first)], named[bad]


def notes_of(report: ReportedWorkload, draft: CellDraft) -> Iterator[str]:
    """What a reader of the draft must know of the report."""
    yield from report.notes
    yield from (f"not read, and set for the server: {name}" for name in report.unread)
    names = [name for name in report.unsaid if name != "model" or "model" in draft.marks]
    if names:
        yield f"not said, since a shell computes it: {', '.join(names)}"
    named = (*report.releases, *report.commits)
    if bisect_ends(report) == ("", "") or len(named) > 2:
        yield from [f"the report names {', '.join(named)}"] if named else ()
