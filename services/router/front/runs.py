"""What every generating endpoint does with its prompts: jobs, delivery, and the request's event in the log.
Knows no endpoint's shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import structlog
from starlette.responses import Response
from starlette.types import Receive

from services.router.front.answer import Head, Reply, Shape, usage
from services.router.front.choice import ChoiceRules
from services.router.front.delivery import EventStream, Outcome, Pace, whole_answer
from services.router.front.dialect import OPENAI, Dialect
from services.router.front.generation import Generation, Generator, Job
from services.router.front.intake import Call
from services.router.front.measures import Measures
from services.router.front.openai import Ask, StreamOptions
from services.router.front.prompts import Prompt, Prompts, Style
from services.router.front.reading.formats import Reading
from services.router.front.recording import Recording
from services.router.front.sampling import Limits, build_sampling, check_length, check_scores, output_room
from services.router.front.structure.trial import Trials
from services.router.front.unbuilt import refuse_unbuilt
from services.router.requests import GenerationRequest
from shared.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Plan:
    """What the choices of one request have in common."""

    max_tokens: int | None
    max_tokens_name: str
    default_tokens: int | None
    logprobs: int
    session: bytes
    prompt_name: str
    reading: Reading = field(default_factory=Reading)
    one_call: bool = False
    grammar: str = ""
    """What the answers keep to; empty: nothing."""
    scores: int = -1
    """How many best ids are wanted beside each id of the prompts, with log-probabilities; -1: none are."""


@dataclass(frozen=True, slots=True)
class Run:
    """One generation, as an endpoint delivers it."""

    generation: Generation
    head: Head
    shape: Shape


class Runs:
    """Makes them, over one model."""

    def __init__(
        self,
        *,
        generator: Generator,
        prompts: Prompts,
        measures: Measures,
        model: str,
        fingerprint: Callable[[], str],
        max_context: Callable[[], int],
        max_choices: int,
        pace: Pace,
        clock: Callable[[], float],
        wall: Callable[[], float],
        random_bits: Callable[[int], int],
        log: structlog.typing.FilteringBoundLogger,
        recording: Recording | None = None,
    ) -> None:
        self.prompts = prompts
        self.trials = Trials(prompts.tokenizer)
        self.model = model
        self.max_choices = max_choices
        self.started = int(wall())
        """When this service began to serve the model, by the wall clock."""
        self._generator = generator
        self._measures = measures
        self._fingerprint = fingerprint
        self._max_context = max_context
        self._pace = pace
        self._clock = clock
        self._wall = wall
        self._random_bits = random_bits
        self._log = log
        self._recording = recording

    def new_id(self, kind: str) -> str:
        """A name for something that clients refer to."""
        return f"{kind}{self._random_bits(96):024x}"

    def check(self, ask: Ask) -> None:
        """What every body has to keep."""
        refuse_unbuilt(ask)
        if ask.stream_options is not None and not ask.stream:
            raise InvalidRequest("stream_options: needs stream to be true; leave it out", "stream_options")
        if (ask.n or 1) > self.max_choices:
            raise InvalidRequest(f"n: {ask.n} is above the {self.max_choices} choices served at once", "n")

    def context(self) -> int:
        """Tokens of prompt and answer together: what the workers serve, the model's own while none is
        known.
        """
        return self._max_context() or self.prompts.tokenizer.facts.max_context

    def limits(self) -> Limits:
        """What the model and the mesh allow."""
        facts = self.prompts.tokenizer.facts
        return Limits(facts.vocab_size, self.context(), facts.eos_ids, facts.sampling)

    def style(self, call: Call, ask: Ask, *, add_special: bool) -> Style:
        """How a request's prompt is to be made."""
        special = add_special if ask.add_special_tokens is None else ask.add_special_tokens
        salt = call.tenant.salt(ask.cache_salt)
        return Style(salt, special, "splice" not in call.without, self.context())

    def run(self, call: Call, ask: Ask, prompts: Sequence[Prompt], plan: Plan, kind: str) -> Run:
        """A generation that has not started. `kind`: what its name begins with."""
        options = ask.stream_options or StreamOptions()
        told = bool(options.include_usage)
        head = Head(self.new_id(kind), int(self._wall()), self.model, self._fingerprint() or None)
        running = told and bool(options.continuous_usage_stats)
        shape = Shape(plan.logprobs, told, bool(ask.return_token_ids), call.trace, running)
        return Run(self._generation(call, ask, prompts, plan), head, shape)

    def _generation(self, call: Call, ask: Ask, prompts: Sequence[Prompt], plan: Plan) -> Generation:
        """The jobs of all choices: n for each prompt, with one seed."""
        limits = self.limits()
        seed = self._random_bits(64)
        jobs: list[Job] = []
        for prompt in prompts:
            length = len(prompt.ids)
            check_length(limits, length, plan.prompt_name)
            check_scores(length, plan.scores)
            room = output_room(limits, length, plan.max_tokens, plan.max_tokens_name, plan.default_tokens)
            sampling = build_sampling(
                ask,
                limits,
                prompt_len=length,
                max_tokens=room,
                logprobs=plan.logprobs,
                seed=seed,
                grammar=plan.grammar,
            )
            rules = ChoiceRules(
                prompt_len=length,
                stop_ids=frozenset(sampling.stop_ids),
                eos_ids=frozenset(limits.eos_ids),
                stops=[ask.stop] if isinstance(ask.stop, str) else ask.stop or (),
                min_tokens=ask.min_tokens or 0,
                include_stop=bool(ask.include_stop_str_in_output),
                one_call=plan.one_call,
            )
            for choice in range(ask.n or 1):
                # Of a prompt with several choices the first one has the scores.
                scored = plan.scores >= 0 and choice == 0
                request = GenerationRequest(
                    ids=prompt.ids,
                    sampling=msgspec.structs.replace(sampling, choice=choice),
                    salt=call.tenant.salt(ask.cache_salt),
                    priority=ask.priority or 0,
                    deadline=call.deadline(ask.timeout),
                    tenant=call.tenant.name,
                    session=plan.session,
                    relay_allowed="relay" not in call.without and not scored,
                    singular_allowed="singular" not in call.without and not scored,
                    local_allowed="local" not in call.without and not scored,
                    scores=plan.scores if scored else -1,
                    model=self.model,
                    trace=call.parent,
                )
                skip = ask.skip_special_tokens is not False
                ruled = replace(rules, scores=True) if scored else rules
                jobs.append(Job(request, ruled, prompt, skip, plan.reading))
        return Generation(jobs, self.prompts.tokenizer.vocabulary, self._clock, started=call.started)

    async def deliver(
        self,
        receive: Receive,
        call: Call,
        ask: Ask,
        run: Run,
        reply: Reply,
        dialect: Dialect = OPENAI,
    ) -> Response:
        """Start the generation and give it to the client."""
        generation = run.generation
        generation.start(self._generator)
        self._measures.accepted(generation)

        def ended(outcome: Outcome) -> None:
            seconds = self._clock() - call.started
            self._measures.ended(generation, outcome, seconds)
            self._record(call, ask, run, outcome, seconds)
            for job, choice in zip(generation.jobs, generation.choices, strict=True):
                self.prompts.remember(job.prompt, choice.ids)

        headers = headers_for(call)
        if ask.stream:
            return EventStream(generation, reply, dialect, self._pace, headers, ended)
        return await whole_answer(generation, reply, dialect, receive, headers, ended)

    def _record(self, call: Call, ask: Ask, run: Run, outcome: Outcome, seconds: float) -> None:
        """The request's one canonical event in the log."""
        generation = run.generation
        times = generation.times
        counts = usage(generation, ask.n or 1)
        finish = sorted({choice.finish.value for choice in generation.choices if choice.finish is not None})
        facts: dict[str, Any] = {
            "id": run.head.id,
            "request_id": call.echo_id,
            "model": run.head.model,
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
            "tool_calls": sum(choice.calls for choice in generation.choices),
            "structured": bool(generation.jobs[0].request.sampling.grammar),
            "splice": generation.jobs[0].prompt.splice,
            **_road(generation.choices[0].trace),
            "ttft_s": round(times.first - times.started, 6) if times.first else None,
            "stall_s": round(times.stall, 6),
            "seconds": round(seconds, 6),
        }
        if generation.failure is not None:
            facts |= {"code": generation.failure.code, "reason": str(generation.failure)}
        self._log.info("request", **facts)
        if self._recording is not None:
            error = "" if outcome.ended == "finished" else outcome.ended
            self._recording.ended(call, call.started + seconds, outcome.status, facts, error)


_ROAD = ("pipeline", "nodes", "md_hit_tokens", "eager_tokens", "handoff_bytes", "cut", "reasons")


def _road(trace: Mapping[str, Any]) -> dict[str, Any]:
    """How the first choice was served, for the log."""
    return {key: trace[key] for key in _ROAD if key in trace}


def headers_for(call: Call) -> dict[str, str]:
    """Headers of every answer."""
    return {"x-request-id": call.echo_id, **({"traceparent": call.parent} if call.parent else {})}
