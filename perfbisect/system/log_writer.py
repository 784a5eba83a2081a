"""Log files of foreign output: redacted as it is written, and bounded with beginning and end kept."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from perfbisect.redaction import replace_secrets, secret_forms

LIMIT = 32 << 20
"""Largest size of a log in bytes."""

KEPT = 8 << 20
"""Bytes that a log above :data:`LIMIT` keeps of its beginning and of its end."""

_LONGEST_LINE = 64 << 10
"""Characters of an unfinished line that wait for its end."""
_LONGEST_TOKEN = 8 << 10
_ENDS_TOKEN = " \t\"'<>,"
"""Characters that end what :func:`replace_secrets` recognises by its format."""


class Redactor:
    """Removes secrets from a stream of bytes, also those that two reads divide.

    Text is held back until the end of its line, or until a known secret that may begin in it is complete.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        # Bytes as Latin-1 characters: nothing is invalid, and nothing changes on the way back.
        forms = secret_forms(secrets)
        self._known = [form.encode("utf-8", "surrogateescape").decode("latin-1") for form in forms]
        self._held = ""

    def feed(self, data: bytes) -> bytes:
        """What can be written after these bytes."""
        text = self._held + data.decode("latin-1")
        cut = self._whole(text)
        self._held = text[cut:]
        return self._redacted(text[:cut])

    def flush(self) -> bytes:
        """What was held back."""
        text, self._held = self._held, ""
        return self._redacted(text)

    def _redacted(self, text: str) -> bytes:
        return replace_secrets(text, self._known).encode("latin-1")

    def _whole(self, text: str) -> int:
        """Number of characters whose secrets are complete."""
        # Most secrets end with their line; progress bars end lines by a carriage return.
        cut = max(text.rfind("\n"), text.rfind("\r")) + 1
        if not cut:
            if len(text) <= _LONGEST_LINE:
                return 0
            first = len(text) - _LONGEST_TOKEN
            cut = max(first, *(text.rfind(end, first) + 1 for end in _ENDS_TOKEN))
        # A secret may contain line ends (a private key): the cut moves before each one that it divides.
        while (divided := self._divided(text, cut)) < cut:
            cut = divided
        return cut

    def _divided(self, text: str, cut: int) -> int:
        """Where a known secret begins that lies on both sides of ``cut``; else ``cut``."""
        for secret in self._known:
            if text[cut - 1] not in secret:
                continue
            for start in range(max(0, cut - len(secret) + 1), cut):
                if text.startswith(secret, start) or secret.startswith(text[start : start + len(secret)]):
                    return start
        return cut


class LogWriter:
    """Appends redacted output to a file, whose middle is left out above a size.

    At any moment the file reads in order. A failed write (full disk) loses output: whoever writes it goes on.
    """

    def __init__(self, path: str, secrets: Iterable[str], *, limit: int = LIMIT, kept: int = KEPT) -> None:
        self._redactor = Redactor(secrets)
        self._limit, self._kept = limit, kept
        # Readable, since the end of a large log is read back and moved; appending, since a log may be
        # continued.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._size = os.fstat(self._file).st_size
        self._left_out = self._note_size = 0

    def write(self, data: bytes) -> None:
        self._append(self._redactor.feed(data))

    def flush(self) -> None:
        self._append(self._redactor.flush())

    def close(self) -> None:
        self.flush()
        os.close(self._file)

    def _append(self, data: bytes) -> None:
        # An exception would end the shim, and only the shim knows whose the processes are.
        with suppress(OSError):
            while data:
                written = os.write(self._file, data)
                self._size, data = self._size + written, data[written:]
            if self._size > self._limit:
                self._leave_out_middle()

    def _leave_out_middle(self) -> None:
        end = os.pread(self._file, self._kept, self._size - self._kept)
        self._left_out += self._size - 2 * self._kept - self._note_size
        note = f"\n[perfbisect: {self._left_out} bytes are left out here]\n".encode()
        # Cut first, then write: at any moment the file reads in order, and takes no more room.
        os.ftruncate(self._file, self._kept)
        self._size, self._note_size = self._kept, len(note)
        self._append(note + end)
