# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
# bazel: data=//:all_files
# bazel: deps=//pax/tasks:experiments
"""What a process imports before its first step, and what an import may do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.architecture import source_tree
from tools import layers

# Libraries that are imported where they are used, if they are.
_SLOW = (
  'boto3',
  'grain',
  'grpc',
  'matplotlib',
  'optuna',
  'orbax',
  'pandas',
  'scipy',
  'sentencepiece',
  'tensorboardX',
  'torch',
  'transformers',
)
# Flax imports it.
_WITH_FLAX = ('rich',)


def run(code: str) -> str:
  """Returns the output of a program in a new process."""
  return subprocess.run(
    [sys.executable, '-c', code],
    stdout=subprocess.PIPE,
    text=True,
    check=True,
    cwd=source_tree.ROOT,
    env={
      'PYTHONPATH': ':'.join([str(source_tree.ROOT), *sys.path]),
      'HOME': '/nonexistent',
    },
  ).stdout


@pytest.mark.parametrize(
  ('modules', 'slow'),
  [
    ('pax.main', {*_SLOW, *_WITH_FLAX, 'jax'}),
    ('pax.experiment_registry', {*_SLOW, *_WITH_FLAX, 'jax'}),
    ('pax.runner.runner, pax.tasks.lm.params.lm_cloud', {*_SLOW}),
  ],
)
def test_slow_libraries_are_imported_where_they_are_used(modules, slow):
  loaded = set(run(f'import sys, {modules}; print(*sys.modules)').split())
  assert not loaded & {*slow, *layers.ONLY_IN}


def test_importing_a_class_does_not_parse_its_module():
  # Fiddle parses the module of a lambda that becomes a Config: 0.3 s for one.
  run("""
import libcst

def parse(source):
  raise AssertionError('a field has a lambda; pass a named function')

libcst.parse_module = parse
from pax import experiment_registry
from praxis import layers, optimizers

experiment_registry.import_all_experiments()
""")
