"""Releases and commits that a report names."""

from __future__ import annotations

import re

_RELEASE = re.compile(
    r"(?<![\w.=/-])(?:(?P<package>vllm(?:[-_ ](?:ascend|omni|cpu|metal))?)(?:[ _-]version)?[ :=]{0,2})?"
    r"(?P<v>v?)(?P<number>0\.\d{1,2}(?:\.\d{1,3})?(?:\.?(?:rc|post)\d{1,3})?)(?![\w.]*\w|%)",
    re.IGNORECASE,
)
"""vLLM and its plug-ins are below 1.0; other packages and plain numbers are not."""
_OTHERS = re.compile(
    r"^[ \t]{0,9}(?:\[\w+\][ \t]{0,9})?"
    r"(?!v\d|(?:vllm|version|release|good|bad|old|new|before|after|from|to|with|main|base|baseline|candidate"
    r"|previous|current|latest|last|first|working|works|broken|regressed|slow|fast)(?![a-z]))"
    r"[a-z][\w.\[\]-]{0,60}[ \t]{2,60}\d\S{0,40}(?![^\n]{0,80}[ \t]v?\d)"
    r"|\b(?:accelerate|compressed-tensors|diffusers|fastapi|flashinfer\S{0,20}|gguf|httpx"
    r"|huggingface[-_]hub|llguidance|lmcache|lm-format-enforcer|outlines\S{0,9}|peft|safetensors|sglang"
    r"|starlette|tiktoken|timm|tokenizers|torchvision|trl|uvicorn|uvloop|xformers|xgrammar)"
    r"[ \t|:=<>~v]{1,30}\d\S{0,40}",
    re.M | re.I,
)
"""Lines of a list of packages, and packages below 1.0 in a sentence."""
_TAG = re.compile(r"\bvllm[\w/-]*:v(0\.\d{1,2}(?:\.\d{1,3})?(?:rc\d{1,3}|\.post\d{1,3})?)\b")
_COMMIT = re.compile(r"(?<![\w/#%=.-])(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,40}(?![\w-])")
_CONTEXT = re.compile(
    r"commit|checkout|revision|\bsha\b|parent|bisect|\bgood\b|\bbad\b|range|->|→|\.\.|\bfrom\b|\bto\b|\bat\b",
    re.I,
)
_JUDGED = re.compile(
    r"\b(?P<word>good|bad)\b[*_`]{0,3}(?:[ \t]{1,9}(?:commit|revision|rev|sha|hash|build|end))?[*_`]{0,3}"
    r"(?:[ \t]{0,9}(?:[:=]\s{0,9}|\|[ \t]{0,9})|[ \t]{1,9}(?:is|was))?"
    r"[ \t]{0,9}[`*\[(<\"']{0,4}(?P<commit>[0-9a-f]{7,40})\b",
    re.I,
)
"""What stands right before a commit; ``A is good, B is bad`` says nothing of B before it."""
_BUILD = re.compile(r"\.dev\d+\+g([0-9a-f]{7,12})\b")
_NEAR = 40
"""Characters before a short hash in which a word says that it is a commit."""
_LONG = 9
"""Characters of a hash that is taken for a commit by itself."""
_MOST = 20


def releases_in(text: str) -> tuple[str, ...]:
    """The releases of vLLM that a text names, as tags, the oldest first."""
    found = {tag[1] for tag in _TAG.finditer(text)}
    for one in _RELEASE.finditer(_OTHERS.sub(" ", text)):
        # 0.9 alone is a share of memory; three parts, a v or the package's name make a release.
        if one["package"] or one["v"] or one["number"].count(".") >= 2:
            found.add(one["number"])
    return tuple(f"v{_whole(number)}" for number in sorted(found, key=_order)[:_MOST])


def _whole(number: str) -> str:
    """The tag of a release that is named by its minor version."""
    return f"{number}.0" if re.fullmatch(r"\d+\.\d+", number) else number


def _order(number: str) -> tuple[object, ...]:
    release = tuple(map(int, re.findall(r"\d+", re.sub(r"\.?(?:rc|post)\d+", "", number))))
    suffix = re.search(r"(rc|post)(\d+)", number)
    return (
        *release,
        *([0] * (3 - len(release))),
        *((suffix[1] == "post", int(suffix[2])) if suffix else (0.5, 0)),
    )


def commits_in(text: str) -> tuple[str, ...]:
    """The commits that a text names, in its order."""
    builds = {found.start(1): found[1] for found in _BUILD.finditer(text)}
    hashes = {
        found.start(): found[0]
        for found in _COMMIT.finditer(text)
        # Eight letters and digits may be anything, unless a word before them says what.
        if len(found[0]) >= _LONG or _CONTEXT.search(text, max(0, found.start() - _NEAR), found.start())
    }
    return tuple(dict.fromkeys(name for _, name in sorted((builds | hashes).items())))[:_MOST]


def judged_in(text: str) -> dict[str, str]:
    """The commits that a text calls ``good`` or ``bad``; an empty word for one that it calls both."""
    words: dict[str, str] = {}
    for found in _JUDGED.finditer(text):
        commit, word = found["commit"], found["word"].lower()
        words[commit] = word if words.get(commit, word) == word else ""
    return words
