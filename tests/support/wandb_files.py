"""What Weights & Biases wrote offline, read from its own files."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

from pyrobbb.training.loggers import LOGGED


def history_of(path: Path) -> dict[str, list[tuple[int, float]]]:
    """The values by name in a run's own file."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, list[tuple[int, float]]] = {name: [] for name in LOGGED}
    for content in records(path.read_bytes()):
        record = Record()
        record.ParseFromString(content)
        items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for name in LOGGED:
            if name in items:
                found[name].append((items["_step"], float(items[name])))
    return found


def records(file: bytes, block: int = 2**15) -> Iterator[bytes]:
    """Those of a LevelDB log: blocks of 32 KiB, of pieces with checksum, length and kind before them."""
    at, parts = 7, b""  # after the head
    while at + 7 <= len(file):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, length, kind = struct.unpack_from("<IHB", file, at)
        parts += file[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last piece
            yield parts
            parts = b""
