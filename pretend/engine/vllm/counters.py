"""The counters of the real engine: sums over finished requests, and what its iterations made."""

import threading

HISTOGRAMS = {
    "e2e_request_latency_seconds": "Histogram of e2e request latency in seconds.",
    "request_queue_time_seconds": "Histogram of time spent in WAITING phase for request.",
    "request_prefill_time_seconds": "Histogram of time spent in PREFILL phase for request.",
    "request_decode_time_seconds": "Histogram of time spent in DECODE phase for request.",
    "iteration_tokens_total": "Histogram of number of tokens per engine_step.",
}
COUNTERS = {
    "prompt_tokens": "Number of prefill tokens processed.",
    "generation_tokens": "Number of generation tokens processed.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
}


def counter_lines(name, text, label, value):
    """A counter on the Prometheus page."""
    return [f"# HELP {name}_total {text}", f"# TYPE {name}_total counter", f"{name}_total{label} {value!r}"]


class Counters:
    """Sums since the start. Safe to call from several threads."""

    def __init__(self):
        self._sums = dict.fromkeys((*HISTOGRAMS, *COUNTERS), 0.0)
        self._counts = dict.fromkeys(HISTOGRAMS, 0)
        self._lock = threading.Lock()

    def iteration(self, prompt_tokens=0, generation_tokens=1):
        """One iteration of the engine: a prefill with the first token, or a step."""
        with self._lock:
            self._sums["prompt_tokens"] += prompt_tokens
            self._sums["generation_tokens"] += generation_tokens
            self._observe("iteration_tokens_total", prompt_tokens + generation_tokens)

    def finished(self, *, arrived, queued, first, last):
        """A request has ended: when it arrived, how long it waited, its first and last token."""
        with self._lock:
            self._observe("e2e_request_latency_seconds", last - arrived)
            self._observe("request_queue_time_seconds", queued)
            self._observe("request_prefill_time_seconds", first - arrived - queued)
            self._observe("request_decode_time_seconds", last - first)

    def _observe(self, name, value):
        self._sums[name] += value
        self._counts[name] += 1

    def lines(self, label):
        """The lines of the Prometheus page, with one bucket a histogram."""
        with self._lock:
            sums, counts = dict(self._sums), dict(self._counts)
        lines = []
        for name, text in HISTOGRAMS.items():
            lines += [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} histogram"]
            lines.append(f'vllm:{name}_bucket{label[:-1]},le="+Inf"}} {counts[name]}.0')
            lines.append(f"vllm:{name}_count{label} {counts[name]}.0")
            lines.append(f"vllm:{name}_sum{label} {sums[name]!r}")
        for name, text in COUNTERS.items():
            lines += counter_lines(f"vllm:{name}", text, label, sums[name])
        return lines
