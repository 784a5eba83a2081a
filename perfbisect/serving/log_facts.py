"""Facts that an engine logs while it starts: choices, sizes and configuration.

The patterns cover vLLM 0.4 to 0.32 on CPU, CUDA and ROCm. Only whole messages before the end of the start are
read, so that a prompt in the log cannot look like a fact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Final

from perfbisect.system.logs import without_colours

_PAIR = re.compile(r"""\s*['"]?([A-Za-z_][\w.-]*)['"]?\s*[=:]\s*(.*)""", re.DOTALL)
_NESTED = re.compile(r"(?:[A-Za-z_]\w*\(|\{)(.*)[)}]", re.DOTALL)
_ENUM = re.compile(r"<\w+\.(\w+): .*>", re.DOTALL)
_DEEPEST = 6


def leaves(text: str, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """``a=1, b=C(d={'e': <F.G: 2>})`` -> ``("a", "1"), ("b.d.e", "G")``; text that is no pair is skipped.

    Lists stay whole; an enumeration is its member's name.
    """
    for part in _split_at_commas(text):
        pair = _PAIR.fullmatch(part)
        if pair is None:
            continue
        name, value = prefix + pair[1], pair[2].strip()
        inner, enum = _NESTED.fullmatch(value), _ENUM.fullmatch(value)
        if inner and depth < _DEEPEST and _PAIR.match(inner[1]):
            yield from leaves(inner[1], name + ".", depth + 1)
        else:
            yield name, enum[1] if enum else value.strip("'\"").removeprefix("torch.")


def _split_at_commas(text: str) -> Iterator[str]:
    """Split at commas outside of brackets and quotes."""
    depth, quote, start = 0, "", 0
    for at, character in enumerate(text):
        if quote:
            if character == quote and text[at - 1] != "\\":
                quote = ""
        elif character in "'\"":
            quote = character
        elif character == "," and depth == 0:
            yield text[start:at]
            start = at + 1
        else:
            depth += (character in "([{<") - (character in ")]}>")
    yield text[start:]


NOT_LOGGED: Final = "not logged"
"""Value of a fact that one side's log does not have."""

_STARTED = "Application startup complete"
_PREFIX = re.compile(
    r"(?:\([^()]*\)\s*)*(?:(?:DEBUG|INFO|WARNING|ERROR)\s+[\d-]+ [\d:.,]+\s+\[?[\w./-]+:\d+\]\s*)?"
    r"(?:\[[\w ]+\] )?"
)
_STAGE = re.compile(
    r"(?P<before>(?:\([^()]*\)\s*)*)\[Stage-(?P<marked>\d+)\]\s*|\([^()]*_stage(?P<named>\d+)_replica"
)
"""A stage of vLLM-Omni before a message: ``[Stage-0]`` until 0.16, then in its engine core's process name.

Workers of the later form do not say their stage: it is that of the engine core that started them.
"""
_PROCESS = re.compile(r"(?:\([^()]*\)\s*)*?\([^()]*\bpid=(\d+)\)")

_CONFIG = re.compile(r"Initializing an? (?:V\d )?LLM engine \((.+?)\) with config: (.*)")
_LONGEST = 300

_PATTERNS: Final = tuple(
    (fact, unit, re.compile(pattern))
    for fact, unit, pattern in (
        ("attention", "", r"Using (\w+) attention backend\b"),
        ("attention", "", r"Using (.+?) backend on V\d engine"),
        (
            "attention",
            "",
            r"Using (?:AttentionBackendEnum\.)?(\w+(?: Attention| SDPA)?) backend(?: out of .*|\.)?$",
        ),
        ("attention", "", r"Using \w+ KV cache layout for (\w+) backend"),
        ("attention version", "", r"Using FlashAttention version (\S+?)\.?$"),
        ("scheduler", "", r"Using custom scheduler class (?:\w+\.)*(\w+)"),
        ("async scheduling", "", r"Asynchronous scheduling is (enabled|disabled)"),
        ("graph mode changed", "", r".*setting (cudagraph_mode=\w+)"),
        ("collectives", "", r"vLLM is using (nccl==\S+)"),
        ("cache", "tokens", r"(?:\w+ )?KV cache size: ([\d,]+) tokens"),
        ("cache blocks", "blocks", r"# (?:\w+ )?blocks: (\d+)"),
        ("cache memory", "GiB", r"Available KV cache memory: ([\d.]+) GiB"),
        ("cache memory", "GiB", r"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache"),
        # Releases before 0.9 divide by 2**30 and write GB.
        ("model memory", "GiB", r"(?:Model loading|Loading model weights) took ([\d.]+) Gi?B\b"),
        ("weights time", "s", r"Loading weights took ([\d.]+) seconds"),
        ("graph memory", "GiB", r"Graph capturing finished in \d+ secs, took ([\d.]+) GiB"),
        ("graph time", "s", r"Graph capturing finished in (\d+) secs"),
        ("compile time", "s", r"torch\.compile (?:takes|took) ([\d.]+) s in total"),
        ("compile time", "s", r"init engine .* took [\d.]+ s(?:econds)? \(compilation: ([\d.]+) s"),
    )
)
"""(fact, unit, pattern): a message's value, numeric where it has a unit."""

_NAMED: Final = {
    "dtype": "dtype",
    "compilation_config.cudagraph_mode": "graph mode",
    "compilation_config.use_cudagraph": "graph mode",
}
"""Settings of the configuration with a name of their own; the others are ``config NAME``."""

_OF_THE_ATTEMPT = re.compile(
    r"(?:^|\.)(?:model|model_tag|tokenizer|served_model_name|host|(?:\w+_)?port|seed|\w*(?:path|dir|folder|file|url)"
    r"|download_dir|cache_dir|\w*(?:token|key|secret|password)|\w*addr\w*|\w*_id)$"
)
"""Settings of one attempt or machine, and secrets."""

_END = r"(?=[/\s'\",:)]|$)"
_PLACEHOLDERS: Final = tuple(
    (re.compile(pattern), placeholder)
    for pattern, placeholder in (
        (rf"[^\s'\"=(,:]*/environments/[0-9a-f]{{8,}}(?:/tree)?{_END}", "ENVIRONMENT"),
        (rf"[^\s'\"=(,:]*/attempts/\d+{_END}", "ATTEMPT"),
        (rf"/tmp/tmp[a-z0-9_]{{8}}{_END}", "TEMPORARY"),
        (r"\bpb-[0-9a-f]{12}\b", "MODEL"),
        (r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID"),
        (r"\b0x[0-9a-f]{6,}\b", "ADDRESS"),
        (r"(?<=://)([\w.-]+|\[[0-9a-f:]+\]):\d{2,5}\b", r"\1:PORT"),
        (r"\b(127\.0\.0\.1|localhost):\d{2,5}\b", r"\1:PORT"),
        (r"\b(pid[ =:]+)\d+", r"\1PID"),
        (r"\b\d{4}-\d\d-\d\d[T _]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?", "TIME"),
    )
)
"""What belongs to one environment, attempt, process or moment in a value -> its placeholder."""

_VERSION: Final = "version"
"""Differs between any two changes and explains nothing."""

_OF_CONFIG: Final = re.compile(r"(?:stage \d+ )?config ")

_UNITS: Final = frozenset(unit for _, unit, _ in _PATTERNS if unit)
_TIME: Final = "s"
_TOLERANCE: Final = 0.01
"""Share of the larger size by which two starts of one engine may differ."""


def engine_facts(log_text: str, parents: Mapping[int, int] | None = None) -> dict[str, str]:
    """Read facts from a server's log: ``attention``: ``FLASH_ATTN``; ``cache``: ``125680 tokens``.

    Of several workers the largest size counts. Settings without a name of their own are ``config NAME``;
    ports, paths, names and secrets are left out. Facts of one stage have its number: ``stage 0 attention``.
    ``parents``: process -> its parent; without it, facts of a worker that does not say its stage are those
    of the whole server.
    """
    stages: dict[int, str] = {}
    choices: dict[str, set[str]] = {}
    sizes: dict[tuple[str, str], float] = {}
    facts: dict[str, str] = {}
    for line in log_text.splitlines():
        # After the start, lines may contain prompts, which could look like facts.
        if _STARTED in line:
            break
        plain = without_colours(line)
        stage, message = _split_stage(plain)
        if process := _PROCESS.match(plain):
            pid = int(process[1])
            if stage:
                stages[pid] = stage
            stage = stage or stages.get((parents or {}).get(pid, 0), "")
        if config := _CONFIG.match(message):
            facts[_VERSION] = config[1].removeprefix("v")
            for name, value in leaves(config[2]):
                if not _OF_THE_ATTEMPT.search(name):
                    facts[stage + _NAMED.get(name, f"config {name}")] = value
            continue
        for name, unit, pattern in _PATTERNS:
            fact, found = stage + name, pattern.match(message)
            if found and unit:
                size = float(found[1].replace(",", ""))
                sizes[fact, unit] = max(size, sizes.get((fact, unit), size))
            elif found:
                choices.setdefault(fact, set()).add(found[1])
    facts |= {fact: ", ".join(sorted(values)) for fact, values in choices.items()}
    facts |= {fact: f"{size:.12g} {unit}" for (fact, unit), size in sizes.items()}
    return {name: value[:_LONGEST] for name, value in facts.items()}


def _split_stage(line: str) -> tuple[str, str]:
    """``stage 0 `` or an empty text, and the message without what stands before it."""
    found = _STAGE.match(line)
    number = found["marked"] or found["named"] if found else None
    if found and found["marked"]:
        line = found["before"] + line[found.end() :]
    return f"stage {number} " if number else "", _PREFIX.sub("", line, count=1).rstrip()


def combine_launches(launches: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Combine the facts of launches of one change: the median of sizes, others as ``A or B``.

    Times are left out: they are measurements, and differ from start to start.
    """
    normalized = [{name: _normalize(value) for name, value in facts.items()} for facts in launches]
    combined: dict[str, str] = {}
    for fact in dict.fromkeys(name for facts in normalized for name in facts):
        values = [facts.get(fact, NOT_LOGGED) for facts in normalized]
        sizes = [size for size in map(_size, values) if size is not None]
        if any(unit == _TIME for _, unit in sizes):
            continue
        if len(sizes) == len(values) and len({unit for _, unit in sizes}) == 1:
            combined[fact] = f"{median(number for number, _ in sizes):.12g} {sizes[0][1]}"
        else:
            combined[fact] = " or ".join(sorted(set(values)))
    return combined


def fact_differences(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    """Return (fact, left, right) where two engines differ by more than two starts of one do.

    Named facts come before ``config ...``, stage by stage. Sizes differ from 1 %.
    """
    different = []
    for fact in dict.fromkeys((*a, *b)):
        left, right = a.get(fact, NOT_LOGGED), b.get(fact, NOT_LOGGED)
        one, other, is_same = _size(left), _size(right), left == right
        if one and other and one[1] == other[1]:
            # Sizes of caches follow from free memory, which no two starts have exactly alike.
            is_same = abs(one[0] - other[0]) <= _TOLERANCE * max(one[0], other[0])
        if fact != _VERSION and not is_same:
            different.append((fact, left, right))
    return tuple(sorted(different, key=lambda row: (bool(_OF_CONFIG.match(row[0])), row[0])))


def _normalize(value: str) -> str:
    # What differs between any two attempts would hide what differs between two changes.
    for pattern, placeholder in _PLACEHOLDERS:
        value = pattern.sub(placeholder, value)
    return value


def _size(value: str) -> tuple[float, str] | None:
    number, _, unit = value.partition(" ")
    try:
        return (float(number), unit) if unit in _UNITS else None
    except ValueError:
        return None
