"""What ``perfbisect env gc`` tells."""

from __future__ import annotations

from datetime import datetime, timezone

from perfbisect.cli.documents import EnvGcDocument, GcItemDocument
from perfbisect.environments.gc import Item


def item_document(item: Item) -> GcItemDocument:
    """A folder of the cache as it is told."""
    used = datetime.fromtimestamp(item.used_at, timezone.utc).strftime("%Y-%m-%d") if item.used_at else ""
    return GcItemDocument(
        folder=str(item.folder),
        kind=item.kind,
        change=item.change,
        megabytes=round(item.bytes / 1e6, 1),
        last_used=used,
        why=item.why,
    )


def gc_lines(document: EnvGcDocument) -> list[str]:
    """For a person: what went, what could not, what that freed."""
    word = "would be removed" if document.dry_run else "removed"
    out = [_line(item, f"{word}: {item.why}") for item in document.removed]
    out += [_line(item, "stays: it is in use") for item in document.in_use]
    out.append(
        f"{document.freed_megabytes:.1f} MB {'would be ' if document.dry_run else ''}freed, "
        f"{document.kept_megabytes:.1f} MB left in {document.cache}"
    )
    return out


def _line(item: GcItemDocument, what: str) -> str:
    return f"{item.kind:<12} {item.change[:24]:<24} {item.megabytes:8.1f} MB  {what}  {item.folder}"
