"""Commands of vLLM in a text, read as a shell reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.cells.match import EngineCommand, parse_commands, parse_report
from perfbisect.errors import UsageError

BENCH = "vllm bench serve --model org/tts --num-prompts 48 --max-concurrency 1"
FIELDS = {"model": "org/tts", "num_prompts": 48, "max_concurrency": 1}


@pytest.mark.parametrize(
    "text",
    [
        "Slower since Monday:\n{}\nThe users' load hasn't changed.",
        "```bash\n$ {}\n```\nThat doesn't finish.",
        "`{}`",
        "CUDA_VISIBLE_DEVICES=0 {} 2>&1 > bench.log",
        "cd /srv && {} | tee log",
        "{}  # as in the nightly",
        "压测命令：\n{}\n首字延迟变慢了",
    ],
)
def test_a_command_on_a_line_of_its_own_is_read(text: str) -> None:
    seen = parse_report(text.format(BENCH))
    assert {name: seen.fields[name] for name in FIELDS} == FIELDS
    assert dict(seen.arguments) == {}
    assert seen.missing == ("task", "deploy YAML")


@given(before=st.text("ab' \"`“”‘’，。;&|(\n"), after=st.text("ab' \"`“”‘’，。;&|)\n"))
def test_other_lines_change_nothing(before: str, after: str) -> None:
    seen = parse_report(f"{before}\n{BENCH}\n{after}")
    assert {name: seen.fields[name] for name in FIELDS} == FIELDS
    assert dict(seen.arguments) == {}


@pytest.mark.parametrize(
    "argument",
    [
        """--extra-body '{"voice": "it is"}'""",
        r'''--extra-body "{\"voice\": \"it is\"}"''',
        """--extra-body='{"voice": "it is"}'""",
    ],
)
def test_a_quoted_value_is_one_word(argument: str) -> None:
    assert parse_report(f"{BENCH} {argument}").fields["extra_body"] == {"voice": "it is"}


@pytest.mark.parametrize("between", [" ", " \\\n  ", "\n  ", " \\ \r\n"])
def test_a_wrapped_command_is_one(between: str) -> None:
    assert parse_report(BENCH.replace(" --max", f"{between}--max")).fields["max_concurrency"] == 1


def test_an_option_with_several_values_keeps_them() -> None:
    assert parse_report(f"{BENCH} --lora-modules a b c").arguments == {"lora-modules": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("vllm bench serve --num-prompts 'unclosed, and late", "No closing quotation"),
        ("Run 'vllm bench serve --num-prompts 4'", "neither"),
        ("vllm bench serve --num-prompts 4 is slow", "--num-prompts takes one value"),
        ("vllm bench serve is slow", "is not a long option"),
        ("It isn't slow", "neither"),
    ],
)
def test_what_is_no_command_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_report(text)


def test_each_command_of_a_line() -> None:
    text = "bin/vllm serve org/m --seed 1 & sleep 60; python -m vllm.entrypoints.cli.main bench serve --x"
    assert parse_commands(text) == (
        EngineCommand("server", ("org/m", "--seed", "1")),
        EngineCommand("bench", ("--x",)),
    )
    assert parse_commands("to serve many users of vllm; serve") == ()
