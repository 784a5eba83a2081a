"""Every command in the documents is one: verb, options and values are those that the command line has."""

from __future__ import annotations

import pytest

from tests.docs.commands import Command, Document, commands_of, documents, in_text, targets, wrong_with

DOCUMENTS = documents()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_the_command_line_takes_what_a_document_types(document: Document) -> None:
    found = [command for command in commands_of(document) if command.program == "perfbisect"]
    wrong = {f"{command.place}: {command.text}": wrong_with(command) for command in found}
    assert {text: why for text, why in wrong.items() if why} == {}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_make_can_do_what_a_document_asks_of_it(document: Document) -> None:
    asked = [command for command in commands_of(document) if command.program == "make"]
    unknown = [
        f"{command.place}: {command.text}"
        for command in asked
        for word in command.words
        if "=" not in word and word not in targets()
    ]
    assert unknown == []


def test_there_are_commands_to_look_at() -> None:
    counts = {document.name: len(commands_of(document)) for document in DOCUMENTS}
    assert counts["README.md"] >= 8
    assert counts["cli.md"] >= 30
    assert sum(counts.values()) >= 300


TEXT = """Say `perfbisect bisect --direction
improvement` or `make demo-fast SEED=2`, not `bisect`.

```sh
$ perfbisect bisect c --good a --bad b \\
    --workers 2     # two at once
X=1 .venv/bin/perfbisect track ack|close ALERT > out.md
perfbisect status ... --json && perfbisect doctor
demo: perfbisect is not typed here
perfbisect track show [CELL...]
```
"""


def test_what_is_found_in_a_text() -> None:
    found = list(in_text(TEXT, "x.md"))
    assert [(command.line, command.text, command.fenced, command.elided) for command in found] == [
        (5, "perfbisect bisect c --good a --bad b --workers 2", True, False),
        (7, "perfbisect track ack ALERT", False, False),
        (7, "perfbisect track close ALERT", False, False),
        (8, "perfbisect status --json", True, True),
        (10, "perfbisect track show CELL", True, False),
        (1, "perfbisect bisect --direction improvement", False, False),
        (2, "make demo-fast SEED=2", False, False),
    ]


@pytest.mark.parametrize(
    ("words", "fenced", "why"),
    [
        ("bisect c --good a --bad b", True, ""),
        ("compare c --a a", True, "Missing option '--b'"),
        ("compare c --a a", False, ""),
        ("bisect c --god a --bad b", False, "No such option"),
        ("bisect c --good a --bad b --workers two", True, "Invalid value"),
        ("bisct", False, "there is no verb bisct"),
        ("track detct", False, "there is no verb track detct"),
        ("track", False, ""),
        ("track", True, "track needs a verb"),
        ("--version", True, ""),
        ("--verson", True, "perfbisect has no option --verson"),
        ("bisect --help", True, ""),
    ],
)
def test_what_is_no_command_is_seen(words: str, fenced: bool, why: str) -> None:
    told = wrong_with(Command("perfbisect", tuple(words.split()), "x.md", 1, fenced))
    assert told.startswith(why) if why else told == ""
    elided = Command("perfbisect", ("bisect", "--detached-from-all"), "x.md", 1, True, elided=True)
    assert wrong_with(elided) == "no option --detached-from-all"
