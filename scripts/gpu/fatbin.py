"""Zero, in a shared object, the device code that one GPU architecture never loads.

Sizes and offsets stay, and zeros compress to nothing. A fat binary (section ``.nv_fatbin``) is a row of
containers; each holds entries, a cubin or PTX for one architecture. The layout is that of files which CUDA 13
writes; a file that does not follow it is refused.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

_MAGIC = 0xBA55ED50
_PTX, _CUBIN = 1, 2
_CONTAINER = struct.Struct("<IHHQ")
"""Magic, version, size of this header, size of the entries."""
_ENTRY = struct.Struct("<HHIQ")
"""Kind, version, size of this header, size of the code."""
_ARCHITECTURE_AT = 28
_SECTION = struct.Struct("<IIQQQQIIQQ")
_FAT_BINARY = ".nv_fatbin"


@dataclass(frozen=True)
class Entry:
    """Code for one architecture (90: sm_90), at ``start`` of the file."""

    kind: int
    architecture: int
    start: int
    size: int

    @property
    def name(self) -> str:
        return f"{'ptx' if self.kind == _PTX else 'cubin'} {self.architecture}"


@dataclass
class Pruning:
    """Bytes kept and zeroed by kind and architecture; ``without``: containers that have no own cubin."""

    kept: Counter[str] = field(default_factory=Counter)
    zeroed: Counter[str] = field(default_factory=Counter)
    without: int = 0


def prune(data: bytearray, architecture: int) -> Pruning:
    """Zero what ``architecture`` never loads: other cubins, PTX beside its own cubin, and newer PTX.

    Raises:
        ValueError: no ELF file for 64 bits, or a container whose sizes do not add up.
    """
    pruning = Pruning()
    for start, size in _fat_binaries(data):
        for entries in _containers(data, start, start + size):
            has_cubin = any((entry.kind, entry.architecture) == (_CUBIN, architecture) for entry in entries)
            pruning.without += not has_cubin
            for entry in entries:
                is_own_cubin = entry.kind == _CUBIN and entry.architecture == architecture
                is_fallback = entry.kind == _PTX and not has_cubin and entry.architecture <= architecture
                if is_own_cubin or is_fallback:
                    pruning.kept[entry.name] += entry.size
                else:
                    data[entry.start : entry.start + entry.size] = bytes(entry.size)
                    pruning.zeroed[entry.name] += entry.size
    return pruning


def _fat_binaries(data: bytearray) -> Iterator[tuple[int, int]]:
    """Offset and size of the sections of fat binaries."""
    if bytes(data[:5]) != b"\x7fELF\x02":
        raise ValueError("no ELF file for 64 bits")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    sections = [_SECTION.unpack_from(data, table + number * size) for number in range(count)]
    texts = sections[names][4]
    for section in sections:
        at = texts + section[0]
        if data[at : data.index(0, at)].decode() == _FAT_BINARY:
            yield section[4], section[5]


def _containers(data: bytearray, start: int, end: int) -> Iterator[list[Entry]]:
    """The entries of each container; containers are aligned to eight bytes."""
    while start + _CONTAINER.size <= end:
        magic, _, header, size = _CONTAINER.unpack_from(data, start)
        if magic != _MAGIC:
            start += 8
            continue
        at, start = start + header, start + header + size
        if start > end:
            raise ValueError(f"a container of {size} bytes does not end within its section")
        entries = []
        while at < start:
            kind, _, header, size = _ENTRY.unpack_from(data, at)
            (architecture,) = struct.unpack_from("<I", data, at + _ARCHITECTURE_AT)
            entries.append(Entry(kind, architecture, at + header, size))
            at += header + size
        if at != start or any(entry.kind not in (_PTX, _CUBIN) for entry in entries):
            raise ValueError("the entries of a container do not add up to its size")
        yield entries
