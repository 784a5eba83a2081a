"""Wheels that their index has no longer: what was kept of it makes the same environments."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.environments.base import Builder
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.cached import CachedBuilder
from perfbisect.environments.factory import make_builder
from perfbisect.environments.kept import KeptArtifact, KeptArtifacts
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import Change
from tests.environments.builders.test_wheel import DEFAULT, Site
from tests.environments.builders.test_wheel import site as site
from tests.environments.conftest import refusal_of


def keep(site: Site, builder: Builder, sha: str) -> KeptArtifact:
    artifact = builder.artifact(Change(sha))
    assert artifact is not None
    wanted = KeptArtifact(sha, builder.spec, 0.0, "asked for")
    kept, _ = KeptArtifacts(site.cache).keep(artifact, wanted, BuildRun(site.log, 60.0), None)
    return kept


def other_cache(site: Site) -> Site:
    """The same index and kept wheels, and no environment."""
    folder = site.cache / "other"
    folder.mkdir()
    (folder / "kept").symlink_to(site.cache / "kept")
    return Site(site.index, site.history, site.repository, folder, site.log)


def overlay(site: Site) -> Builder:
    spec = f"overlay:{site.index.address}/{{sha}},package=tiny_engine{DEFAULT}"
    return make_builder(spec, repository=site.repository, cache=site.cache)


@pytest.mark.parametrize("silent", [False, True], ids=["deleted", "unreachable"])
def test_an_environment_is_the_same_from_what_was_kept(site: Site, silent: bool) -> None:
    slow = Change(site.history.slow)
    site.serve(slow.id)
    before = site.ensure(site.builder(), slow)
    kept = keep(site, site.builder(), slow.id)
    site.index.files.clear()
    if silent:
        site.index.failing["*"] = [503]
    later = other_cache(site)
    builder = later.builder()
    builder.prepare([slow])
    assert builder.refuses(slow) is None and builder.key(slow) == before.key
    assert builder.disk([slow]) == 3 * kept.files[0].bytes
    after = later.ensure(builder, slow)
    assert (after.key, after.packages_digest) == (before.key, before.packages_digest)
    assert after.facts["kept"] == kept.digest and after.facts["wheel"] == before.facts["wheel"]
    assert "kept" not in before.facts and not (after.folder / "kept").exists()
    problem = "HTTP 503" if silent else "HTTP 404"
    assert f"# {problem} at {site.index.address}" in site.log.read_text()
    assert f"what was kept of it is installed, {kept.digest}" in site.log.read_text()
    (note,) = builder.notes()
    assert note == f"1 of 1 commits have wheels that were kept; the index: {problem}"


def test_what_the_index_still_has_is_taken_from_it(site: Site) -> None:
    site.serve(site.history.slow)
    builder = site.builder()
    keep(site, builder, site.history.slow)
    assert "kept" not in site.ensure(site.builder(), Change(site.history.slow)).facts


def test_the_variant_that_is_kept_is_taken_where_the_index_is_silent(site: Site) -> None:
    for name in ("base", "slow"):
        sha = getattr(site.history, name)
        site.serve(sha)
        keep(site, site.builder(""), sha)
    site.index.files.clear()
    site.index.failing["*"] = [503]
    later = other_cache(site)
    builder = later.builder("")
    changes = [Change(site.history.base), Change(site.history.slow)]
    builder.prepare(changes)
    assert [builder.known[change.id].variant for change in changes] == ["", ""]
    assert not any(builder.refuses(change) for change in changes)
    with pytest.raises(MachineError, match="does not answer"):
        other = Site(site.index, site.history, site.repository, site.cache / "none", site.log)
        other.builder("").prepare(changes)


def damage(kept: KeptArtifact, cache: Path, data: bytes) -> None:
    (path,) = (cache / "kept" / "files").glob(f"{kept.files[0].digest}/*")
    path.write_bytes(data)


def test_a_truncated_wheel_is_a_hole_again(site: Site) -> None:
    slow = Change(site.history.slow)
    site.serve(slow.id)
    kept = keep(site, site.builder(), slow.id)
    site.index.files.clear()
    damage(kept, site.cache, b"x" * (kept.files[0].bytes - 1))
    assert refusal_of(site.builder(), slow).reason.startswith("no wheel: HTTP 404")


def test_a_changed_wheel_is_removed_and_never_installed(site: Site) -> None:
    slow = Change(site.history.slow)
    site.serve(slow.id)
    kept = keep(site, site.builder(), slow.id)
    site.index.files.clear()
    damage(kept, site.cache, b"x" * kept.files[0].bytes)
    builder = site.builder()
    assert builder.refuses(slow) is None, "it is hashed when it is used"
    with pytest.raises(BuildError, match="no wheel: HTTP 404"):
        site.ensure(builder, slow)
    assert "it is removed" in site.log.read_text()
    assert refusal_of(site.builder(), slow).reason.startswith("no wheel: HTTP 404")


def test_a_cut_download_is_not_kept(site: Site) -> None:
    slow = site.history.slow
    site.serve(slow)
    (path,) = [path for path in site.index.files if path.endswith(".whl")]
    whole = site.index.files[path]
    for data in (whole[:-300], b"<html>"):
        site.index.files[path] = data
        with pytest.raises(MachineError, match="cut or damaged"):
            keep(site, site.builder(), slow)
    page = f"/{slow}/tiny-engine/"
    site.index.files[path] = whole
    site.index.files[page] = site.index.files[page].replace(b'.whl"', b".whl#sha256=" + b"0" * 64 + b'"')
    with pytest.raises(MachineError, match="cut or damaged"):
        keep(site, site.builder(), slow)
    assert KeptArtifacts(site.cache).all() == ()


def test_an_overlay_lies_over_a_wheel_that_was_kept(site: Site) -> None:
    """The wheel of a commit with equal build inputs, which is the night's own environment."""
    base, slow = Change(site.history.base), Change(site.history.slow)
    site.serve(base.id)
    builder = overlay(site)
    builder.prepare([base, slow])
    before = site.ensure(builder, slow)
    kept = keep(site, builder, slow.id)
    assert kept.change == slow.id
    site.index.files.clear()
    later = other_cache(site)
    again = overlay(later)
    again.prepare([base, slow])
    after = later.ensure(again, slow)
    assert (after.key, after.packages_digest) == (before.key, before.packages_digest)
    assert after.facts["kept"] == kept.digest and "kept" not in before.facts


def test_builders_that_need_no_registry_keep_nothing(site: Site) -> None:
    for spec in ("source,package=tiny_engine", "command:true {env},package=tiny_engine"):
        builder = make_builder(spec, repository=site.repository, cache=site.cache)
        assert isinstance(builder.builders[0], CachedBuilder)
        assert builder.artifact(Change(site.history.slow)) is None
    assert site.builder().artifact(Change(site.history.slow)) is None, "the index has none"
