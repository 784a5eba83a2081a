"""Threads that may be interrupted."""

from __future__ import annotations

import ctypes
import threading

_THREAD_LOCK = threading.Lock()
"""Serialises thread starts and interrupts: CPython 3.10 to 3.13 gives a new thread its starter's identity
(``_PyThreadState_Prealloc``), so an interrupt sent in that moment would kill the new thread and leave the
starter waiting forever."""


def start_thread(thread: threading.Thread) -> None:
    """Start a thread from a thread that may be interrupted."""
    with _THREAD_LOCK:
        thread.start()


def interrupt_thread(thread: threading.Thread) -> None:
    """Raise ``KeyboardInterrupt`` in another living thread, after its current system call."""
    with _THREAD_LOCK:
        if thread.ident is not None and thread.is_alive():
            # A signal reaches the main thread only; this is CPython's one way to raise in another.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt)
            )
