"""``perfbisect metrics``: what can be judged, and where its values come from."""

from __future__ import annotations

from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import prints


@prints("perfbisect.commands.documents:MetricsDocument")
def show() -> CommandResult:
    """Every metric: unit, better direction, kind, smallest relevant effect, and where its values come from.

    A metric of the client is there if the cell's client reports it; one of the launch (engine log, times,
    memory) is there whatever the client is. The smallest effect is relative; of a share it is a difference.
    Of an exact metric one launch tells a commit's level.

    \b
    Examples:
      perfbisect metrics
      perfbisect metrics --json
      perfbisect bisect CELL --repo vllm --good v0.32.0 --bad main --metric kv_cache_tokens
    """
    from perfbisect.commands.documents import ListedMetric, MetricsDocument
    from perfbisect.model.metric import METRICS
    from perfbisect.serving.eras import ERAS

    document = MetricsDocument(
        metrics=tuple(
            ListedMetric(
                metric=row,
                kind=row.kind,
                eras=tuple(
                    f"{client} {'.'.join(map(str, era.version))} ({era.change}): {era.what}"
                    for client, eras in ERAS.items()
                    for era in eras
                    if era.touches != ("*",) and era.touched(row.name)
                ),
            )
            for row in METRICS.values()
        )
    )
    lines = []
    for listed in document.metrics:
        row = listed.metric
        effect = f"{row.smallest_effect:g}" if row.absolute else f"{100 * row.smallest_effect:g} %"
        better = "-" if row.neutral else row.direction
        source = row.source + (f": {row.fact}" if row.fact else "")
        source += f", since vLLM {row.since}" if row.since else ""
        source += f" ({row.change})" if row.change else ""
        source += f", needs {row.needs}" if row.needs else ""
        if row.caches:
            source += f", compile caches {'empty' if row.caches == 'cold' else 'filled'}"
        columns = f"{row.name:<30} {row.unit:<11} {better:<7} {listed.kind:<6} {effect:>6}  {source}"
        lines += [columns, *(f"    since {era}" for era in listed.eras)]
    head = f"{'metric':<30} {'unit':<11} {'better':<7} {'kind':<6} {'effect':>6}  source"
    return CommandResult(document, [head, *lines])
