"""An interruption reaches the thread that is meant, also while that one starts another."""

from __future__ import annotations

import threading

from perfbisect.system import processes


def _start_threads(begun: threading.Event) -> None:
    try:
        while True:
            one = threading.Thread(target=begun.set)
            processes.start_thread(one)
            one.join()
    except KeyboardInterrupt:
        return


def test_an_interruption_reaches_the_thread_that_is_meant() -> None:
    """One that does nothing but start threads: without the lock, some rounds hit a thread that it starts."""
    for _ in range(300):
        begun = threading.Event()
        strays: list[threading.ExceptHookArgs] = []
        thread = threading.Thread(target=_start_threads, args=(begun,), daemon=True)
        thread.start()
        assert begun.wait(20)
        hook, threading.excepthook = threading.excepthook, strays.append
        try:
            processes.interrupt_thread(thread)
            thread.join(20)
        finally:
            threading.excepthook = hook
        assert not thread.is_alive()
        assert not strays
