"""The engine's deciding half: sequences in, step plans out, results in, events out. Loop thread only, no
torch.

One step at a time: `plan` -> a Runner executes it elsewhere -> `apply`. Between the two, sequences may be
added, fed, paused and ended; what the running step uses is given back only when it is applied. Never sees KV
bytes, sockets or requests.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from shared.engine.api import Draw, Drawn, Gate, StepPlan, StepResult, WorkItem, ids_of, written_of
from shared.engine.events import (
    BlocksReady,
    EngineEvent,
    Extended,
    Fault,
    Finished,
    Sampled,
    Scored,
    Starved,
)
from shared.engine.meter import EngineStats, Meter
from shared.engine.pace import Pace
from shared.engine.scheduler import Scheduler
from shared.engine.sequence import Goal, Phase, Sequence, SequenceSpec, Turn
from shared.engine.tables import Tables
from shared.errors import BadGrammar, InvalidRequest, InvariantBroken, NanLogits, NotBuilt
from shared.kv.pool import BlockPool
from shared.policy.config import WorkerPolicy


class Engine:
    """Continuous batching of sequences over one pool."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_tokens: int,
        policy: WorkerPolicy,
        max_context: int,
        gate: Gate | None = None,
    ) -> None:
        """`gate`: who prepares grammars; None: the runner does, when it draws."""
        self._block_tokens = block_tokens
        self._max_context = max_context
        self._gate = gate
        self._tables = Tables(pool, block_tokens)
        self._pace = Pace(policy.extend_stretch)
        self._scheduler = Scheduler(policy, self._pace)
        self._meter = Meter(block_tokens)
        self._sequences: dict[int, Sequence] = {}
        self._next = 1
        self._events: list[EngineEvent] = []
        self._ended: list[int] = []
        self._flying: StepPlan | None = None

    # --- sequences ------------------------------------------------------------------------------------------

    def add(self, spec: SequenceSpec, now: float) -> int:
        """Take a sequence in and return its number (never reused).

        Raises InvalidRequest where the ids are longer than the context. PREFILL takes all its blocks here,
        under its promise first, and raises OutOfBlocks where they are not to be had. Where it raises, the
        pins on `spec.blocks` stay the caller's.
        """
        self._check_spec(spec)
        number = self._next
        sequence = Sequence(number, spec, self._block_tokens, now)
        if spec.goal is Goal.PREFILL:
            self._tables.reserve(sequence)
        self._next += 1
        self._sequences[number] = sequence
        self._unprepared(sequence)  # so that its grammar is ready by the time that it draws
        self._settle(sequence)
        return number

    def feed(self, seq: int, ids: Seq[int]) -> None:
        """Append known ids. Never for OWN, whose ids are its own."""
        sequence = self._get(seq)
        if sequence.goal is Goal.OWN or (sequence.draws and sequence.flying):
            raise InvariantBroken(f"sequence {seq} draws its own ids and is fed {len(ids)}")
        sequence.ids.extend(ids)
        self._settle(sequence)

    def set_goal(self, seq: int, goal: Goal) -> None:
        """What it is computed for from the next step on; an id that is being drawn may be dropped."""
        sequence = self._get(seq)
        sequence.goal = goal
        sequence.extended = 0  # asked anew, told anew
        self._settle(sequence)

    def pause(self, seq: int) -> None:
        """Take no part in further steps; keep everything."""
        sequence = self._get(seq)
        sequence.paused = True
        self._settle(sequence)

    def resume(self, seq: int) -> None:
        """Undo `pause`."""
        sequence = self._get(seq)
        sequence.paused = False
        self._settle(sequence)

    def end(self, seq: int) -> None:
        """Give the sequence up: published blocks stay cached, the rest is free, after the running step at the
        latest.

        Idempotent. No event names the sequence afterwards.
        """
        sequence = self._sequences.get(seq)
        if sequence is None or sequence.ending:
            return
        self._events = [event for event in self._events if event.seq != seq]
        if sequence.flying:
            sequence.ending = True
        else:
            self._release(sequence)

    def blocks(self, seq: int) -> list[int]:
        """The block table so far. The pins are the engine's: pin what has to outlive the sequence."""
        return self._get(seq).blocks

    def computed(self, seq: int) -> int:
        """Leading tokens that have KV."""
        return self._get(seq).computed

    def begun(self, seq: int) -> float | None:
        """When its first step was planned, by the caller's clock; None: it has waited so far."""
        return self._get(seq).begun

    def hashes(self, seq: int) -> list[bytes]:
        """Chain hashes of the leading full blocks, as far as they are known."""
        return list(self._get(seq).hashes)

    def length(self, seq: int) -> int:
        """Ids known."""
        return len(self._get(seq).ids)

    @property
    def has_work(self) -> bool:
        """Whether `plan` may return something: sequences with work, events to tell, ended ones to name."""
        return bool(self._events or self._ended) or any(s.wants for s in self._sequences.values())

    @property
    def stats(self) -> EngineStats:
        return self._meter.stats(self._sequences.values())

    # --- steps ----------------------------------------------------------------------------------------------

    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None where nothing can be computed until something changes.

        A plan without items carries ended sequences to the runner and lets `apply` tell events that needed no
        step.
        """
        if self._flying is not None:
            raise InvariantBroken("a step is planned while another runs")
        running = self._running(now) if self._sequences else []
        picked = self._scheduler.pick(running, self._fit) if running else []
        if not picked and not self._ended and not self._events:
            return None
        for sequence, _ in picked:
            if sequence.begun is None:
                sequence.begun = now
        items = tuple(self._item(sequence, n) for sequence, n in picked)
        plan = StepPlan(items, tuple(self._ended))
        self._ended = []
        self._flying = plan
        return plan

    def apply(self, now: float, plan: StepPlan, result: StepResult) -> list[EngineEvent]:
        """Take a step's result; returns everything there is to tell since the last call, in order."""
        if plan is not self._flying or len(result.drawn) != len(plan.items):
            raise InvariantBroken("a result does not belong to the running step")
        self._flying = None
        self._meter.applied(now, plan, result)
        self._pace.applied(plan, result)
        for at, (item, drawn) in enumerate(zip(plan.items, result.drawn, strict=True)):
            sequence = self._sequences[item.seq]
            sequence.flying = False
            if item.following and not isinstance(drawn, Exception):
                drawn = self._scored(sequence, result.scores.get(at), drawn)
            if isinstance(drawn, Exception):
                self._fault(sequence, drawn)
            else:
                self._advance(sequence, item, drawn)
            if sequence.ending:
                self._release(sequence)
        events, self._events = self._events, []
        return events

    # --- planning -------------------------------------------------------------------------------------------

    def _running(self, now: float) -> list[Sequence]:
        running = [s for s in self._sequences.values() if s.phase is Phase.RUNNING]
        waiting = [s for s in self._sequences.values() if s.phase is Phase.WAITING]
        if not waiting:
            return running
        for sequence in self._scheduler.starts(len(running), waiting):
            sequence.turn(Turn.START)
            if sequence.added is not None:
                self._meter.started(now - sequence.added)
                sequence.added = None
            running.append(sequence)
        return running

    def _unprepared(self, sequence: Sequence) -> bool:
        """Whether its grammar is not ready yet."""
        grammar = sequence.params.grammar
        return bool(grammar) and self._gate is not None and not self._gate.ready(grammar)

    def _fit(self, sequence: Sequence, room: int) -> int:
        if sequence.draws and self._unprepared(sequence):
            room = min(room, sequence.remaining - 1)  # all but what it would draw after
            if room < 1:
                return 0
        retried = sequence.starved_at != self._tables.changes
        n = self._tables.fit(sequence, room)
        if not n and retried:
            self._events.append(Starved(sequence.number))
        return n

    def _item(self, sequence: Sequence, n: int) -> WorkItem:
        sequence.flying = True
        start = sequence.computed
        end = start + n
        draw = None
        if sequence.draws and end == len(sequence.ids):
            history = ids_of(sequence.ids, sequence.params)
            written = written_of(sequence.ids, sequence.prompt_len, sequence.params)
            draw = Draw(history, end, sequence.prompt_len, sequence.params, written)
        blocks = sequence.table
        used = self._tables.blocks_for(end)
        if used < len(blocks):
            blocks = blocks[:used]
        following: tuple[int, ...] = ()
        if sequence.scores >= 0:
            following = tuple(sequence.ids[start + 1 : min(end + 1, sequence.prompt_len)])
        ids = tuple(sequence.ids[start:end])
        return WorkItem(sequence.number, start, ids, blocks, draw, following, max(0, sequence.scores))

    # --- results --------------------------------------------------------------------------------------------

    def _advance(self, sequence: Sequence, item: WorkItem, drawn: Drawn | None) -> None:
        sequence.computed = item.start + len(item.ids)
        self._publish(sequence)
        if item.draw is not None:
            if drawn is None:
                raise InvariantBroken(f"no id was drawn for sequence {item.seq}")
            if sequence.draws and not sequence.ending and item.draw.position == len(sequence.ids):
                self._append(sequence, drawn)
        if not sequence.ending:
            self._settle(sequence)

    def _scored(
        self, sequence: Sequence, scores: tuple[Drawn, ...] | None, drawn: Drawn | None
    ) -> Drawn | Exception | None:
        """Tell of a prompt's scores; where the runner gives none, that is the item's result."""
        if scores is None:
            return NotBuilt("this engine gives no log-probabilities of prompts", "prompt_logprobs")
        if not sequence.ending:
            told = tuple((one.logprob, one.top) for one in scores)
            self._events.append(Scored(sequence.number, told))
        return drawn

    def _append(self, sequence: Sequence, drawn: Drawn) -> None:
        position = len(sequence.ids)
        sequence.ids.append(drawn.id)
        sequence.drawn = True
        logprob = drawn.logprob if sequence.params.logprobs >= 0 else None
        self._events.append(Sampled(sequence.number, position, drawn.id, logprob, drawn.top))

    def _publish(self, sequence: Sequence) -> None:
        filled = self._tables.publish(sequence)
        if filled is not None and not sequence.ending:
            self._events.append(BlocksReady(sequence.number, *filled))

    def _fault(self, sequence: Sequence, error: Exception) -> None:
        if sequence.ending:
            return
        if sequence.phase is not Phase.DONE:
            sequence.turn(Turn.FINISH)
        if isinstance(error, BadGrammar | NotBuilt):  # the request's fault, on whichever worker
            self._events.append(Fault(sequence.number, "grammar", str(error)))
            return
        detail = f"{type(error).__name__}: {error}"
        self._events.append(
            Fault(sequence.number, "nan" if isinstance(error, NanLogits) else "internal", detail)
        )

    def _settle(self, sequence: Sequence) -> None:
        """After any change: find the end, tell a standby's progress, move between resting and waiting."""
        if sequence.phase is Phase.DONE:
            return
        if sequence.goal is not Goal.EXTEND and self._finish(sequence):
            return
        if sequence.goal is Goal.EXTEND and not sequence.remaining:
            self._tell_extended(sequence)
        if sequence.wants and sequence.phase is Phase.RESTING:
            sequence.turn(Turn.WORK)
        elif not sequence.wants and sequence.phase is not Phase.RESTING:
            sequence.turn(Turn.REST)

    def _tell_extended(self, sequence: Sequence) -> None:
        length = len(sequence.ids)
        if length != sequence.extended:
            sequence.extended = length
            self._events.append(Extended(sequence.number, length))

    def _finish(self, sequence: Sequence) -> bool:
        """Whether the log has its end: a stop id last among the drawn ones, or its greatest length."""
        length = len(sequence.ids)
        if length > sequence.prompt_len and sequence.ids[-1] in sequence.params.stop_ids:
            self._events.append(Finished(sequence.number, length, "stop"))
        elif length >= min(sequence.params.max_pos, self._max_context):
            self._events.append(Finished(sequence.number, length, "length"))
        else:
            return False
        sequence.turn(Turn.FINISH)
        return True

    def _release(self, sequence: Sequence) -> None:
        sequence.turn(Turn.END)
        del self._sequences[sequence.number]
        self._ended.append(sequence.number)
        self._tables.release(sequence)

    def _get(self, seq: int) -> Sequence:
        sequence = self._sequences.get(seq)
        if sequence is None:
            raise InvariantBroken(f"sequence {seq} is not in the engine")
        return sequence

    def _check_spec(self, spec: SequenceSpec) -> None:
        length = len(spec.ids)
        if not spec.ids or length > self._max_context:
            raise InvalidRequest(f"{length} token ids do not fit: give 1 to {self._max_context}", "messages")
        held = len(spec.blocks)
        if held > len(spec.hashes) or len(spec.hashes) > length // self._block_tokens:
            raise InvariantBroken(
                f"{held} blocks and {len(spec.hashes)} hashes for {length} ids of"
                f" {self._block_tokens} a block"
            )
