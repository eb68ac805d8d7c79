"""Which build of torch is installed, by what was asked for and what can be reached."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from scripts.torch_build import CPU_INDEX, CUDA, SetupFailed, has_nvidia_driver, reachable, wanted_build


class FakePip:
    """Knows which requirements its sources have, with and without the extra index."""

    def __init__(self, *, configured: bool = False) -> None:
        self.configured = configured
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, *arguments: str, quiet: bool = False) -> bool:
        assert quiet
        assert "--dry-run" in arguments
        self.asked.append(arguments)
        return self.configured


def said(text: str) -> None:
    assert text


def test_a_cpu_build_from_the_configured_sources_comes_first() -> None:
    build = wanted_build("cpu", FakePip(configured=True), said)
    assert (build.kind, build.arguments) == ("cpu", ("torch==2.13.0+cpu",))
    assert CPU_INDEX not in build.reason


def test_cuda_on_demand_never_takes_a_cpu_build() -> None:
    pip = FakePip(configured=True)
    build = wanted_build("cuda", pip, said)
    assert (build.kind, build.arguments, pip.asked) == ("cuda", (CUDA,), [])
    assert "!=2.13.0+cpu" in CUDA
    assert "GB" in build.reason


def test_cpu_on_demand_that_cannot_be_had_is_an_error() -> None:
    with pytest.raises(SetupFailed, match="TORCH=cpu: no CPU build"):
        wanted_build("cpu", FakePip(), said)


@pytest.mark.skipif(has_nvidia_driver(), reason="this machine's driver decides")
def test_without_a_driver_and_without_a_cpu_build_the_size_is_said() -> None:
    build = wanted_build("", FakePip(), said)
    assert build.arguments == ("torch==2.13.0",)
    assert "2.7 GB" in build.reason


class Page(BaseHTTPRequestHandler):
    """Answers the page of torch and nothing else."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/torch/" else 404)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture
def index() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_index_is_reachable_when_it_has_a_page_for_torch(index: str) -> None:
    assert reachable(index)
    assert not reachable(f"{index}/elsewhere")


def test_an_index_that_does_not_answer_is_given_up_soon() -> None:
    assert not reachable("http://127.0.0.1:9", timeout_s=0.5)
    assert not reachable("http://index.invalid", timeout_s=0.05)
