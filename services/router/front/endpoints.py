"""The endpoints: from a decoded body to a response. Knows nothing of routes, headers' names or sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
from starlette.responses import Response
from starlette.types import Receive

from services.router.front.answer import Head, Reply, Shape, usage
from services.router.front.chat import (
    ChatReply,
    chat_max_tokens,
    chat_top,
    read_messages,
    session_of,
    template_options,
)
from services.router.front.choice import ChoiceRules
from services.router.front.completions import (
    DEFAULT_MAX_TOKENS,
    CompletionReply,
    completion_session,
    completion_top,
    read_prompts,
)
from services.router.front.delivery import EventStream, Outcome, Pace, json_response, whole_answer
from services.router.front.generation import Generation, Generator, Job
from services.router.front.intake import Call
from services.router.front.measures import Measures
from services.router.front.openai import Ask, ChatAsk, CompletionAsk, DetokenizeAsk, TokenizeAsk
from services.router.front.prompts import Prompt, Prompts, Style
from services.router.front.replies import DetokenizeAnswer, ModelCard, ModelList, TokenizeAnswer
from services.router.front.sampling import Limits, build_sampling, check_length, output_room
from services.router.front.unbuilt import refuse_unbuilt
from services.router.requests import GenerationRequest
from shared.errors import InvalidRequest, UnknownModel


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the choices of one request have in common."""

    max_tokens: int | None
    max_tokens_name: str
    default_tokens: int | None
    logprobs: int
    session: bytes
    prompt_name: str


class Endpoints:
    """All of them, over one model."""

    def __init__(
        self,
        *,
        generator: Generator,
        prompts: Prompts,
        measures: Measures,
        model: str,
        fingerprint: str | None,
        max_context: Callable[[], int],
        max_choices: int,
        pace: Pace,
        clock: Callable[[], float],
        wall: Callable[[], float],
        random_bits: Callable[[int], int],
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._generator = generator
        self._prompts = prompts
        self._measures = measures
        self._model = model
        self._fingerprint = fingerprint
        self._max_context = max_context
        self._max_choices = max_choices
        self._pace = pace
        self._clock = clock
        self._wall = wall
        self._random_bits = random_bits
        self._log = log
        self._started = int(wall())

    async def chat(self, receive: Receive, call: Call, ask: ChatAsk) -> Response:
        """Answer a conversation."""
        self._check(ask)
        messages = read_messages(ask.messages)
        options = template_options(ask.chat_template_kwargs)
        max_tokens, name = chat_max_tokens(ask)
        plan = _Plan(
            max_tokens, name, None, chat_top(ask), session_of(ask, messages, call.tenant.name), "messages"
        )
        prompt = await self._prompts.chat(
            messages,
            self._style(call, ask, add_special=False),
            add_generation_prompt=ask.add_generation_prompt is not False,
            options=options,
        )
        generation = self._generation(call, ask, [prompt], plan)
        head, shape = self._head("chatcmpl"), self._shape(call, ask, plan)
        reply = ChatReply(head, shape, generation, self._prompts.tokenizer.vocabulary)
        return await self._deliver(receive, call, ask, generation, reply, head)

    async def completions(self, receive: Receive, call: Call, ask: CompletionAsk) -> Response:
        """Continue one or several prompts."""
        self._check(ask)
        given = read_prompts(ask, self._limits().vocab_size)
        n = ask.n or 1
        if len(given) * n > self._max_choices:
            raise InvalidRequest(
                f"prompt: {len(given)} prompts with n {n} make {len(given) * n} choices; at most "
                f"{self._max_choices} are served at once",
                "prompt",
            )
        session = completion_session(ask, call.tenant.name)
        plan = _Plan(ask.max_tokens, "max_tokens", DEFAULT_MAX_TOKENS, completion_top(ask), session, "prompt")
        style = self._style(call, ask, add_special=True)
        prompts = [
            await self._prompts.text(one, style) if isinstance(one, str) else Prompt(one) for one in given
        ]
        generation = self._generation(call, ask, prompts, plan)
        head, shape = self._head("cmpl"), self._shape(call, ask, plan)
        decode = self._prompts.tokenizer.decode
        echoes = [one.text if one.text is not None else decode(one.ids) for one in prompts for _ in range(n)]
        reply = CompletionReply(
            head,
            shape,
            generation,
            self._prompts.tokenizer.vocabulary,
            n=n,
            echoes=echoes if ask.echo else (),
        )
        return await self._deliver(receive, call, ask, generation, reply, head)

    async def tokenize(self, call: Call, ask: TokenizeAsk) -> Response:
        """Ids of a text or of messages, in vLLM's shape."""
        self._check_model(ask.model)
        if (ask.prompt is None) == (ask.messages is None):
            raise InvalidRequest("prompt: send either prompt or messages", "prompt")
        limit = self._context()
        chat = ask.messages is not None
        special = ask.add_special_tokens if ask.add_special_tokens is not None else not chat
        style = Style(call.tenant.salt(None), special, splice=False, limit=limit)
        if ask.messages is not None:
            prompt = await self._prompts.chat(
                read_messages(ask.messages),
                style,
                add_generation_prompt=ask.add_generation_prompt is not False,
                options=template_options(ask.chat_template_kwargs),
            )
        else:
            prompt = await self._prompts.text(ask.prompt or "", style)
        answer = TokenizeAnswer(count=len(prompt.ids), max_model_len=limit, tokens=prompt.ids)
        if ask.return_token_strs:
            answer.token_strs = [self._prompts.tokenizer.token(token) for token in prompt.ids]
        return json_response(answer, _headers(call))

    def detokenize(self, call: Call, ask: DetokenizeAsk) -> Response:
        """Text of ids, in vLLM's shape."""
        self._check_model(ask.model)
        size = self._limits().vocab_size
        for at, token in enumerate(ask.tokens):
            if not 0 <= token < size:
                raise InvalidRequest(
                    f"tokens[{at}]: {token} is no token id of this model; ids are 0 to {size - 1}",
                    f"tokens[{at}]",
                )
        text = self._prompts.tokenizer.decode(ask.tokens)
        return json_response(DetokenizeAnswer(prompt=text), _headers(call))

    def models(self, call: Call) -> Response:
        """The one model that is served."""
        return json_response(ModelList(data=[self._card()]), _headers(call))

    def model_card(self, call: Call, name: str) -> Response:
        """One model by name."""
        self._check_model(name)
        return json_response(self._card(), _headers(call))

    def _card(self) -> ModelCard:
        return ModelCard(id=self._model, created=self._started, max_model_len=self._context())

    def _check(self, ask: Ask) -> None:
        refuse_unbuilt(ask)
        self._check_model(ask.model)
        if ask.stream_options is not None and not ask.stream:
            raise InvalidRequest("stream_options: needs stream to be true; leave it out", "stream_options")
        if (ask.n or 1) > self._max_choices:
            raise InvalidRequest(f"n: {ask.n} is above the {self._max_choices} choices served at once", "n")

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._model:
            raise UnknownModel(f"model: {name[:200]!r} is not served here; {self._model!r} is", "model")

    def _context(self) -> int:
        """Tokens of prompt and answer together: what the workers serve, the model's own while none is
        known.
        """
        return self._max_context() or self._prompts.tokenizer.facts.max_context

    def _limits(self) -> Limits:
        facts = self._prompts.tokenizer.facts
        return Limits(facts.vocab_size, self._context(), facts.eos_ids, facts.sampling)

    def _style(self, call: Call, ask: Ask, *, add_special: bool) -> Style:
        special = add_special if ask.add_special_tokens is None else ask.add_special_tokens
        salt = call.tenant.salt(ask.cache_salt)
        return Style(salt, special, "splice" not in call.without, self._context())

    def _generation(self, call: Call, ask: Ask, prompts: Sequence[Prompt], plan: _Plan) -> Generation:
        """The jobs of all choices: n for each prompt, with one seed."""
        limits = self._limits()
        seed = self._random_bits(64)
        jobs: list[Job] = []
        for prompt in prompts:
            length = len(prompt.ids)
            check_length(limits, length, plan.prompt_name)
            room = output_room(limits, length, plan.max_tokens, plan.max_tokens_name, plan.default_tokens)
            sampling = build_sampling(
                ask, limits, prompt_len=length, max_tokens=room, logprobs=plan.logprobs, seed=seed
            )
            rules = ChoiceRules(
                prompt_len=length,
                stop_ids=frozenset(sampling.stop_ids),
                eos_ids=frozenset(limits.eos_ids),
                stops=[ask.stop] if isinstance(ask.stop, str) else ask.stop or (),
                min_tokens=sampling.min_tokens,
                include_stop=bool(ask.include_stop_str_in_output),
            )
            for choice in range(ask.n or 1):
                request = GenerationRequest(
                    ids=prompt.ids,
                    sampling=msgspec.structs.replace(sampling, choice=choice),
                    salt=call.tenant.salt(ask.cache_salt),
                    priority=ask.priority or 0,
                    deadline=call.deadline(ask.timeout),
                    tenant=call.tenant.name,
                    session=plan.session,
                    relay_allowed="relay" not in call.without,
                    singular_allowed="singular" not in call.without,
                    local_allowed="local" not in call.without,
                    trace=call.parent,
                )
                jobs.append(Job(request, rules, prompt, ask.skip_special_tokens is not False))
        return Generation(jobs, self._prompts.tokenizer.vocabulary, self._clock, started=call.started)

    def _head(self, kind: str) -> Head:
        return Head(f"{kind}-{self._random_bits(96):024x}", int(self._wall()), self._model, self._fingerprint)

    def _shape(self, call: Call, ask: Ask, plan: _Plan) -> Shape:
        told = ask.stream_options is not None and bool(ask.stream_options.include_usage)
        return Shape(plan.logprobs, told, bool(ask.return_token_ids), call.trace)

    async def _deliver(
        self, receive: Receive, call: Call, ask: Ask, generation: Generation, reply: Reply, head: Head
    ) -> Response:
        """Start the generation and give it to the client."""
        generation.start(self._generator)
        self._measures.accepted(generation)

        def ended(outcome: Outcome) -> None:
            seconds = self._clock() - call.started
            self._measures.ended(generation, outcome, seconds)
            self._record(call, ask, generation, head, outcome, seconds)
            for job, choice in zip(generation.jobs, generation.choices, strict=True):
                self._prompts.remember(job.prompt, choice.ids)

        headers = _headers(call)
        if ask.stream:
            return EventStream(generation, reply, self._pace, headers, ended)
        return await whole_answer(generation, reply, receive, headers, ended)

    def _record(
        self, call: Call, ask: Ask, generation: Generation, head: Head, outcome: Outcome, seconds: float
    ) -> None:
        """The request's one canonical event in the log."""
        times = generation.times
        counts = usage(generation, ask.n or 1)
        finish = sorted({choice.finish.value for choice in generation.choices if choice.finish is not None})
        facts: dict[str, Any] = {
            "id": head.id,
            "request_id": call.echo_id,
            "tenant": call.tenant.name,
            "user": ask.user or ask.safety_identifier,
            "ended": outcome.ended,
            "status": outcome.status,
            "stream": bool(ask.stream),
            "choices": len(generation.choices),
            "prompt_tokens": counts.prompt_tokens,
            "completion_tokens": counts.completion_tokens,
            "cached_tokens": counts.prompt_tokens_details.cached_tokens,
            "finish": ",".join(finish),
            "splice": generation.jobs[0].prompt.splice,
            **_road(generation.choices[0].trace),
            "ttft_s": round(times.first - times.started, 6) if times.first else None,
            "stall_s": round(times.stall, 6),
            "seconds": round(seconds, 6),
        }
        if generation.failure is not None:
            facts |= {"code": generation.failure.code, "reason": str(generation.failure)}
        self._log.info("request", **facts)


_ROAD = ("pipeline", "nodes", "md_hit_tokens", "eager_tokens", "handoff_bytes", "cut", "reasons")


def _road(trace: Mapping[str, Any]) -> dict[str, Any]:
    """How the first choice was served, for the log."""
    return {key: trace[key] for key in _ROAD if key in trace}


def _headers(call: Call) -> dict[str, str]:
    return {"x-request-id": call.echo_id}
