"""Faults on request: of the tree (FAULT, so that one commit misbehaves) or of the process environment.

``PRETEND_FAULT`` is a comma list. ``name@N``: only in launch number N (PRETEND_STATE in the README).
"""

import os
from pathlib import Path

FAULT = ""
"""Comma list of faults that this commit has in every process."""

SERVER = """
import_error exit0 exit1 never_ready slow_ready wrong_model die_at_first error_body error_stream die_in_bench
orphans ignore_term nothing_completed some_failed short_outputs stall stall_in_bench mute_in_bench no_reset
no_metrics half_metrics silent nonsense tell_secrets print_secrets daemon late_daemon
"""
CLIENT = """
client_exit1 nothing_completed nan missing_keys zero_template some_failed short_outputs hang garbage_json
half_written no_file odd_types pipe
"""
KNOWN = frozenset(f"{SERVER} {CLIENT}".split())

_launch = 0


def launch_number():
    """Number of this server launch: 1, 2, ... as counted in PRETEND_STATE; 0 without such a folder."""
    return _launch


def count_launch():
    """Count this launch in the folder PRETEND_STATE, if there is one."""
    global _launch
    folder = os.environ.get("PRETEND_STATE")
    if not folder:
        return
    handle = os.open(Path(folder, "launches"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, b".")
        _launch = os.lseek(handle, 0, os.SEEK_CUR)
    finally:
        os.close(handle)


def wanted(name):
    """True if the tree or the process environment asks for this fault, in this launch."""
    for text in (FAULT, os.environ.get("PRETEND_FAULT", "")):
        for word in filter(None, (part.strip() for part in text.split(","))):
            fault, _, launch = word.partition("@")
            if fault not in KNOWN:
                raise SystemExit(f"unknown pretend fault {fault!r}; known: {', '.join(sorted(KNOWN))}")
            if fault == name and (not launch or int(launch) == _launch):
                return True
    return False
