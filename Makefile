# The commands of this project. Each sets up what it needs and works from a bare clone.
#   TORCH=cpu|cuda   which build of torch to install (default: cuda with an NVIDIA driver, else cpu)
#   PYTHON=path      the interpreter the virtual environment is made from (default: the newest >= 3.11)
#   ARGS="..."       options for `make demo`, `make serve`, `make test` and `make chaos`
#   CONFIG=path      the mesh file of `make serve` (default: deploy/mesh.toml)

PY := .venv/bin/python
CONFIG ?= deploy/mesh.toml

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test chaos check check-kernels check-deploy reference bench-transport bench-engine bench-gpu bench-mesh bench-router test-clients test-ui fuzz

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@sed -n 's/^#   /  /p' $(firstword $(MAKEFILE_LIST))

setup: ## make .venv, install pinned packages, fetch and convert the development model (safe to repeat)
	@sh scripts/setup.sh $(if $(filter setup,$(MAKECMDGOALS)),--say)

demo: setup ## show the main job: four services, two datacenters, one conversation (ARGS="--rate-mbit 20 ...")
	@$(PY) -m scripts.demo $(ARGS)

serve: setup ## run the whole mesh on this machine until Ctrl-C
	@$(PY) -m services --config $(CONFIG) $(ARGS)

test: setup ## run all tests, two at a time (ARGS="-n 0 -k name" and other pytest options)
	@$(PY) -m pytest -n 2 --dist worksteal $(ARGS)

chaos: setup ## break a mesh of real processes for ten minutes and judge every token (ARGS="--seconds 60")
	@$(PY) -m tests.chaos $(ARGS)

test-clients: setup ## run other people's clients against a mesh, each in an environment of its own; write docs/clients.md
	@$(PY) -m scripts.test_clients $(ARGS)

fuzz: setup ## search for bytes that the wire's readers take badly, guided by coverage (ARGS="--seconds 600 listener")
	@$(PY) -m tests.fuzz $(ARGS)

check: setup ## lint, formatting, types, import rules, changed GPU kernels
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -m pytest -q tests/test_architecture.py
	@$(PY) -m scripts.check_kernels --changed

check-kernels: setup ## compile every GPU kernel for every target and judge the binaries (minutes; ARGS="--help")
	@$(PY) -m scripts.check_kernels $(ARGS)

check-deploy: setup ## verify the systemd units and their hardening (needs systemd-analyze)
	@$(PY) -m scripts.check_deploy

reference: setup ## write anew what is generated: deploy/mesh.schema.json, the lists in docs/operations.md
	@$(PY) -m scripts.make_reference

test-ui: setup ## test the live page in this machine's Chromium; screenshots go to build/ui-shots (minutes)
	@$(PY) -m scripts.live_page $(ARGS)

bench-transport: setup ## measure the KV transport beside its baselines (minutes; ARGS="--quick", "--full", "trace-mix wan")
	@$(PY) -m benchmarks.transport $(ARGS)

bench-router: setup ## measure the router: added latency, throughput of one core, retokenisation (ARGS="--quick", "overhead")
	@$(PY) -m benchmarks.router $(ARGS)

bench-engine: setup ## measure the engine on this CPU beside others (minutes; ARGS="--quick", "decode --vs-vllm PYTHON")
	@$(PY) -m benchmarks.engine $(ARGS)

bench-gpu: setup ## check and time everything that runs on a GPU (minutes; ARGS="--device cpu --tiny" anywhere)
	@$(PY) -m benchmarks.gpu $(ARGS)

bench-mesh: setup ## measure the mesh under load and fault beside other policies (minutes; ARGS="--quick", "overload skew")
	@$(PY) -m benchmarks.mesh $(ARGS)
