"""The router as a process: its core, its mesh sockets and its HTTP front, started, drained and stopped.

Loads the tokenizer and no weights: it runs without torch. Decides nothing itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import structlog

from services.router.audit import Finding
from services.router.core import RouterCore
from services.router.front.admin import admin_routes
from services.router.front.app import Front, create_app
from services.router.front.keys import Keys, read_keys
from services.router.front.models import Served
from services.router.front.recording import Recording
from services.router.front.tokens import Tokenizer, load_tokenizer
from services.router.front.ui.feed import Feed
from services.router.front.ui.page import live_routes
from services.router.lines import Line
from services.router.picture import Picture
from services.router.spans import spans_of
from services.router.streams import Streams
from shared.engine.fingerprint import template_fingerprint
from shared.errors import ConfigError
from shared.runtime.metrics import make_registry
from shared.runtime.settings import MeshConfig, ModelConfig, NodeConfig, split_address
from shared.runtime.settings_told import told
from shared.runtime.tracing import Sampler, Tracer, make_tracer
from shared.runtime.web import WebServer
from shared.transport.endpoint import Endpoint
from shared.transport.security import is_loopback
from shared.wire.handshake import Identity
from shared.wire.messages import Role
from shared.wire.port import Instruction
from shared.worker.links import key_file, line_specs, mesh_key, route_to, tls_files

_RTT_EVERY = 1.0
"""Seconds between looks at the round trips that the links have measured."""


class RouterService:
    """A `Service` of role router."""

    def __init__(self, mesh: MeshConfig, node: NodeConfig) -> None:
        self._mesh = mesh
        self._node = node
        self._changed = asyncio.Event()
        self._log = structlog.get_logger()
        specs = line_specs(mesh)
        incarnation = secrets.randbits(63) + 1
        templates = {model.served: template_fingerprint(model.path) for model in mesh.served}
        template, *others = dict.fromkeys(templates.values())
        self.core = _Watched(
            node.name,
            node.datacenter,
            incarnation,
            mesh.policy.router,
            worker=mesh.policy.worker,
            link=mesh.policy.link,
            line=mesh.policy.line,
            lines=[Line(spec.name, spec.between, spec.rate, spec.rtt) for spec in specs],
            templates=templates,
        )
        self._endpoint = Endpoint(
            Identity(
                node=node.name,
                role=Role.ROUTER,
                datacenter=node.datacenter,
                incarnation=incarnation,
                template=template,
                templates=tuple(others),
            ),
            self.core,
            mesh.policy.link,
            mesh.policy.line,
            lines=specs,
            key=mesh_key(mesh),
            tls=tls_files(mesh),
            route=lambda peer, address: route_to(mesh, node, peer, address),
        )
        self.streams = Streams(self.core, self._endpoint.perform, time.monotonic)
        self.core.after = self._after
        self._tracer: Tracer | None = None
        self._feed = Feed(lambda: msgspec.json.encode(self.picture()))

    async def start(self) -> None:
        """Load the tokenizers, listen for workers, then for clients."""
        mesh, node = self._mesh, self._node
        self._tracer = make_tracer(mesh.tracing, node=node.name, role=node.role, datacenter=node.datacenter)
        self.core.observer.recording = self._tracer is not None
        models = [await self._served(model) for model in mesh.served]
        self.port = await self._endpoint.listen(*split_address(node.listen, f"nodes.{node.name}.listen"))
        host, port = split_address(node.http, f"nodes.{node.name}.http")
        self._accepted = self._keys(host)
        front = Front(
            generator=self.streams,
            models=models,
            registry=make_registry(self.numbers, node=node.name, role=node.role),
            ready=self.core.ready,
            healthy=lambda: "",
            keys=self._accepted,
            http=mesh.http,
            policy=mesh.policy.router,
            recording=self._recording(),
        )
        app = create_app(front)
        key = key_file(mesh.http.admin_key_file, "http.admin_key_file")
        app.router.routes.extend([*admin_routes(self, key), *live_routes(self._feed, key, node.name)])
        self._web = WebServer(
            app,
            host,
            port,
            drain=mesh.policy.router.drain,
            max_header=mesh.http.max_header,
            head_timeout=mesh.http.body_timeout,
            slow_client=mesh.policy.router.slow_client,
        )
        self.http_port = await self._web.start()
        names = [model.name for model in models]
        self._log.info("listening", port=self.port, http=self.http_port, models=names)
        policy = self._mesh.policy
        sections = told(link=policy.link, line=policy.line, router=policy.router, http=self._mesh.http)
        for section, values in sections:
            self._log.info("policy", section=section, **values)

    async def _served(self, model: ModelConfig) -> Served:
        """A model's name and tokenizer, and what the core says of it."""
        name = model.served
        return Served(
            name=name,
            tokenizer=await asyncio.to_thread(_tokenizer, model.path),
            max_context=lambda: self.core.max_context(name),
            fingerprint=lambda: _short(self.core.fingerprint(name)),
        )

    async def run(self) -> None:
        """Bring the measured round trips to the core until cancelled."""
        while True:
            await asyncio.sleep(_RTT_EVERY)
            for peer in self._endpoint.sessions():
                view = self._endpoint.line_for(peer)
                if view is not None and view.rtt > 0:
                    self.core.measured_rtt(peer, view.rtt)

    async def drain(self) -> None:
        """Take no new requests; returns when the streams have ended. The core ends them after `drain`."""
        self.core.drain(time.monotonic())
        self._endpoint.perform(time.monotonic())
        while not self.core.drained:
            self._changed.clear()
            await self._changed.wait()

    def reload(self) -> None:
        """Read certificates and clients' keys again. Raises ConfigError; what was read before then stays."""
        host, _port = split_address(self._node.http, f"nodes.{self._node.name}.http")
        self._accepted.replace(self._keys(host))
        self._endpoint.reload_tls()

    async def stop(self) -> None:
        """End what is left and tell the peers."""
        self._feed.close()
        await self._web.stop()
        await self._endpoint.close("stopped")
        if self._tracer is not None:
            self._trace(self._tracer)
            await asyncio.to_thread(self._tracer.close)

    # --- traces ---

    def _recording(self) -> Recording | None:
        """Where clients' requests are told; None where nothing is traced."""
        if self._tracer is None:
            return None
        return Recording(Sampler(self._mesh.tracing.sample, secrets.randbits).begin, self._tracer.emit)

    def _trace(self, tracer: Tracer) -> None:
        """Tell the stages of the requests that have ended."""
        for ended in self.core.observer.take_ended():
            tracer.emit(spans_of(ended))

    # --- the operator ---

    def picture(self) -> Picture:
        """How this router is doing, for who operates it."""
        return self.core.picture(time.monotonic())

    def flush(self) -> None:
        """Have every worker drop the cached blocks that nothing uses."""
        self.core.flush()
        self._endpoint.perform(time.monotonic())

    def flush_worker(self, node: str) -> bool:
        """The same of one worker. False: it is not known."""
        known = self.core.flush_worker(node)
        self._endpoint.perform(time.monotonic())
        return known

    async def compare(self) -> list[Finding]:
        """The index against what each worker says that it holds; put right where it is wrong."""
        self.core.compare()
        self._endpoint.perform(time.monotonic())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._mesh.policy.router.compare_wait):
                while self.core.comparing:
                    self._changed.clear()
                    await self._changed.wait()
        return self.core.compared()

    def drain_worker(self, node: str, *, on: bool) -> bool:
        """Have a worker take no new work, or take it again. False: it is not known."""
        known = self.core.drain_worker(node, on=on)
        self._endpoint.perform(time.monotonic())
        return known

    def numbers(self) -> Mapping[str, float]:
        """Everything /metrics shows beside the front's own measures."""
        found = dict(self.core.snapshot())
        found |= {f"transport_{name}_total": float(value) for name, value in self._endpoint.counters.items()}
        found["requests_oldest_wait_seconds"] = self.core.observer.oldest_wait(time.monotonic())
        found["streams_live"] = float(len(self.streams))
        found["tasks"] = float(len(asyncio.all_tasks()))
        return found

    def _keys(self, host: str) -> Keys:
        """Clients' keys. Raises ConfigError where clients could reach the service without one."""
        path = self._mesh.http.api_keys_file
        if path:
            return read_keys(key_file(path, "http.api_keys_file"), path)
        if is_loopback(host):
            return Keys()
        raise ConfigError(
            f"nodes.{self._node.name}.http",
            f"{host} can be reached from other machines and no API keys are set; set http.api_keys_file, "
            "or listen on 127.0.0.1",
        )

    def _after(self) -> None:
        """Something has happened in the core: events may wait, or the drain may be over."""
        self.streams.deliver()
        if self._tracer is not None:
            self._trace(self._tracer)
        self._changed.set()


def _tokenizer(path: str) -> Tokenizer:
    return load_tokenizer(Path(path).expanduser())


def _short(fingerprint: str) -> str:
    """What answers show of a model's fingerprint."""
    return f"fp_{hashlib.sha256(fingerprint.encode()).hexdigest()[:12]}" if fingerprint else ""


class _Watched(RouterCore):
    """The core, telling after each event that something has happened: the outbox is taken after every one."""

    after: Callable[[], None] = staticmethod(lambda: None)

    def take_outbox(self) -> list[Instruction]:
        """All instructions since the last call, in order."""
        self.after()
        return super().take_outbox()


def make(mesh: MeshConfig, node: NodeConfig) -> RouterService:
    """The service of one router node."""
    return RouterService(mesh, node)
