"""A prefix cache in blocks of 16 tokens, with the counters that the real engine reports."""

import threading

BLOCK = 16


class PrefixCache:
    """Which prompt prefixes have been seen. Safe to call from several threads."""

    def __init__(self, enabled=True):
        self._enabled = enabled
        self._seen = set()
        self._lock = threading.Lock()
        self.queries = 0
        self.hits = 0

    def look_up(self, tokens):
        """Count the prompt's tokens, remember its blocks and return the share of it that was cached."""
        if not self._enabled or not tokens:
            return 0.0
        blocks = [hash(tuple(tokens[: end + BLOCK])) for end in range(0, len(tokens) - BLOCK + 1, BLOCK)]
        with self._lock:
            known = 0
            for block in blocks:
                if block not in self._seen:
                    break
                known += 1
            self._seen.update(blocks)
            self.queries += len(tokens)
            self.hits += known * BLOCK
        return known * BLOCK / len(tokens)

    def reset(self):
        """Forget every prefix; the counters stay."""
        with self._lock:
            self._seen.clear()
