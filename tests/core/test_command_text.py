"""Commands among the sentences of people: what they wrote around one changes nothing of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.core.command_text import commands
from perfbisect.core.sighting import sighting
from perfbisect.errors import UsageError

BENCH = "vllm bench serve --model org/tts --num-prompts 48 --max-concurrency 1"
SAID = {"model": "org/tts", "num_prompts": 48, "max_concurrency": 1}

AROUND = [
    "It's slower since Monday, and I can't say why:\n{}\nThe users' load hasn't changed.",
    'Don\'t run "{}" on the 5" box',
    "Run '{}', it's slow",
    "the team's `{}` isn't what it was",
    "```bash\n$ {}\n```\nThat doesn't finish.",
    'bash -c "{}"',
    "an unbalanced ' or \" before, and {}",
    "{} isn't fast",
    "{}. It's 5' of walk and a \" too many",
    "({})",
    "{}, then nothing",
    "{} 2>&1 > it's.log",
    "{}  # it's the nightly's",
    "我跑了“{}”，结果不对",
    "用{}，首字延迟变慢了（don't know why）",
    "压测命令：{}。变慢了！",
    "命令「{}」——it's slower",
    "vllm serve isn't slow, and vllm bench serve says so:\n{}",
    "{}；vllm serve 还没试",
]


@pytest.mark.parametrize("around", AROUND)
def test_a_command_is_read_whatever_the_sentence_around_it(around: str) -> None:
    seen = sighting(around.format(BENCH))
    assert {name: seen.fields[name] for name in SAID} == SAID
    assert dict(seen.arguments) == {}
    assert seen.missing == ("task", "deploy YAML")


@given(before=st.text("ab' \"`“”‘’，。;&|(\n"), after=st.text("ab' \"`“”‘’，。;&|)\n"))
def test_no_line_of_prose_touches_the_line_of_a_command(before: str, after: str) -> None:
    seen = sighting(f"{before}\n{BENCH}\n{after}")
    assert {name: seen.fields[name] for name in SAID} == SAID
    assert dict(seen.arguments) == {}


@pytest.mark.parametrize(
    "typed",
    [
        """--extra-body '{"voice": "it is"}'""",
        r'''--extra-body "{\"voice\": \"it is\"}"''',
        """--extra-body='{"voice":\n "it is"}'""",
        """--extra-body ‘{"voice": "it is"}’""",
        """—extra-body '{"voice": "it is"}'""",
    ],
)
def test_a_quoted_value_is_one_word(typed: str) -> None:
    seen = sighting(f"we don't know\n{BENCH} {typed}\nthat's all")
    assert seen.fields["extra_body"] == {"voice": "it is"}


def test_a_command_that_was_wrapped_is_one() -> None:
    for between in (" ", " \\\n  ", "\n  ", " \\ \r\n"):
        assert sighting(BENCH.replace(" --max", f"{between}--max")).fields["max_concurrency"] == 1


def test_the_servers_command_in_a_sentence() -> None:
    seen = sighting(f"The team's server, 'vllm serve org/big --max-num-seqs 8', isn't loaded. `{BENCH}`")
    assert seen.fields["model"] == "org/big"
    assert seen.serve_args == {"max-num-seqs": 8}


def test_an_option_with_several_values_keeps_them() -> None:
    assert sighting(f"{BENCH} --lora-modules a b c").arguments == {"lora-modules": ["a", "b", "c"]}


def test_a_name_in_a_sentence() -> None:
    name = "result_test_tts_random_1_4_20260412-190115.json"
    assert sighting(f"the nightly's {name} isn't good，见附件").text == name
    with pytest.raises(UsageError):
        sighting(f"{name} isn't {name.replace('_4_', '_8_')}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("vllm bench serve --num-prompts 'unclosed, and late", "not closed"),
        ("vllm bench serve --num-prompts “unclosed", "not closed"),
        ("vllm bench serve --num-prompts 4 isn't it --seed 3", "stands between its options"),
        ("vllm bench serve --num-prompts 4、--seed 3", "its options go on behind '、'"),
        ("when vllm bench serve isn't there", "neither"),
    ],
)
def test_what_may_be_read_in_two_ways_is_refused_with_its_place(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        sighting(text)


def test_a_command_is_told_from_its_mention() -> None:
    found = commands("`vllm serve` is slow; vllm serve org/m; vllm serve m --seed 1; vllm bench serve it")
    assert [(one.verb, one.words, one.typed) for one in found] == [
        ("server", (), False),
        ("server", ("org/m",), True),
        ("server", ("m", "--seed", "1"), True),
        ("bench", ("it",), False),
    ]
