"""`make demo`: the mesh's main job on this machine, shown and checked.

Four services in two datacenters, joined by an emulated line on which the long prompt's KV takes three times
its prefill. Five requests; every answer is compared with a reference that shares no code with the engine. The
last line is one JSON object. Exit code 1 where something was not as it has to be.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from openai import AsyncOpenAI
from tokenizers import Tokenizer

from scripts.demo.acts import LONG, Act, Measured, acts
from scripts.demo.client import Messages, Run, ask
from scripts.demo.judge import Judge, problems, row
from scripts.demo.screen import Screen
from scripts.demo.stage import MODEL_NAME, Stage, open_stage
from scripts.model_cache import model_dir
from shared.errors import MeshError, StartFailed
from shared.runtime.service import run_loop


def main() -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument(
        "--rate-mbit", type=float, default=0.0, help="rate of the line (default: from the prefill)"
    )
    parser.add_argument("--rtt-ms", type=float, default=30.0, help="round trip of the line")
    parser.add_argument("--no-color", action="store_true", help="no colours")
    parser.add_argument("--logs", type=Path, help="directory for mesh.toml and logs (default: a new one)")
    options = parser.parse_args()
    options.logs = (options.logs or Path(tempfile.mkdtemp(prefix="pdd-demo-"))).absolute()
    options.logs.mkdir(parents=True, exist_ok=True)
    screen = Screen(color=not options.no_color)
    try:
        return run_loop(_demo(screen, options))
    except MeshError as error:
        screen.say(f"demo: {error}")
        return 1


async def _demo(screen: Screen, options: argparse.Namespace) -> int:
    model = await asyncio.to_thread(model_dir)
    directory: Path = options.logs
    count = _counter(model)
    screen.say(f"model {model.name}, float32; logs in {directory}")
    screen.say(f"measuring one prefill of {LONG} tokens on this machine ...")
    measured = await _measure(model)
    rate = options.rate_mbit or measured.line_rate()
    screen.say(
        f"prefill {measured.prefill:.1f} s, its KV {measured.kv_bytes / 1e6:.0f} MB: the line has {rate:.1f} "
        f"Mbit/s ({measured.line_seconds(rate):.1f} s for it) and {options.rtt_ms:.0f} ms round trip"
    )

    def progress(names: list[str]) -> None:
        screen.status(f"starting: waiting for {', '.join(names)}" if names else "")

    async with open_stage(
        directory, model, rate_mbit=rate, rtt_ms=options.rtt_ms, progress=progress
    ) as stage:
        screen.say("four services are up: router, prefill and relay decode in datacenter a, main decode in b")
        screen.legend()
        played = acts(measured, rate, count)
        runs = await _play(screen, stage, played, directory)
        leaked = await asyncio.to_thread(_held, stage)
    screen.say("\ncomparing every token with the reference ...")
    least = {act.name: act.min_tokens for act in played}
    return await asyncio.to_thread(_judge, screen, model, runs, least, leaked)


def _judge(screen: Screen, model: Path, runs: list[Run], min_tokens: dict[str, int], leaked: int) -> int:
    judge = Judge(model)
    stop_ids = _stop_ids(model)
    rows = [
        row(run, judge.equals_reference(run, min_tokens=min_tokens[run.name], stop_ids=stop_ids))
        for run in runs
    ]
    screen.table(rows)
    found = problems(rows, leaked)
    for problem in found:
        screen.say(f"not as it has to be: {problem}")
    if not found:
        screen.say("all as it has to be.")
    sys.stdout.write(json.dumps({"requests": rows, "leaked_blocks": leaked}) + "\n")
    return 1 if found else 0


async def _play(screen: Screen, stage: Stage, played: list[Act], logs: Path) -> list[Run]:
    """What each act showed, in order."""
    client = AsyncOpenAI(base_url=f"{stage.base_url}/v1", api_key="none", max_retries=0, timeout=600.0)
    runs: list[Run] = []
    talk: Messages = []
    for act in played:
        if act.flushed:
            await asyncio.to_thread(_flush, stage)
        screen.title(act.name, act.what)
        before = stage.wan.carried[0]
        talk = [*(talk if act.goes_on else ()), {"role": "user", "content": act.text}]
        run = await ask(
            client,
            act.name,
            MODEL_NAME,
            talk,
            max_tokens=act.max_tokens,
            min_tokens=act.min_tokens,
            without=act.without,
            on_text=screen.piece,
        )
        talk.append({"role": "assistant", "content": run.text})
        await asyncio.to_thread(_settle, stage)
        run.kv_bytes_wan = stage.wan.carried[0] - before
        screen.time_line(run)
        (logs / f"{act.name}.json").write_text(json.dumps(run.pdd, indent=1), encoding="utf-8")
        runs.append(run)
    await client.close()
    return runs


async def _measure(model: Path) -> Measured:
    """Run the calibration in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scripts.demo.calibrate", str(model), str(LONG), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    if process.returncode:
        raise StartFailed(f"the calibration ended with code {process.returncode}")
    found = json.loads(out)
    return Measured(found["prefill_s"], found["decode_step_s"], found["kv_bytes"])


def _counter(model: Path) -> Callable[[str], int]:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text).ids)


def _stop_ids(model: Path) -> list[int]:
    """Ids that end an answer, from the model's own files."""
    found = json.loads((model / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
    return found if isinstance(found, list) else [found]


def _settle(stage: Stage, *, seconds: float = 20.0) -> None:
    """Until no worker has a request, a ticket or a transfer any more, at most `seconds`."""
    until = time.monotonic() + seconds
    while _held(stage) and time.monotonic() < until:
        time.sleep(0.05)


def _held(stage: Stage) -> int:
    """Blocks that are pinned or promised at any worker."""
    return sum(map(_held_by, stage.status.values()))


def _held_by(address: str) -> int:
    connection = http.client.HTTPConnection(address, timeout=5.0)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    names = ("pdd_held_pins{", "pdd_held_promises{")
    return int(sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(names)))


def _flush(stage: Stage) -> None:
    """Drop every cached block of all workers, through the router's admin endpoint."""
    connection = http.client.HTTPConnection(stage.base_url.removeprefix("http://"), timeout=5.0)
    try:
        connection.request("POST", "/admin/flush", headers={"Authorization": f"Bearer {stage.admin_key}"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise StartFailed(f"POST /admin/flush answered {answer.status}: {answer.read().decode()}")
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
