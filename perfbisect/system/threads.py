"""Threads that another thread may interrupt, as Ctrl-C interrupts the main one.

CPython makes the state of a new thread in the thread that starts it, and until the new one runs, the state
bears its starter's identity (``_PyThreadState_Prealloc``, 3.10 to 3.13). An exception that is sent to the
starter in that moment reaches the new thread: that one dies before it has said that it lives, and its starter
waits for it for ever. So no thread is started while another is interrupted.
"""

from __future__ import annotations

import ctypes
import threading

_ONE_OR_THE_OTHER = threading.Lock()
"""The interpreter's threads are one for the whole process, and so is this."""


def start(thread: threading.Thread) -> None:
    """Start a thread from one that may be interrupted."""
    with _ONE_OR_THE_OTHER:
        thread.start()


def interrupt(thread: threading.Thread) -> None:
    """What Ctrl-C does in the main thread, in another: ``KeyboardInterrupt`` at the next instruction there.

    A system call that it waits in ends first. Nothing happens to a thread that has ended, or not begun.
    """
    with _ONE_OR_THE_OTHER:
        if thread.ident is not None and thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt)
            )
