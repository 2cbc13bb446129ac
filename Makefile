# `make demo` and `make test` each work as the first command in a fresh clone; the rest is for those who stay.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
export PATH := $(BIN):$(PATH)
export MLFLOW_DISABLE_TELEMETRY := true
export DVC_NO_ANALYTICS := true
# What cargo is told where programs for the kernel cannot be linked; known once `deps` has run.
BPF = $(shell scripts/bpf-flags.sh)
CARGO_BUILD = cargo build --release --locked --workspace --bins $(BPF)

.PHONY: help setup deps python rust gym prometheus engine images workloads-smoke demo test test-rust test-fuzz test-pqos test-python test-python-others test-python-tracking test-python-stages test-engine fuzz dist test-dist collection image-node image-lab bench validate figures lint fmt site clean test-kernel test-rdt test-units-vm test-kills test-kills-campaign test-faults test-bundles test-mutations audit test-playbooks test-crashes bench-frontier bench-lab-hour bench-schedulers test-spark test-pages test-lab test-kit bench-policies

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

setup: deps python rust gym ## everything that demo and test need: system packages (as root), Python environment, binaries

deps:
	@scripts/deps.sh

python: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml scripts/python.sh
	@scripts/python.sh $(VENV)
	@touch $@

rust: deps
	$(CARGO_BUILD)

# What tests of metrics and alerts ask. Without it they are skipped, and say so.
prometheus: deps
	@scripts/test/prometheus.sh >/dev/null || echo "surefoot: no Prometheus here: tests of metrics and alerts will be skipped"

gym: python rust ## the virtual server as a Gymnasium environment, built and installed into .venv (docs/gym.md)
	@scripts/gym.sh $(VENV)

engine: deps ## start the container engine if none answers
	@scripts/engine.sh

images: engine ## build every workload image
	@scripts/images.sh --all

workloads-smoke: rust images ## every workload loaded: latency-load curves and max load on one core (about 40 min)
	@python3 scripts/workloads/workloads_smoke.py

demo: setup ## the whole story on this machine; ends with the path of a report
	surefoot demo

# With LINT=1 the linters run beside the suites, with RDT=... a part of test-rdt; nothing runs beside what measures real load.
# Under -j2 the longest come first: the Python suite is in three parts, so that two cores are busy to the end.
test: setup test-rust test-python-others test-python-tracking test-python-stages $(if $(LINT),lint site) $(if $(RDT),test-rdt) ## every test
	cargo test --release --locked --workspace $(BPF) --test memcached -- --ignored
	@scripts/test/pqos.sh
	@scripts/test/engine.sh "make test: all suites done"

# --tests: no crate has an example in its documentation, and clippy looks at the examples.
test-rust: setup
	cargo test --release --locked --workspace $(BPF) --tests

test-fuzz: deps ## the fuzz targets on their seeds, with the stable compiler
	cargo test --release --locked --manifest-path scheduler/fuzz/Cargo.toml --target-dir target

test-pqos: setup ## Debian's pqos and rdtset on resctrlfs
	@scripts/test/pqos.sh

TRACKING := tests/test_tracking.py
STAGES := tests/test_team.py tests/test_dvc_history.py tests/test_pipelines_train.py

test-python: test-python-others test-python-tracking test-python-stages

test-python-others: setup prometheus
	python -m pytest -o cache_dir=.pytest_cache/others tests $(TRACKING:%=--ignore %) $(STAGES:%=--ignore %)

test-python-tracking: setup
	python -m pytest -o cache_dir=.pytest_cache/tracking $(TRACKING)

test-python-stages: setup
	python -m pytest -o cache_dir=.pytest_cache/stages $(STAGES)

test-engine: setup
	@scripts/test/engine.sh

FUZZ_S ?= 60
fuzz: deps ## libfuzzer on what a node reads from outside, FUZZ_S seconds a target (3600 before a release)
	@scripts/test/fuzz.sh $(FUZZ_S)

test-kills: setup ## start, run, stop and reset interrupted at 300 random instants, alone and through the actuator; real cgroups, the stand-in for resctrl (root, 20 min)
	SUREFOOT_KILLS=300 cargo test --release --locked --workspace $(BPF) --test kill -- --nocapture

test-kills-campaign: setup ## campaigns killed at 200 random instants and resumed: every byte as undisturbed (about 20 min)
	SUREFOOT_CAMPAIGN_KILLS=200 python -m pytest -s tests/test_campaign_kills.py

TRIAL_CUT_S ?= 120
test-playbooks: setup engine ## playbooks and a campaign on three containers with sshd; a connection is cut for TRIAL_CUT_S seconds
	@scripts/test/playbooks.sh $(TRIAL_CUT_S)

test-spark: rust ## the stages label and rows on a local Spark: the same bits as on DuckDB (fetches 450 MB and a JRE once)
	@scripts/test/spark.sh

test-pages: setup ## every page in a browser at three widths, light and dark: nothing outside, axe finds nothing (fetches a browser and axe-core once)
	@scripts/test/pages.sh

test-crashes: deps ## 10,000 crash schedules of the campaign engine and its journal
	SUREFOOT_CRASHES=10000 cargo test --release --locked -p surefootd --lib crash_schedule

test-faults: setup ## every kind of bad data planted in a data set and found by `surefoot campaign verify`; no false alarm over ten seeds
	SUREFOOT_FAULTS=all python -m pytest tests/test_checks.py

MUTATIONS ?= 10000
test-mutations: setup ## MUTATIONS (10,000) nearly right inputs of every format, Rust and Python: exit codes, one line, bounded memory (some hours)
	SUREFOOT_MUTATIONS=$(MUTATIONS) cargo test --release --locked -p surefootd --test mutations -- --nocapture --test-threads=2
	SUREFOOT_MUTATIONS=$(MUTATIONS) python -m pytest -s tests/test_mutations.py

BUNDLES ?= 10000
test-bundles: setup ## BUNDLES fresh mutations of signed bundles: the lab's reader and the node's must say the same of each
	cargo build --release --locked -p surefoot-learn --example bundle_verdicts
	python -m tests.bundle_corpus --compare $(BUNDLES)

test-lab: rust engine ## the lab in containers: a campaign, a small dvc repro, the tracking server (as root; downloads 850 MB the first time)
	@scripts/test/lab.sh

audit: setup ## dependencies: licences, sources, advisories, vulnerabilities; says what could not be looked at (exit code 3 of scripts/lint/audit.py)
	python scripts/lint/audit.py

KERNEL ?=
test-kernel: deps ## cgroup tests on a stock Debian kernel in a virtual machine (fetches 70 MB once); KERNEL='-k "6.1 6.12" cosmos' for kernels and a part
	@scripts/vm/kernel-vm-test.sh $(KERNEL)

RDT ?=
test-rdt: setup ## the node on stock kernels 6.1 and 6.12 whose processors have RDT or AMD QoS (as root; builds a QEMU once); RDT='-k 6.12 -c one NAME' for a part
	@scripts/vm/rdt-vm-test.sh $(RDT)

test-units-vm: deps ## the packaged units under systemd in a virtual machine: killed, hung, power cut, removed (as root; fetches 60 MB more once)
	@scripts/vm/units-vm-test.sh

dist: deps ## the node side as archive and Debian package in dist/, for glibc 2.28 and up
	@scripts/dist/all.sh

test-dist: dist ## the packages: systemd's verdict on the units, the binary in an old Debian (as root)
	@scripts/test/units.sh
	@scripts/test/old-userland.sh

test-kit: setup dist engine ## docs/install-node.md followed on fresh Debian containers: packages, Ansible and by hand, from nothing to a held memcached (about 10 min)
	@scripts/test/kit.sh

collection: python ## the playbooks as an Ansible collection, in dist/
	@scripts/dist/collection.sh

image-node: dist engine ## container image of the node side
	@scripts/dist/image-node.sh

BASE ?= debian:bookworm-slim
image-lab: rust engine ## container images of the toolkit and of its tracking server's database (docs/team.md); BASE=IMAGE for another base
	@scripts/dist/image-lab.sh $(BASE)

bench: setup ## speed and memory; figures for docs/benchmarks.md
	scripts/bench/all.sh

bench-frontier: deps ## labels of the frontier strategy against those of every cell (docs/benchmarks.md)
	cargo run --release --locked -p surefootd --example frontier

bench-lab-hour: setup engine ## cells per hour on real containers against a relaunch for each cell (docs/benchmarks.md); as root, quiet
	scripts/images.sh memcached mariadb xapian
	cargo build --release --locked --workspace $(BPF)
	python scripts/bench/lab_hour.py target/release/surefootd

bench-policies: setup ## all policies on committed sets and drawn worlds, with ranks, on one page (docs/rivals.md)
	scripts/bench/policies.sh

bench-schedulers: setup ## the figures of docs/benchmarks.md, "Schedulers", from nothing: campaigns, models, bundles, all sets (hours; resumes)
	scripts/bench/schedulers.sh

validate: deps ## the virtual server against every fact it must reproduce; writes docs/virtual-server-validation.md
	cargo run --release --locked -p surefoot-vserver --example validate -- --markdown docs/virtual-server-validation.md

figures: python ## the figures of docs/virtual-server.md and of docs/index.md
	cargo run --release --locked -p surefoot-vserver --example curves | python -m collection.vserver_figures docs/images
	python -m collection.policy_figure docs
	python -m collection.price_figure docs

lint: setup ## formatters, linters and type checkers, warnings are errors
	cargo fmt --all --check
	cargo clippy --release --locked --workspace $(BPF) --all-targets -- -D warnings
	cargo clippy --release --locked --workspace --no-default-features --exclude surefoot-bpf -- -D warnings
	ruff check .
	ruff format --check .
	mypy
	yamllint --strict .
	scripts/lint/shell.sh
	python scripts/lint/imports.py

fmt: setup
	cargo fmt --all
	ruff format .

site: python ## the pages of docs/ as a searchable site in out/site, its links checked
	@scripts/site/build.sh

clean: ## what was built; data sets and the environment stay
	cargo clean
	rm -rf out
