"""Builder ``image:REGISTRY/NAME:{sha}``: container images that a project's CI built for each commit.

An environment's ``bin/python`` runs the image's in a container (:mod:`perfbisect.environments.container`), so
health checks, downloads and servers need not know of it. The engine's text files are copied beside it: they
prove the commit, and deploy YAMLs are read from them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from perfbisect.environments import container, uv
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.build import BuildRun, interpreter_environment
from perfbisect.environments.builders.cached import BuildContext, CachedBuilder
from perfbisect.environments.cache import CheckedEnvironment, variables
from perfbisect.environments.container import Container
from perfbisect.environments.health import check_version, identify_commit, import_engine
from perfbisect.environments.images import STORES, ImageLookup, default_tool, full_reference
from perfbisect.environments.source_tree import blobs_inside
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import Change

REVISION = "org.opencontainers.image.revision"
_NAMED = re.compile(r"\{(\w+)\}")
_SHORT = 7
"""Digits of ``{short}``, as in the tags of docker/metadata-action."""
_REFERENCE = re.compile(r"[a-z0-9](?:[\w.:/-]*[\w-])?:[\w.-]+", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_UNPACKED = 3
"""Size of an image on disk, as a multiple of its download."""

_COPY = """
import importlib.metadata, importlib.util, json, shutil, sys
from pathlib import Path
module, target = sys.argv[1], Path(sys.argv[2])
spec = importlib.util.find_spec(module)
if spec is None or not spec.submodule_search_locations:
    sys.exit(f"no package {module} in the image")
kept = {".py", ".yaml", ".yml", ".json", ".jinja"}
for file in Path(list(spec.submodule_search_locations)[0]).rglob("*"):
    if file.suffix in kept and file.is_file():
        copy = target / module / file.relative_to(list(spec.submodule_search_locations)[0])
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
names = {(found.metadata["Name"], found.version) for found in importlib.metadata.distributions()}
lines = sorted(f"{name}=={version}\\n" for name, version in names if name)
(target / "packages.txt").write_text("".join(lines))
"""


class ImageBuilder(CachedBuilder):
    """Builds commits, or releases if the reference has ``{version}``."""

    name = "image"

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        super().__init__(spec, context.here)  # an image is fetched, not built
        self.template = full_reference(spec.argument)
        named = set(_NAMED.findall(self.template))
        self.kind = "release" if named == {"version"} else "commit"
        is_known = named and (named == {"version"} or named <= {"sha", "short"})
        if not is_known or not _REFERENCE.fullmatch(_NAMED.sub("x", self.template)):
            problem = f"{spec.argument!r} is not the name of an image for each change"
            raise spec.error(problem, "for example REGISTRY/NAME:{sha}, with {sha}, {short} or {version}")
        tool = spec.option("tool") or default_tool()
        if tool not in STORES:
            problem = f"tool={tool!r} is not known" if tool else "no podman, docker or enroot on PATH"
            raise spec.error(problem, f"install one, or write tool= with one of {', '.join(STORES)}")
        self.tool = tool
        kind, program = STORES[tool]
        self.store = kind(program)
        self.words = spec.words("run")
        self._lookups: dict[str, ImageLookup] = {}
        self._is_plan = context.is_plan
        self.repository = context.required_repository(spec) if self.kind == "commit" else None
        if client := spec.option("client"):
            release = Change(f"{self.package.name}=={client}", "release")
            self.client_change = self.repository.resolve(client) if self.repository else release

    def prepare(self, changes: Iterable[Change]) -> None:
        named = {name for change in changes if (name := self.reference(change))} - set(self._lookups)
        if named:
            try:
                self._lookups |= self.store.find(sorted(named))
            except MachineError as error:
                if not self._is_plan:
                    raise
                self._lookups |= dict.fromkeys(named, ImageLookup("silent", problem=error.message))

    def notes(self) -> tuple[str, ...]:
        silent = {lookup.problem for lookup in self._lookups.values() if lookup.state == "silent"}
        return tuple(f"images could not be looked up: {problem}" for problem in sorted(silent))

    def reference(self, change: Change) -> str:
        """The image's name; empty for a change that has none by its kind."""
        if change.kind != self.kind:
            return ""
        name, _, version = change.source.partition("==")
        values = {"sha": change.source, "short": change.source[:_SHORT], "version": version}
        filled = _NAMED.sub(lambda found: values[found[1]], self.template)
        is_ours = self.kind == "commit" or name == self.package.name
        return filled if is_ours and _REFERENCE.fullmatch(filled) else ""

    def refuses(self, change: Change) -> Refusal | None:
        reference = self.reference(change)
        if not reference:
            return Refusal(f"{self.spec} has images of a {self.kind}; {change.short} is none", error=True)
        lookup = self.lookup(change)
        reason = f"no image: {lookup.problem}"
        return Refusal(reason, code="image_missing") if lookup.state == "hole" else None

    def key_parts(self, change: Change) -> tuple[object, ...]:
        """The digest names the content; each change is checked to be in it, so its id is part too."""
        content = self.lookup(change).digest
        return (
            content,
            change.source,
            self.tool,
            self.words,
            self._python,
            self.package.module,
            str(uv.base_python()),
        )

    @property
    def _python(self) -> str:
        return self.python or "python3"

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        """Fetch an image again that was removed behind the environment's back."""
        if self.lookup(change).state == "silent":
            self._lookups |= self.store.find((self.reference(change),))
        environment = super().ensure(change, log=log, timeout=timeout)
        image, digest = (str(environment.facts[name]) for name in ("image_id", "digest"))
        if not self.store.has(image):
            self.store.fetch(BuildRun(log, timeout), self.reference(change), digest, environment.folder)
        return replace(environment, env={**environment.env, **_tool_variables()})

    def make(self, build: BuildRun, change: Change, staging: Path) -> Mapping[str, Any]:
        reference = self.reference(change)
        digest = self.lookup(change).digest
        image = self.store.fetch(build, reference, digest, staging)
        interpreter = staging / "bin" / "python"
        interpreter.parent.mkdir()
        (staging / "caches" / "home").mkdir(parents=True)
        settings = Container(self.tool, image, self._python, self.words)
        (staging / container.SETTINGS).write_text(json.dumps(asdict(settings)))
        source = Path(container.__file__).read_text("utf-8")
        interpreter.write_text(f"#!{uv.base_python()} -IS\n{source}")
        interpreter.chmod(0o755)
        facts = {"image": reference, "image_id": image, "digest": digest, "tool": self.tool}
        labelled = self.store.labels(image).get(REVISION, "").lower()
        if self.kind == "commit" and _COMMIT.fullmatch(labelled) and not change.source.startswith(labelled):
            raise BuildError(f"{change.short}: the label of {reference} says it is commit {labelled}")
        argv = (str(interpreter), "-c", _COPY, self.package.module, str(staging))
        env = interpreter_environment(interpreter, variables(staging), _tool_variables())
        output = build.run(argv, env=env, cwd=staging)
        if output.code or output.timed_out:
            message = f"{change.short}: {reference} does not run: {output.last_line}"
            raise BuildError(message, where=build.log, output=output.text)
        return {**facts, "labelled_commit": labelled}

    def check(self, build: BuildRun, change: Change, folder: Path) -> CheckedEnvironment:
        """Check that the engine in the image is the change, by what it reports and by its files."""
        interpreter, what = folder / "bin" / "python", f"{change.short} ({self.reference(change)})"
        env = {**variables(folder), **_tool_variables()}
        found = import_engine(build, interpreter, self.package.module, env=env, what=what)
        found = replace(found, file=folder / self.package.module / "__init__.py")
        shown, commit = "version", found.commit
        if self.repository is None:
            check_version(build, found, change.source.partition("==")[2], what)
        else:
            tracked = blobs_inside(self.repository, change.source, self.package.folder)
            shown = identify_commit(found, change.source, tracked, what=what, log=build.log)
            commit = change.source
        facts = {"identified_by": shown, "engine_says_commit": found.commit}
        return found.checked(commit, (folder / "packages.txt").read_text().splitlines(), facts)

    def bytes_of(self, change: Change) -> int | None:
        size = self.lookup(change).bytes
        return None if size is None else size * _UNPACKED

    def lookup(self, change: Change) -> ImageLookup:
        """What is known of a change's image; asked for once."""
        self.prepare((change,))
        return self._lookups[self.reference(change)]


def _tool_variables() -> dict[str, str]:
    return {name: os.environ[name] for name in container.TOOL_VARIABLES if name in os.environ}
