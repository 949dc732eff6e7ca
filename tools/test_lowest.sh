#!/bin/bash
# Trains and tests with the lowest versions that pyproject.toml allows. Of them, Flax
# calls deprecated functions of JAX.
# usage: tools/test_lowest.sh DIR     (a new virtual environment; needs a network)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
python=${PAX_PYTHON:-python3.11}
"$python" -m venv "$venv"
"$venv/bin/pip" install -q --require-hashes --no-deps \
  -r third_party/pip/requirements_lowest_lock.txt
"$venv/bin/pip" install -q --no-deps -e .
"$venv/bin/pip" install -q beartype pytest
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
JAX_PLATFORMS=cpu "$venv/bin/pax" --exp=tasks.lm.params.quickstart.TinyLm \
  --job_log_dir="$work/job" --set=task.train.num_train_steps=20
JAX_PLATFORMS=cpu "$venv/bin/python" -m pytest -q \
  -W default::DeprecationWarning tests/pax/steps \
  tests/pax/summaries tests/praxis/pax_fiddle_test.py tests/praxis/schedules \
  tests/pax/checkpoints/{orbax_format,tensorstore_format,transformations,writing}_test.py
