# Two commands do everything from nothing: `make demo` and `make test`. uv is fetched into .uv where the machine has none.
UV := $(shell uv --version >/dev/null 2>&1 && echo uv || echo .uv/bin/uv)
RUN := $(UV) run --extra megatron
# Compiled once at installation: importing Megatron without bytecode takes a minute longer.
export UV_COMPILE_BYTECODE := 1

.PHONY: demo ordinary slurm test lint format docs clean

demo: $(filter .uv/%,$(UV))  ## the CPU experiment: every log-probability equal, to the bit
	$(RUN) python -m launcher +preset=zero_kl_cpu

ordinary: $(filter .uv/%,$(UV))  ## the same with ordinary kernels: not equal
	$(RUN) python -m launcher

test: $(filter .uv/%,$(UV))  ## all tests that need no GPU
	$(RUN) pytest

slurm:  ## as root, on Debian: the Slurm that the tests start on this machine; without it they are skipped
	tests/slurm/install.sh

lint: $(filter .uv/%,$(UV))
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) pyright

format: $(filter .uv/%,$(UV))
	$(RUN) ruff check --fix
	$(RUN) ruff format

docs: $(filter .uv/%,$(UV))  ## regenerate the pages of docs/ that are generated
	$(RUN) python -m launcher.docs

.uv/bin/uv:
	python3 -m venv .uv
	.uv/bin/pip install --disable-pip-version-check uv

clean:
	rm -rf .venv .uv outputs/* uv.lock
