"""A worker as a process: core, engine thread, sockets and status page, started, drained and stopped.

What the three compute services have in common; which role it is comes with the node. Decides nothing itself.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from shared.engine.constrained import ConstrainedRunner
from shared.engine.engine import Engine
from shared.engine.grammar import Grammars, load_grammars
from shared.errors import ModelError
from shared.kv.hashing import chain_root
from shared.kv.pool import BlockPool
from shared.runtime.metrics import make_registry
from shared.runtime.settings import MeshConfig, NodeConfig, split_address
from shared.runtime.settings_told import told
from shared.runtime.tracing import Tracer, make_tracer
from shared.runtime.web import WebServer, status_app
from shared.transport.compression import encoding_of
from shared.transport.endpoint import Endpoint
from shared.wire.handshake import Identity
from shared.wire.messages import Role, TransferClass
from shared.wire.port import Instruction
from shared.worker.compiling import Compiling
from shared.worker.engine_loop import EngineLoop
from shared.worker.links import line_specs, mesh_key, route_to, tls_files
from shared.worker.meeting import SENDS_TO
from shared.worker.parts import Built, build, first_announce, plane_codec
from shared.worker.send_queues import NOTHING
from shared.worker.worker import Worker


class WorkerProcess:
    """A `Service` of role prefill, relay or main_decode."""

    def __init__(
        self, mesh: MeshConfig, node: NodeConfig, load: Callable[[MeshConfig, NodeConfig], Built] = build
    ) -> None:
        self._mesh = mesh
        self._node = node
        self._load = load
        self._role = Role(node.role)
        self._changed = asyncio.Event()
        self._log = structlog.get_logger()
        self._tracer: Tracer | None = None

    async def start(self) -> None:
        """Load and warm up the model, then listen and dial."""
        node = self._node
        self._tracer = make_tracer(
            self._mesh.tracing, node=node.name, role=node.role, datacenter=node.datacenter
        )
        built = await asyncio.to_thread(self._load, self._mesh, node)
        grammars = await asyncio.to_thread(self._load_grammars)
        self._assemble(built, grammars)
        await self._steps.warm_up()
        host, port = split_address(self._node.listen, f"nodes.{self._node.name}.listen")
        self.port = await self._endpoint.listen(host, port)
        self._dial()
        self._web = await self._start_web()
        self._log.info("listening", port=self.port, pool_blocks=self._node.pool_blocks)
        self._tell_settings()

    async def run(self) -> None:
        """Step the engine until cancelled."""
        await self._steps.run()

    async def drain(self) -> None:
        """Take no new work; returns when nothing is left here, or the drain time is over."""
        self.worker.drain(time.monotonic())
        self._endpoint.perform(time.monotonic())
        try:
            async with asyncio.timeout(self._mesh.policy.router.drain):
                while not self.worker.drained:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self._log.warning("drain time is over", **self.worker.counts())

    def reload(self) -> None:
        """Read certificates again, for connections made from now on. Raises ConfigError."""
        self._endpoint.reload_tls()

    async def stop(self) -> None:
        """End what is left and tell the peers."""
        self.worker.stop(time.monotonic())
        self._endpoint.perform(time.monotonic())
        await self._endpoint.close("stopped")
        self._steps.stop()
        if self._compiling is not None:
            await self._compiling.close()
        if self._web is not None:
            await self._web.stop()
        if self._tracer is not None:
            self._tracer.emit(self.worker.take_spans())
            await asyncio.to_thread(self._tracer.close)

    def _load_grammars(self) -> Grammars | None:
        """Prepare the vocabulary for grammars; a tokenizer that does not allow it serves without them."""
        try:
            return load_grammars(Path(self._mesh.model_of(self._node).path).expanduser())
        except ModelError as error:
            self._log.warning("grammars are not served", reason=str(error))
            return None

    def _compiled(self) -> None:
        """A grammar is ready: a sequence may have waited for it."""
        self._steps.wake()

    def _assemble(self, built: Built, grammars: Grammars | None) -> None:
        mesh, node, runner = self._mesh, self._node, built.runner
        self._compiling: Compiling | None = None
        if grammars is not None:
            runner = ConstrainedRunner(runner, grammars)
            self._compiling = Compiling(grammars, self._compiled)
        layout = runner.layout
        incarnation = secrets.randbits(63) + 1
        pool = BlockPool(node.pool_blocks)
        self._engine = Engine(
            pool,
            block_tokens=layout.block_tokens,
            policy=mesh.policy.worker,
            max_context=built.max_context,
            gate=self._compiling,
        )
        digest = layout.digest()
        self.worker = _Watched(
            self._role,
            node.name,
            incarnation,
            mesh.policy.worker,
            self._engine,
            pool,
            runner.view,
            lambda salt: chain_root(built.fingerprint.full, digest, salt),
            first_announce(mesh, node, built),
            secrets.token_bytes,
            layout=layout,
            line=mesh.policy.line,
            link=mesh.policy.link,
            line_of=self._line_of,
            line_rate=self._line_rate,
            line_gain=self._line_gain,
            line_oldest=self._line_oldest,
            landed=runner.landed,
        )
        self.worker.after = self._after
        if self._tracer is not None:
            self.worker.record_spans()
        self._counted = runner
        self._steps = EngineLoop(self._engine, runner, self._on_events, time.monotonic)
        self._endpoint = Endpoint(
            Identity(
                node=node.name,
                role=self._role,
                datacenter=node.datacenter,
                incarnation=incarnation,
                fingerprint=built.fingerprint.full,
                template=built.fingerprint.template,
                layout=digest,
                layout_text=layout.describe(),
            ),
            self.worker,
            mesh.policy.link,
            mesh.policy.line,
            lines=line_specs(mesh),
            key=mesh_key(mesh),
            tls=tls_files(mesh),
            route=lambda peer, address: route_to(mesh, node, peer, address),
            encoding=encoding_of(layout),
            codec=plane_codec(),
        )

    def _dial(self) -> None:
        """Keep sessions to all routers, and to those of the same model that this role sends KV to."""
        model = self._mesh.model_of(self._node)
        for other in self._mesh.nodes:
            role = Role(other.role)
            if role is not Role.ROUTER and self._mesh.model_of(other) != model:
                continue
            if role is Role.ROUTER or role in SENDS_TO[self._role]:
                host, port = self._mesh.address_of(other, self._node)
                self._endpoint.dial(other.name, host, port, self._bulk_to(other, role))

    def _bulk_to(self, other: NodeConfig, role: Role) -> int:
        if role is Role.ROUTER:
            return 0
        line = self._mesh.line_between(self._node.datacenter, other.datacenter)
        return (line.bulk_connections if line else 0) or self._mesh.policy.link.bulk_connections

    def _line_of(self, node: str) -> str:
        view = self._endpoint.line_for(node)
        return view.name if view is not None else node

    def _line_oldest(self, line: str) -> float | None:
        return self._endpoint.oldest_part(line)

    def _line_rate(self, line: str) -> float:
        view = self._endpoint.lines().get(line)
        return view.rate if view is not None else 0.0

    def _line_gain(self, line: str) -> float:
        view = self._endpoint.lines().get(line)
        return view.gain if view is not None else 1.0

    def _on_events(self, now: float, events: object) -> None:
        self.worker.on_engine(now, events)  # type: ignore[arg-type]
        self._endpoint.perform(now)

    def _after(self) -> None:
        """Something has happened in the core: there may be work, or the drain may be over."""
        self._changed.set()
        for kind, facts in self.worker.take_journal():
            self._log.info("ended", kind=kind, **facts)
        if self._tracer is not None:
            self._tracer.emit(self.worker.take_spans())
        if self._engine.has_work:
            self._steps.wake()

    async def _start_web(self) -> WebServer | None:
        if not self._node.http:
            return None
        registry = make_registry(self.numbers, node=self._node.name, role=self._node.role)
        app = status_app(registry, self.ready, self.healthy)
        server = WebServer(app, *split_address(self._node.http, f"nodes.{self._node.name}.http"))
        await server.start()
        return server

    # --- what it shows ---

    def numbers(self) -> Mapping[str, float]:
        """Everything /metrics shows."""
        stats = self._engine.stats
        found = {name: float(value) for name, value in self.worker.counters.items()}
        found |= {f"held_{name}": float(value) for name, value in self.worker.counts().items()}
        found |= {f"transport_{name}_total": float(value) for name, value in self._endpoint.counters.items()}
        pool = self.worker.site.pool
        found |= {
            "pool_blocks": float(pool.total),
            "pool_free": float(pool.free),
            "pool_cached": float(pool.cached),
            "tasks": float(len(asyncio.all_tasks())),
        }
        found |= {
            "running": float(stats.running),
            "queued": float(stats.queued),
            "queued_tokens": float(stats.queued_tokens),
            "prefill_tokens_per_second": stats.prefill_rate,
            "decode_step_ms": stats.decode_step_ms,
            "steps_total": float(stats.steps),
        }
        found |= {f"engine_{name}_total": float(value) for name, value in self._counted.counters.items()}
        waiting = self.worker.lines(time.monotonic())
        for name, line in self._endpoint.lines().items():
            found[f'line_rate_bytes{{line="{name}"}}'] = line.rate
            found[f'line_rtt_seconds{{line="{name}"}}'] = line.rtt
            found[f'line_share_bytes{{line="{name}"}}'] = line.share
            load = waiting.get(name, NOTHING)
            found[f'line_oldest_seconds{{line="{name}"}}'] = load.oldest_age
            for cls, unsent in zip(TransferClass, load.by_class, strict=True):
                found[f'line_unsent_bytes{{line="{name}",class="{cls.name.lower()}"}}'] = float(unsent)
        return found

    def ready(self) -> dict[str, object]:
        """Whether a router can use this worker, and why not."""
        reasons = []
        if not self.worker.site.peers.routers():
            reasons.append("no session with a router")
        if self.worker.site.draining:
            reasons.append("draining")
        return {"ready": not reasons, "reasons": reasons, "sessions": sorted(self._endpoint.sessions())}

    def healthy(self) -> str:
        """Why this process should be restarted; "" while it need not."""
        since = self._steps.step_since
        if since is not None and time.monotonic() - since > self._mesh.policy.worker.hung_step:
            return f"a step has been running for {time.monotonic() - since:.0f} s"
        return ""

    def _tell_settings(self) -> None:
        """Log every time-out that is in force, once."""
        policy = self._mesh.policy
        for section, values in told(link=policy.link, line=policy.line, worker=policy.worker):
            self._log.info("policy", section=section, **values)


class _Watched(Worker):
    """The core, telling after each event that something has happened: the outbox is taken after every one."""

    after: Callable[[], None] = staticmethod(lambda: None)

    def take_outbox(self) -> list[Instruction]:
        """All instructions since the last call, in order."""
        self.after()
        return super().take_outbox()
