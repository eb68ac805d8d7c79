"""Drives a `FrameParser` with bytes in any slices, as a socket would."""

from __future__ import annotations

from collections.abc import Iterable

from shared.errors import Remote
from shared.wire.framing import ChunkEnd, ChunkHead, Frame, FrameParser

Seen = Frame | tuple[bytes, bytes]  # a frame, or a whole chunk's header and payload


class Reader:
    """A parser, what it has reported so far, and memory for the chunk it is at."""

    def __init__(self, parser: FrameParser, *, places: bool = False) -> None:
        """`places`: read into several places at once, as a chunk-carrying socket is read."""
        self.seen: list[Seen] = []
        self._parser = parser
        self._places = places
        self._chunk: tuple[bytes, bytearray] = (b"", bytearray())

    def feed(self, data: bytes) -> None:
        """Put `data` where the parser asks for it, and take what it reports. Raises Remote errors."""
        at = 0
        while True:
            self._take()
            if at == len(data):
                return
            buffers = self._parser.get_buffers() if self._places else (self._parser.get_buffer(),)
            count = 0
            for buffer in buffers:
                assert len(buffer) > 0
                part = data[at + count : at + count + len(buffer)]
                buffer[: len(part)] = part
                count += len(part)
            told = self._parser.buffer_updated(count)
            assert told or self._parser.next_event() is None
            at += count

    def _take(self) -> None:
        while (event := self._parser.next_event()) is not None:
            match event:
                case Frame():
                    self.seen.append(event)
                case ChunkHead(header, size):
                    self._chunk = (header, bytearray(size))
                    if not self._parser.receive_into(memoryview(self._chunk[1])):
                        assert self._parser.next_event() is None
                case ChunkEnd():
                    self.seen.append((self._chunk[0], bytes(self._chunk[1])))


def feed(parser: FrameParser, data: bytes) -> list[Seen]:
    """All that a parser between frames reports for `data`."""
    reader = Reader(parser)
    reader.feed(data)
    return reader.seen


def outcome(
    slices: Iterable[bytes], *, chunks: bool, max_chunk: int = 1 << 12, places: bool = False
) -> tuple[list[Seen], str]:
    """What a parser reports for bytes that come in these slices, and the code of the error that ended it."""
    parser = FrameParser(max_chunk=max_chunk)
    if chunks:
        parser.expect_chunks()
    reader = Reader(parser, places=places)
    try:
        for data in slices:
            reader.feed(data)
    except Remote as error:
        return reader.seen, error.code
    return reader.seen, ""
