"""How fast and how large the pretend engine is, and how noisy. A commit changes it by a number here."""

STEP_MS = 5.0
"""Milliseconds of one decoding step: the time per output token."""

PREFILL_MS = 8.0
"""Milliseconds of a prefill with an empty prefix cache: most of the time to first token."""

QUEUE_MS = 0.2
"""Milliseconds that a request waits for its prefill."""

CACHED_SHARE = 0.25
"""Share of PREFILL_MS that is left when the whole prompt is in the prefix cache."""

START_MS = 30.0
"""Milliseconds from the engine's start until the port opens."""

COMPILE_MS = 0.0
"""Milliseconds that the engine compiles before that, if its caches are empty; 0: it compiles nothing."""

KV_TOKENS = 131072.0
"""Tokens that the KV cache holds."""

MODEL_GIB = 1.5
"""Memory of the weights."""

LAUNCH_SD = 0.02
"""Log standard deviation between launches: one factor a process."""

RUN_SD = 0.01
"""Log standard deviation between runs of a launch: one factor until the server has been idle for a while."""

REQUEST_SD = 0.02
"""Log standard deviation between requests."""

OUTLIER_PROBABILITY = 0.03
"""Probability that a whole launch is contaminated ..."""

OUTLIER_FACTOR = 1.3
"""... and by how much it is then slower."""
