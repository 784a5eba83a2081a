"""Builder ``image:REGISTRY/NAME:{sha}``: container images that a project's CI built for each commit.

An environment's ``bin/python`` runs the image's in a container (:mod:`perfbisect.environments.container`), so
health checks, downloads and servers need not know of it. The engine's text files are copied beside it: they
prove the commit, and deploy YAMLs are read from them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from perfbisect.changes.git import Repository
from perfbisect.environments import container, uv
from perfbisect.environments.base import Artifact, Environment, Refusal
from perfbisect.environments.build import BuildRun, interpreter_environment
from perfbisect.environments.builders.cached import (
    BuildContext,
    CachedBuilder,
    Found,
    Recipe,
    claim_commit,
)
from perfbisect.environments.cache import variables
from perfbisect.environments.container import Container
from perfbisect.environments.health import check_version, identify_commit, import_engine
from perfbisect.environments.images import STORES, ImageLookup, ImageStore, full_reference
from perfbisect.environments.kept import KeptArtifacts
from perfbisect.environments.packages import EnginePackage, engine
from perfbisect.environments.source_tree import blobs_inside
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import Change, Kind

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


@dataclass(frozen=True)
class ImageSettings:
    """``template``: of the image's name; ``words``: more arguments of the tool's run command."""

    spec: str
    template: str
    package: EnginePackage
    python: str
    tool: str
    store: ImageStore
    words: tuple[str, ...]
    repository: Repository | None
    is_plan: bool

    @property
    def kind(self) -> Kind:
        """Images of commits need their repository; others are of releases."""
        return "commit" if self.repository else "release"


@dataclass(frozen=True)
class ChangeImage(Found):
    """``reference``: the image's name, empty for a change that has none."""

    reference: str
    image: ImageLookup


def builder(spec: Spec, context: BuildContext) -> CachedBuilder[ImageSettings, ChangeImage]:
    """The builder of commits, or of releases if the reference has ``{version}``."""
    package, words = engine(spec.option("package", "vllm")), spec.words("run")
    template = full_reference(spec.argument)
    named = set(_NAMED.findall(template))
    is_known = named and (named == {"version"} or named <= {"sha", "short"})
    if not is_known or not _REFERENCE.fullmatch(_NAMED.sub("x", template)):
        problem = f"{spec.argument!r} is not the name of an image for each change"
        raise spec.error(problem, "for example REGISTRY/NAME:{sha}, with {sha}, {short} or {version}")
    # pyxis is only taken by name: srun is on the PATH of machines without it, too.
    found = (name for name, (_, program) in STORES.items() if name != "pyxis" and shutil.which(program))
    tool = spec.option("tool") or next(found, "")
    if tool not in STORES:
        problem = f"tool={tool!r} is not known" if tool else "no podman, docker or enroot on PATH"
        raise spec.error(problem, f"install one, or write tool= with one of {', '.join(STORES)}")
    store, program = STORES[tool]
    repository = None if named == {"version"} else context.required_repository(spec)
    settings = ImageSettings(
        spec.text,
        template,
        package,
        spec.option("python") or "python3",
        tool,
        store(program, KeptArtifacts(context.cache.path)),
        words,
        repository,
        context.is_plan,
    )
    client = None
    if version := spec.option("client"):
        client = (
            repository.resolve(version) if repository else Change(f"{package.name}=={version}", "release")
        )
    # An image is fetched, not built: no build machine is asked.
    return CachedBuilder(RECIPE, spec.text, context.here, settings, kind=settings.kind, client=client)


def look_up(
    settings: ImageSettings, changes: Sequence[Change], known: Mapping[str, ChangeImage]
) -> dict[str, ChangeImage]:
    references = {change.id: _reference(settings, change) for change in changes}
    images = {found.reference: found.image for found in known.values()}
    unknown = sorted({name for name in references.values() if name} - set(images))
    if unknown:
        try:
            images |= settings.store.find(unknown)
        except MachineError as error:
            if not settings.is_plan:
                raise
            images |= dict.fromkeys(unknown, ImageLookup("silent", problem=error.message))
    none = ImageLookup("hole")
    return {
        change.id: ChangeImage(change, references[change.id], images.get(references[change.id], none))
        for change in changes
    }


def _reference(settings: ImageSettings, change: Change) -> str:
    """The image's name; empty for a release of another package."""
    name, _, version = change.source.partition("==")
    values = {"sha": change.source, "short": change.source[:_SHORT], "version": version}
    filled = _NAMED.sub(lambda found: values[found[1]], settings.template)
    is_ours = settings.repository is not None or name == settings.package.name
    return filled if is_ours and _REFERENCE.fullmatch(filled) else ""


def renew(settings: ImageSettings, found: ChangeImage) -> ChangeImage:
    if not found.reference or found.image.state != "silent":
        return found
    return replace(found, image=settings.store.find((found.reference,))[found.reference])


def refuses(settings: ImageSettings, found: ChangeImage) -> Refusal | None:
    if not found.reference:
        reason = f"{settings.spec} has images of a {settings.kind}; {found.change.short} is none"
        return Refusal(reason, error=True)
    reason = f"no image: {found.image.problem}"
    return Refusal(reason, code="image_missing") if found.image.state == "hole" else None


def key_parts(settings: ImageSettings, found: ChangeImage) -> tuple[object, ...]:
    """The digest names the content; each change is checked to be in it, so its id is part too."""
    return (
        found.image.digest,
        found.change.source,
        settings.tool,
        settings.words,
        settings.python,
        settings.package.module,
        str(uv.base_python()),
    )


def make(settings: ImageSettings, found: ChangeImage, build: BuildRun, staging: Path) -> Mapping[str, Any]:
    change, reference, digest = found.change, found.reference, found.image.digest
    image = settings.store.fetch(build, reference, digest, staging)
    interpreter = staging / "bin" / "python"
    interpreter.parent.mkdir()
    (staging / "caches" / "home").mkdir(parents=True)
    written = Container(settings.tool, image, settings.python, settings.words)
    (staging / container.SETTINGS).write_text(json.dumps(asdict(written)))
    source = Path(container.__file__).read_text("utf-8")
    interpreter.write_text(f"#!{uv.base_python()} -IS\n{source}")
    interpreter.chmod(0o755)
    facts = {"image": reference, "image_id": image, "digest": digest, "tool": settings.tool}
    facts |= {"kept": digest} if found.image.kept else {}
    labelled = settings.store.labels(image).get(REVISION, "").lower()
    if settings.repository and _COMMIT.fullmatch(labelled) and not change.source.startswith(labelled):
        raise BuildError(f"{change.short}: the label of {reference} says it is commit {labelled}")
    argv = (str(interpreter), "-c", _COPY, settings.package.module, str(staging))
    env = interpreter_environment(interpreter, variables(staging), _tool_variables())
    output = build.run(argv, env=env, cwd=staging)
    if output.code or output.timed_out:
        message = f"{change.short}: {reference} does not run: {output.last_line}"
        raise BuildError(message, where=build.log, output=output.text)
    return {**facts, "labelled_commit": labelled}


def check(settings: ImageSettings, found: ChangeImage, build: BuildRun, folder: Path) -> Environment:
    """Check that the engine in the image is the change, by what it reports and by its files."""
    change, module = found.change, settings.package.module
    interpreter, what = folder / "bin" / "python", f"{change.short} ({found.reference})"
    env = {**variables(folder), **_tool_variables()}
    imported = import_engine(build, interpreter, module, server=settings.package.server, env=env, what=what)
    # The path inside the container does not exist here; the copy of the engine's text files does.
    imported = replace(imported, file=folder / module / "__init__.py")
    shown, commit = "version", imported.commit
    if settings.repository is None:
        check_version(build, imported, change.source.partition("==")[2], what)
    else:
        tracked = blobs_inside(settings.repository, change.source, settings.package.folder)
        shown = identify_commit(imported, change.source, tracked, what=what, log=build.log)
        commit = change.source
    facts = {"identified_by": shown, "engine_says_commit": imported.commit}
    return imported.checked(commit, (folder / "packages.txt").read_text().splitlines(), facts)


def claim(
    settings: ImageSettings, found: ChangeImage, build: BuildRun, environment: Environment
) -> Environment:
    """Fetch an image again that was removed behind the environment's back."""
    image, digest = (str(environment.facts[name]) for name in ("image_id", "digest"))
    if not settings.store.has(image):
        settings.store.fetch(BuildRun(build.log, build.timeout), found.reference, digest, environment.folder)
    environment = claim_commit(settings, found, build, environment)
    return replace(environment, env={**environment.env, **_tool_variables()})


def _tool_variables() -> dict[str, str]:
    return {name: os.environ[name] for name in container.TOOL_VARIABLES if name in os.environ}


def artifact(settings: ImageSettings, found: ChangeImage) -> Artifact | None:
    """The image of a change; nothing of one of which the registry does not answer."""
    digest = found.image.digest
    return settings.store.artifact(found.reference, digest) if digest else None


def disk(_settings: ImageSettings, found: ChangeImage, _stamps: Sequence[Environment]) -> int | None:
    size = found.image.bytes
    return None if size is None else size * _UNPACKED


def notes(
    _settings: ImageSettings, known: Mapping[str, ChangeImage], _stamps: Sequence[Environment]
) -> tuple[str, ...]:
    silent = {found.image.problem for found in known.values() if found.image.state == "silent"}
    kept = [found.image.problem for found in known.values() if found.image.kept]
    said = ", ".join(sorted(set(kept)))
    return (
        *(f"images could not be looked up: {problem}" for problem in sorted(silent)),
        *([f"{len(kept)} of {len(known)} changes have images that were kept: {said}"] if kept else []),
    )


RECIPE = Recipe(
    name="image",
    wrong_kind="{spec} has images of a {kind}; {change} is none",
    look_up=look_up,
    refuses=refuses,
    key_parts=key_parts,
    make=make,
    check=check,
    renew=renew,
    claim=claim,
    artifact=artifact,
    disk=disk,
    notes=notes,
)
