"""Secrets in text: the values of this process's variables, and what has the format of a secret."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

REDACTED = "(redacted)"

_SECRET = re.compile(r"TOKEN|SECRET|KEY|PASSW|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
_SECRET_HOLDER = re.compile(
    r"TOKEN(?!S|IZ|_PATH)|SECRET|PASSW|API_?KEY|(?:^|_)KEY$|CREDENTIAL|AUTH(?!OR(?!IZ)|_SOCK)|COOKIE",
    re.IGNORECASE,
)
"""Narrower: values are replaced in whole texts, and the values of ``UV_KEYRING_PROVIDER=subprocess``,
``MAX_TOKENS=131072``, ``TOKENIZER_MODE=mistral``, ``HF_TOKEN_PATH`` and ``GIT_AUTHOR_NAME`` are
no secrets."""
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""``${NAME}``: stands for the secret in a variable, see :mod:`perfbisect.common.secret_references`."""
SHORTEST_SECRET = 6
"""Characters; a shorter value is shown."""
_SECRET_STARTS = (
    "hf_",
    "sk-",
    "ghp_",
    "gho_",
    "ghr_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "AKIA",
    "eyJ",
)
_SECRET_VALUE = re.compile(
    r"\b(?:(?:hf_|gh[oprsu]_)[A-Za-z0-9]{16,}|(?:sk-|github_pat_|glpat-)[A-Za-z0-9_\-]{16,}"
    r"|AKIA[A-Z0-9]{12,}|eyJ[A-Za-z0-9_\-.]{16,})"
)
"""Access tokens of hubs and clouds; ``hf_overrides`` is none."""
_IN_HEADER = re.compile(
    r"(\bauthorization\b['\"]?\s*[:=]\s*['\"]?(?:bearer|basic|token)\s+)(?!\$\{)[^\s'\",;]+", re.IGNORECASE
)
_IN_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_PASSWORD = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")
_SWITCH = re.compile(
    r"(--(?:[a-z0-9-]*-)?(?:token|secret|password|api-key))(=|\x00)(?!\$\{)([^\x00]+)", re.IGNORECASE
)


def holds_secret(variable: str) -> bool:
    """Whether the value of a variable of this name is replaced in texts."""
    return bool(_SECRET_HOLDER.search(variable))


def has_secret_format(text: str) -> bool:
    """Whether a text contains an access token, or a URL with a password."""
    return bool(_SECRET_VALUE.search(text) or _PASSWORD.search(text) or _IN_HEADER.search(text))


def secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Values of variables named like secrets, and passwords in URLs, except very short ones."""
    named = [value for name, value in environment.items() if holds_secret(name)]
    passwords = [found[1] for value in environment.values() for found in _PASSWORD.finditer(value)]
    return tuple(value for value in map(str.strip, (*named, *passwords)) if len(value) >= SHORTEST_SECRET)


def command_secrets(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Secrets that a command may print: of this process's environment, its own, and its arguments."""
    # No argument contains a NUL: it marks their ends.
    typed = (found[3] for found in _SWITCH.finditer("\x00".join(argv)) if len(found[3]) >= SHORTEST_SECRET)
    return tuple(dict.fromkeys((*secret_values(os.environ), *secret_values(env), *typed)))


def secret_forms(secrets: Iterable[str]) -> tuple[str, ...]:
    """Secrets as they may be printed, the longest first: one may be part of another."""
    forms = {form for secret in secrets for form in _forms(secret)}
    return tuple(sorted(filter(None, forms), key=len, reverse=True))


def without_secrets(text: str, more: Iterable[str] = ()) -> str:
    """Replace the secrets of this process's environment and ``more``, access tokens, and users in URLs."""
    return replace_secrets(text, _known_forms(more))


def _known_forms(more: Iterable[str] = ()) -> tuple[str, ...]:
    """The secrets of this process's environment and ``more``, as they may be printed."""
    return secret_forms((*secret_values(os.environ), *more))


def replace_secrets(text: str, forms: Iterable[str]) -> str:
    """Replace these secrets (:func:`secret_forms`), access tokens, and users in URLs."""
    for form in forms:
        text = text.replace(form, REDACTED)
    # Searched for first: logs are long, and a search is a hundred times as fast as an expression.
    if any(start in text for start in _SECRET_STARTS):
        text = _SECRET_VALUE.sub(REDACTED, text)
    if "authorization" in text.lower():
        text = _IN_HEADER.sub(rf"\1{REDACTED}", text)
    return _IN_URL.sub(REDACTED, text) if "://" in text else text


def _forms(secret: str) -> tuple[str, ...]:
    """A secret as it is, in JSON, in a Python literal and in a URL."""
    return secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(secret, safe="")


def redacted(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables with secrets replaced, which are recognised by name or format."""
    known = _known_forms()

    def shown(name: str, value: str) -> str:
        # A reference names a variable and is shown.
        is_hidden = value and _SECRET.search(name) and not REFERENCE.search(value)
        return REDACTED if is_hidden else replace_secrets(value, known)

    return {name: shown(name, value) for name, value in sorted(environment.items())}


def redacted_argv(argv: tuple[str, ...]) -> tuple[str, ...]:
    """A command with secrets replaced, such as the value of ``--api-key``."""
    joined = _SWITCH.sub(lambda found: found[1] + found[2] + REDACTED, "\x00".join(argv))
    known = _known_forms()
    return tuple(replace_secrets(word, known) for word in joined.split("\x00"))
