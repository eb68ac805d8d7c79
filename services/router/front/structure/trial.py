"""Writes requests' grammars and tries them, in threads, before anything is generated under them."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable

from services.router.front.structure.grammar import Wanted, grammar_of
from services.router.front.tokens import Tokenizer
from shared.engine.grammar import MOST_BYTES, Grammars, fault_of
from shared.errors import BadGrammar, InvalidRequest, NotBuilt, Unavailable

PATIENCE = 2.0
"""Seconds that a grammar may take to be made ready."""
_THREADS = 2
_KEPT = 1024


class Trials:
    """Over one model's vocabulary. Loop thread."""

    def __init__(self, tokenizer: Tokenizer, *, patience: float = PATIENCE) -> None:
        self._grammars = tokenizer.grammars
        self._vocabulary = tokenizer.vocabulary
        self._patience = patience
        self._seats = asyncio.Semaphore(_THREADS)
        self._late: set[asyncio.Task[str]] = set()
        self._faults = _Faults()

    async def grammar(self, wanted: Wanted) -> str:
        """The grammar's text, as decoders take it; "" where nothing is wanted.

        Raises InvalidRequest with the keyword and its place, and for what takes too long; NotBuilt where this
        model's tokenizer allows no grammars; Unavailable where too many are being tried.
        """
        if wanted.form is None and wanted.calls is None:
            return ""
        path = wanted.path
        if self._grammars is None:
            raise NotBuilt(f"{path}: not served over this model's tokenizer; leave it out", path)
        try:
            async with asyncio.timeout(self._patience):
                await self._seats.acquire()
        except TimeoutError:
            raise Unavailable(f"{path}: too many structures are being prepared; try again", 1.0) from None
        work = asyncio.create_task(self._work(wanted, self._grammars))
        done, _ = await asyncio.wait({work}, timeout=self._patience)
        if done:
            return work.result()
        self._late.add(work)  # a thread cannot be stopped: it keeps its seat to its end
        work.add_done_callback(self._ended_late)
        raise InvalidRequest(
            f"{path}: takes more than {self._patience:g} s to prepare; ask for a simpler structure", path
        )

    async def _work(self, wanted: Wanted, grammars: Grammars) -> str:
        try:
            return await asyncio.to_thread(self._make, wanted, grammars)
        finally:
            self._seats.release()

    def _ended_late(self, work: asyncio.Task[str]) -> None:
        self._late.discard(work)
        if not work.cancelled():
            work.exception()  # nobody waits for it

    def _make(self, wanted: Wanted, grammars: Grammars) -> str:
        text = grammar_of(wanted, self._special, self._faults)
        path, size = wanted.path, len(text.encode())
        if size > MOST_BYTES:
            raise InvalidRequest(f"{path}: {_too_large(size)}; ask for less", path)
        try:
            grammars.compiled(text)
        except BadGrammar as error:
            raise InvalidRequest(f"{path}: {error}; ask for another structure", path) from error
        return text

    def _special(self, text: str) -> int | None:
        token = self._vocabulary.added_id(text)
        known = token is not None and self._grammars is not None and self._grammars.is_mark(token)
        return token if known else None


def _too_large(size: int) -> str:
    return f"takes {size} bytes as a grammar, of {MOST_BYTES} at most"


class _Faults:
    """What was found wrong with schemas, kept by their hash: the same tools come with every turn. Any
    thread."""

    def __init__(self, find: Callable[[str], str] = fault_of) -> None:
        self._find = find
        self._lock = threading.Lock()
        self._found: OrderedDict[bytes, str] = OrderedDict()

    def __call__(self, text: str) -> str:
        data = text.encode()
        if len(data) > MOST_BYTES:
            return _too_large(len(data))
        key = hashlib.blake2b(data, digest_size=16).digest()
        with self._lock:
            found = self._found.get(key)
            if found is not None:
                self._found.move_to_end(key)
                return found
        found = self._find(text)
        with self._lock:
            self._found[key] = found
            if len(self._found) > _KEPT:
                self._found.popitem(last=False)
        return found
