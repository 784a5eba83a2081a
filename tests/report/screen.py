"""A terminal's screen, as far as the live view needs one: what is left on it, and is the cursor shown?"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
_TOKENS = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b.|[\r\n\x07]|[^\x1b\r\n\x07]+")


class Screen:
    """Text is put where a terminal of that width puts it; every line stays, as in a scrollback."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.rows: list[str] = [""]
        self.cursor = True
        self._row = self._column = 0

    def feed(self, text: str) -> Screen:
        for token in _TOKENS.finditer(text):
            if token[2]:
                self._control(token[1], token[2])
            elif token[0] == "\r":
                self._column = 0
            elif token[0] == "\n":
                self._down()
            elif token[0][0] not in "\x1b\x07":
                for character in token[0]:
                    self._put(character)
        return self

    @property
    def lines(self) -> list[str]:
        """What is on it, without the empty lines."""
        return [row.rstrip() for row in self.rows if row.strip()]

    def _control(self, argument: str, letter: str) -> None:
        count = int(argument) if argument.isdigit() else 1
        if argument == "?25":
            self.cursor = letter == "h"
        elif letter == "A":
            self._row = max(0, self._row - count)
        elif letter == "K":
            assert argument == "2", "the only way in which a line is erased"
            self.rows[self._row] = ""
        else:
            assert letter == "m", f"a control that this screen does not know: {argument}{letter}"

    def _put(self, character: str) -> None:
        if self._column == self.width:
            self._column = 0
            self._down()
        row = self.rows[self._row].ljust(self._column)
        self.rows[self._row] = row[: self._column] + character + row[self._column + 1 :]
        self._column += 1

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self.rows):
            self.rows.append("")


def on_terminal(
    *command: str,
    width: int,
    env: Mapping[str, str],
    meanwhile: Callable[[str, int, int], None] = lambda _text, _pid, _fd: None,
) -> tuple[int, str]:
    """Runs a Python module on a pseudo-terminal of so many columns; its exit code and everything it wrote.

    ``meanwhile`` is told what came so far, the process and the terminal, after every read.
    """
    ours, theirs = pty.openpty()
    resize(theirs, width)
    shell = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES", "TERM")}
    child = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=shell | dict(env), start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    out = b""
    try:
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux: the other side is closed
                break
            if not part:
                break
            out += part
            meanwhile(out.decode(errors="replace"), child.pid, ours)
        return child.wait(timeout=30), out.decode()
    finally:
        child.kill()
        child.wait()
        os.close(ours)


def resize(terminal: int, width: int) -> None:
    """Makes a terminal so wide."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
