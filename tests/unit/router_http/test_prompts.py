"""Prompts from texts: what is tokenized in threads, and how those stand beside the loop."""

import os
import sys
import threading

import pytest

from services.router.front.prompts import Prompts, Style
from services.router.front.tokens import Tokenizer

MARKED = "<|im_start|>user\n" + "hello world, " * 40 + "<|im_end|>\n"
OTHER = MARKED.replace("world", "there")


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
async def test_threads_stand_behind_the_loop(tokenizer: Tokenizer) -> None:
    prompts = Prompts(tokenizer, None, thread_chars=1, threads=2, clock=lambda: 0.0)
    own = os.getpriority(os.PRIO_PROCESS, os.getpid())
    for _ in range(3):  # threads that come back stand no further behind
        seen = await prompts._aside(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        assert seen == min(19, own + 5)
    assert os.getpriority(os.PRIO_PROCESS, os.getpid()) == own


async def test_without_splicing_a_turn_is_tokenized_from_its_first_new_part_on(tokenizer: Tokenizer) -> None:
    prompts = Prompts(tokenizer, None, thread_chars=1 << 30, threads=1, clock=lambda: 0.0)
    style = Style(salt=b"a", add_special=False, splice=False, limit=4096)
    first = await prompts.text(MARKED * 2, style)
    asked: list[str] = []

    class Watched(Tokenizer):
        def encode(self, text: str, *, add_special: bool = False) -> list[int]:
            asked.append(text)
            return super().encode(text, add_special=add_special)

    prompts.tokenizer = Watched(tokenizer._inner, tokenizer.vocabulary, tokenizer.facts)
    asked.clear()
    second = await prompts.text(MARKED * 2 + OTHER, style)
    assert second.ids == first.ids + tokenizer.encode(OTHER)
    assert "".join(asked) == "<|im_end|>\n" + OTHER  # from the last cut on
    asked.clear()
    await prompts.text(MARKED * 2, Style(salt=b"b", add_special=False, splice=False, limit=4096))
    assert "".join(asked) == MARKED * 2  # another tenant's texts say nothing
