"""The smaller endpoints: plain completions, ids and texts. Knows nothing of routes, headers' names or
sockets."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive

from services.router.front.chats import Chats
from services.router.front.completions import (
    DEFAULT_MAX_TOKENS,
    CompletionReply,
    completion_scores,
    completion_session,
    completion_top,
    read_prompts,
)
from services.router.front.delivery import json_response
from services.router.front.intake import Call
from services.router.front.openai import CompletionAsk, DetokenizeAsk, TokenizeAsk
from services.router.front.prompts import Prompt, Style
from services.router.front.replies import DetokenizeAnswer, TokenizeAnswer
from services.router.front.runs import Plan, Runs, headers_for
from services.router.front.structure.form import form_of
from services.router.front.structure.grammar import Wanted
from shared.errors import ContextTooLong, InvalidRequest


class Endpoints:
    """All of them, over one model."""

    def __init__(self, runs: Runs, chats: Chats) -> None:
        self._runs = runs
        self._chats = chats
        self._prompts = runs.prompts

    async def completions(self, receive: Receive, call: Call, ask: CompletionAsk) -> Response:
        """Continue one or several prompts."""
        runs = self._runs
        runs.check(ask)
        given = read_prompts(ask, runs.limits(), runs.max_choices)
        n = ask.n or 1
        session = completion_session(ask, call.tenant.name)
        plan = Plan(
            ask.max_tokens,
            "max_tokens",
            DEFAULT_MAX_TOKENS,
            completion_top(ask),
            session,
            "prompt",
            grammar=await runs.trials.grammar(Wanted(form_of(ask))),
            scores=completion_scores(ask),
        )
        style = runs.style(call, ask, add_special=True)
        prompts = [
            await self._prompts.text(one, style) if isinstance(one, str) else Prompt(one) for one in given
        ]
        run = runs.run(call, ask, prompts, plan, "cmpl-")
        decode = self._prompts.tokenizer.decode
        echoes = [one.text if one.text is not None else decode(one.ids) for one in prompts for _ in range(n)]
        reply = CompletionReply(
            run.head,
            run.shape,
            run.generation,
            self._prompts.tokenizer.vocabulary,
            n=n,
            echoes=echoes if ask.echo else (),
            tells_prompt=ask.prompt_logprobs is not None,
        )
        return await runs.deliver(receive, call, ask, run, reply)

    async def tokenize(self, _receive: Receive, call: Call, ask: TokenizeAsk) -> Response:
        """Ids of a text or of messages, in vLLM's shape."""
        if (ask.prompt is None) == (ask.messages is None):
            raise InvalidRequest("prompt: send either prompt or messages", "prompt")
        limit = self._runs.context()
        chat = ask.messages is not None
        special = ask.add_special_tokens if ask.add_special_tokens is not None else not chat
        style = Style(call.tenant.salt(None), special, splice=False, limit=limit)
        if ask.messages is not None:
            dialogue = self._chats.dialogue(
                ask.messages,
                ask.tools,
                ask.chat_template_kwargs,
                add_generation_prompt=ask.add_generation_prompt is not False,
            )
            prompt = await self._prompts.chat(dialogue, style)
        else:
            prompt = await self._prompts.text(ask.prompt or "", style)
        answer = TokenizeAnswer(count=len(prompt.ids), max_model_len=limit, tokens=prompt.ids)
        if ask.return_token_strs:
            answer.token_strs = [self._prompts.tokenizer.token(token) for token in prompt.ids]
        return json_response(answer, headers_for(call))

    async def detokenize(self, _receive: Receive, call: Call, ask: DetokenizeAsk) -> Response:
        """Text of ids, in vLLM's shape."""
        limits = self._runs.limits()
        size = limits.vocab_size
        if len(ask.tokens) > limits.max_context:
            raise ContextTooLong(
                f"tokens: {len(ask.tokens)} ids are more than this model's context of {limits.max_context}; "
                "send fewer at once",
                "tokens",
            )
        for at, token in enumerate(ask.tokens):
            if not 0 <= token < size:
                raise InvalidRequest(
                    f"tokens[{at}]: {token} is no token id of this model; ids are 0 to {size - 1}",
                    f"tokens[{at}]",
                )
        text = self._prompts.tokenizer.decode(ask.tokens)
        return json_response(DetokenizeAnswer(prompt=text), headers_for(call))
