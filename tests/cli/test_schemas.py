"""The schemas that are shipped: those of the models, and what may not change under a number."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from perfbisect.cli import schemas
from perfbisect.cli.app import run
from perfbisect.cli.documents import VERBS
from scripts.gen_schemas import breaks, files, text_of, write

MADE = files()
DOCUMENTS = {name: document for name, document in MADE.items() if "$id" in document}
SMALL: dict[str, Any] = {
    "$id": "perfbisect.small/1",
    "title": "Small",
    "properties": {
        "state": {"enum": ["good", "bad"], "type": "string"},
        "rows": {"type": "array", "items": {"$ref": "#/$defs/Row"}},
        "log": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["state", "rows"],
    "type": "object",
    "$defs": {"Row": {"type": "object", "properties": {"value": {"type": "number"}}, "required": ["value"]}},
}


def test_the_shipped_schemas_are_those_of_the_models() -> None:
    shipped = {path.name: path.read_text(encoding="utf-8") for path in schemas.FOLDER.glob("*.json")}
    assert shipped == {name: text_of(document) for name, document in MADE.items()}, (
        "python -m scripts.gen_schemas"
    )


def test_every_document_has_a_name_of_its_own() -> None:
    names = {
        str(model.model_fields["schema_"].default): model for models in VERBS.values() for model in models
    }
    assert len(DOCUMENTS) == len(names) == len({model for models in VERBS.values() for model in models})
    assert all(name.startswith("perfbisect.") and name.rpartition("/")[2].isdigit() for name in names)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_verb_s_schema_is_whole(verb: str) -> None:
    document = schemas.of_verb(verb)
    text = json.dumps(document)
    for reference in {part.split('"')[0] for part in text.split('"$ref": "#/$defs/')[1:]}:
        assert reference in document["$defs"], reference
    assert len(document["anyOf"]) == len(VERBS[verb])
    assert text.count('"$id"') == 0


def changed(**properties: object) -> dict[str, Any]:
    made = copy.deepcopy(SMALL)
    made["properties"] |= properties
    return made


def test_what_is_new_beside_the_old_breaks_nobody() -> None:
    new = changed(seconds={"type": "number"})
    new["required"].append("seconds")
    new["$defs"]["Row"]["properties"]["unit"] = {"type": "string"}
    new["properties"]["state"]["description"] = "another description"
    assert breaks(SMALL, new) == []


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"state": {"enum": ["good", "bad", "odd"], "type": "string"}}, "document.state: enum was"),
        ({"rows": {"type": "array", "items": {"type": "number"}}}, "document.rows[].value is gone"),
        ({"log": {"type": "string"}}, "document.log has other anyOf"),
        (
            {"log": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
            "document.log: type was string, is number",
        ),
    ],
)
def test_what_a_reader_would_go_wrong_with(properties: dict[str, object], said: str) -> None:
    assert any(text.startswith(said) for text in breaks(SMALL, changed(**properties)))


def test_a_key_that_goes_or_may_be_missing_breaks() -> None:
    gone = copy.deepcopy(SMALL)
    del gone["properties"]["log"]
    assert breaks(SMALL, gone) == ["document.log is gone"]
    loose = copy.deepcopy(SMALL)
    loose["required"] = ["state"]
    assert breaks(SMALL, loose) == ["document.rows may be missing"]
    below = copy.deepcopy(SMALL)
    below["$defs"]["Row"]["properties"] = {}
    assert breaks(SMALL, below) == ["document.rows[].value is gone"]


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_no_shipped_key_can_go_without_another_number(name: str) -> None:
    document = DOCUMENTS[name]
    assert breaks(document, document) == []
    for key in document["properties"]:
        less = copy.deepcopy(document)
        del less["properties"][key]
        assert f"document.{key} is gone" in breaks(document, less)


def test_nothing_is_written_that_would_break_a_reader(tmp_path: Path) -> None:
    assert write(tmp_path, {"small.json": SMALL}) == []
    shipped = (tmp_path / "small.json").read_text()
    less = changed(state={"type": "number"})
    assert any("perfbisect.small/1: document.state" in text for text in write(tmp_path, {"small.json": less}))
    assert (tmp_path / "small.json").read_text() == shipped
    assert write(tmp_path, {"small.json": less | {"$id": "perfbisect.small/2"}}) == []
    other = {"small.json": SMALL | {"$id": "perfbisect.small/2"}}
    assert write(tmp_path, other) != []
    assert write(tmp_path, other, ["perfbisect.small/2"]) == []
    assert write(tmp_path, {"other.json": SMALL}) == []
    assert [path.name for path in tmp_path.iterdir()] == ["other.json"], (
        "what nobody prints is shipped no more"
    )


def test_the_verbs_are_listed_without_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema"]) == 0
    shown = capsys.readouterr().out
    assert [line.split("  ")[0] for line in shown.splitlines()] == sorted(VERBS)
    assert run(["schema", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["schema"] == schemas.LISTED
    assert listed["verbs"]["status"] == ["perfbisect.status/2", "perfbisect.jobs/1"]
    assert run(["schema", "cell"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "perfbisect cell"
