"""The commands of a report, and the workload that they are together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfbisect.cells.reports import python
from perfbisect.cells.reports.arguments import (
    BENCH_DEFAULTS,
    SCRIPT_DEFAULTS,
    GivenFields,
    client_fields,
    offline_fields,
    server_fields,
)
from perfbisect.cells.reports.containers import ListedContainer
from perfbisect.cells.reports.environment import (
    NO_VARIABLES,
    ReportedEnvironment,
    read_assignments,
    read_exports,
    read_prefix,
    unread_variables,
)
from perfbisect.cells.reports.multi_turn import multi_turn_fields
from perfbisect.cells.reports.programs import (
    CALLS,
    OTHER_CLIENTS,
    OTHER_SERVERS,
    PROXIES,
    Call,
    find_calls,
    named_in,
)
from perfbisect.cells.reports.report import WORKLOAD_PARTS, EngineName, ReportedWorkload
from perfbisect.cells.reports.revisions import commits_in, judged_in, releases_in
from perfbisect.cells.reports.shell import assignments, read_lines, replace_variables, used_variables

_MOST_SHOWN = 5
"""Options, and lines that are not read, that notes name."""
_NO_ENGINE: EngineName = ""
_NOTHING = GivenFields({}, {})


class ReportCommands:
    """The commands of a text, in its order.

    ``servers``: each with its variables and its engine; ``anyones``: variables that the text lists without a
    command; ``problems``: lines that are not read, and why; ``left``: the text without what a container says.
    """

    def __init__(self, text: str) -> None:
        self.client: GivenFields | None = None
        self.offline: GivenFields | None = None
        self._load: GivenFields | None = None
        self.servers: list[tuple[GivenFields, ReportedEnvironment, EngineName]] = []
        self.problems: list[tuple[int, str]] = []
        self._text, self._measured = text, ""
        self._unread: list[str] = []
        self._anyones = self._exported = self._after = NO_VARIABLES
        self._used = used_variables(text)
        self._left = self._read_containers()
        for shell in read_lines(replace_variables(self._left, assignments(text)), CALLS):
            for words in shell.calls:
                self._read(words, shell.number)
            # What follows the name of a program in a sentence may have an apostrophe.
            words = shell.text.split() if shell.problem else ()
            if any(call.verb not in ("export", "assign") for call in find_calls(words)):
                self.problems.append((shell.number, shell.problem))
        # A word alone may be the next one of a sentence: it is the last guess for a model.
        self.servers.sort(
            key=lambda one: not (one[0].arguments or "/" in str(one[0].fields.get("model", "/")))
        )
        if not self.servers:
            self.offline = self.offline or python.read(text)

    @property
    def is_readable(self) -> bool:
        """Whether one of them is read."""
        return bool(self.client or self.servers or self.offline)

    def _read_containers(self) -> str:
        """The text without the containers that are read."""
        containers, self._unread = ListedContainer.find(self._text)
        lines = self._text.split("\n")
        for container in containers:
            line = min(container.lines) + 1
            try:
                calls = container.calls()
            except ValueError as error:
                self.problems.append((line, str(error)))
                continue
            if container.is_anyones:
                self._anyones |= container.variables
            for call in calls:
                self._call(call, container.variables, line)
            for index in container.lines if calls or container.is_anyones or container.is_others else ():
                lines[index] = ""
        return "\n".join(lines)

    def _read(self, words: Sequence[str], line: int) -> None:
        try:
            calls = list(find_calls(words))
        except ValueError as error:
            self.problems.append((line, str(error)))
            return
        for call in calls:
            if call.verb == "export":
                self._exported |= read_exports(call.words, self._used)
            elif call.verb == "assign":
                # A shell would keep it to itself: in a report it is what the server had.
                assigned = read_assignments(call.words, is_tuning=True)
                self._exported |= assigned
                self._after |= assigned
            else:
                self._call(call, self._exported | read_prefix(call.before), line)

    def _call(self, call: Call, variables: ReportedEnvironment, line: int) -> None:
        try:
            if call.verb == "server":
                engine: EngineName = "vllm_omni" if "--omni" in call.words else "vllm"
                self.servers.append((server_fields(call.words), variables, engine))
                self._after = NO_VARIABLES
            elif call.verb == "offline":
                if not self._measured:
                    self.offline, self._load = server_fields(call.words), offline_fields(call.words, call.sub)
                    self._measured = call.sub
            elif call.verb == "multi turn":
                self.client = self.client or multi_turn_fields(call.words)
            else:
                defaults = BENCH_DEFAULTS if call.verb == "bench" else SCRIPT_DEFAULTS
                self.client = self.client or client_fields(call.words, defaults)
        except ValueError as error:
            # Prose names a program without an argument.
            if call.words or not self.is_readable:
                self.problems.append((line, str(error)))

    def workload(self) -> ReportedWorkload:
        """What the first client and the first server say."""
        server, variables, engine = self.offline, NO_VARIABLES, _NO_ENGINE
        if self.servers:
            server, variables, engine = self.servers[0]
            # Those of no later server are what this one had, wherever they stand.
            variables = self._anyones | self._after | variables
        alone = self._measured if not self.client and not self.servers else ""
        load = self._load if alone else self.client
        served, asked = server or _NOTHING, load or _NOTHING
        fields = {**asked.fields, **served.fields}
        missing = [name for name in ("model", "task") if name not in fields]
        missing += ["deploy YAML"] if server is None else []
        missing += [] if load else WORKLOAD_PARTS[WORKLOAD_PARTS.index("dataset") :]
        arguments, remarks = dict(asked.arguments), (*asked.remarks, *served.remarks)
        notes = [*self._apart(), *remarks, *self._passed_over()]
        name = asked.names.get("asked")
        if name is not None and "model" in served.fields:
            names = [str(fields["model"]), *_listed(served.names.get("served"))]
            # A client asks for an adapter by the name of a model.
            adapters = {module.partition("=")[0] for module in _listed(served.names.get("adapters"))}
            if name in adapters:
                arguments.setdefault("lora-modules", name)
            elif name not in names:
                notes.append(f"the client asks for {name}, the server has {fields['model']}")
        computed = dict.fromkeys((*asked.computed, *served.computed))
        return ReportedWorkload(
            fields,
            tuple(missing),
            arguments=arguments,
            closed=load is not None,
            serve_args=server.arguments if server else None,
            env=variables.values if self.servers else None,
            unread=tuple(dict.fromkeys(self._not_read(variables))),
            engine=engine,
            # The model is unsaid only where no command says it.
            unsaid=tuple(name for name in computed if name not in fields),
            defaults=asked.defaults,
            notes=tuple(notes),
            offline=alone,
            releases=releases_in(self._text),
            commits=commits_in(self._text),
            judged=judged_in(self._text),
        )

    def _not_read(self, variables: ReportedEnvironment) -> Iterator[str]:
        """What is set for the server and is in no field."""
        yield from variables.unread
        yield from self._unread
        # What another server has is a difference between them.
        known = {name for _, others, _ in self.servers for name in others.values} | variables.values.keys()
        yield from unread_variables(self._left, known)
        if proxies := named_in(self._text, PROXIES):
            count = f"{len(self.servers)} servers" if len(self.servers) > 1 else "servers"
            yield f"{count} behind {', '.join(proxies)}: one server is measured"
        others = named_in(self._text, OTHER_SERVERS)
        if others and not self.servers:
            yield f"the server, which is that of {others[0]}"

    def _apart(self) -> Iterator[str]:
        """In what servers differ of which each was measured."""
        names: dict[str, None] = {}
        first, variables, _ = self.servers[0] if self.servers else (_NOTHING, NO_VARIABLES, "")
        for other, others, _ in self.servers[1:]:
            for a, b, prefix in (
                (first.fields, other.fields, ""),
                (first.arguments, other.arguments, "--"),
                (variables.values, others.values, ""),
            ):
                names |= {f"{prefix}{n}": None for n in sorted({*a, *b}) if a.get(n) != b.get(n)}
        if names:
            shown = ", ".join(list(names)[:_MOST_SHOWN])
            yield f"of {len(self.servers)} servers' commands the first is read; they differ in {shown}"

    def _passed_over(self) -> Iterator[str]:
        """Programs and commands that are not read."""
        if not self.client or not self.servers:
            for line, problem in self.problems[:_MOST_SHOWN]:
                yield f"line {line} is not read: {problem}"
        yield from (f"the client {name} is not read" for name in named_in(self._text, OTHER_CLIENTS))
        if self.servers:
            yield from (f"the server of {name} is not read" for name in named_in(self._text, OTHER_SERVERS))
        if self._measured and (self.client or self.servers):
            yield f"vllm bench {self._measured}, which has no server, is another load, and is not read"


def _listed(value: object) -> list[str]:
    return [str(one) for one in (value if isinstance(value, list) else [value]) if one is not None]
