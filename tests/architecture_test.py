# SPDX-License-Identifier: Apache-2.0
# bazel: data=//:all_files
"""Keeps the floors, the sizes of files and functions, and import costs."""

from __future__ import annotations

import ast
import functools
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tools import floors

ROOT = pathlib.Path(__file__).absolute().parents[1]
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 6
LIBRARY = ('praxis', 'pax')
# Imported on the way to a first step only where they are needed.
SLOW = ('grain', 'matplotlib', 'orbax', 'rich', 'sentencepiece', 'tensorboardX')


@functools.cache
def sources() -> tuple[pathlib.Path, ...]:
  return tuple(
    path
    for room in (*LIBRARY, 'tests', 'tools', 'benchmarks')
    for path in sorted((ROOT / room).rglob('*.py'))
  )


def library() -> list[pathlib.Path]:
  return [p for p in sources() if p.relative_to(ROOT).parts[0] in LIBRARY]


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
  return ast.parse(path.read_text())


def module_of(path: pathlib.Path) -> str:
  parts = path.relative_to(ROOT).with_suffix('').parts
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def imports_of(path: pathlib.Path) -> Iterator[str]:
  for node in ast.walk(parsed(path)):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def functions_of(path: pathlib.Path) -> Iterator[ast.FunctionDef]:
  kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
  return (n for n in ast.walk(parsed(path)) if isinstance(n, kinds))


def check_none(found: list[str]) -> None:
  assert not found, '\n'.join(found)


def test_there_is_a_library_to_look_at():
  assert len(library()) > 20


def test_modules_import_their_own_floor_or_lower():
  faults = (
    floors.fault(module_of(path), name)
    for path in library()
    for name in imports_of(path)
  )
  check_none(sorted({fault for fault in faults if fault}))


def test_every_module_is_on_a_floor():
  roots = LIBRARY
  check_none(
    [
      f'{path}: add {module_of(path)} to tools/floors.py'
      for path in library()
      if module_of(path) not in roots and floors.floor(module_of(path)) is None
    ]
  )


def test_a_fault_is_seen():
  assert floors.fault('praxis.base_layer.layer', 'pax.runner.options')
  assert floors.fault('pax.tasks.lm.params.x', 'pax.programs.train')
  assert floors.fault('pax.runner', 'tensorflow.data')
  assert not floors.fault('pax.runner', 'praxis.base_layer')


def test_files_are_short():
  lines = {path: path.read_text().count('\n') for path in sources()}
  check_none(
    [
      f'{path}: {count} lines, at most {MAX_FILE_LINES}; split it'
      for path, count in lines.items()
      if count > MAX_FILE_LINES
    ]
  )


def test_functions_are_short():
  check_none(
    [
      f'{path}:{node.lineno}: {node.name} is longer than {MAX_FUNCTION_LINES}'
      for path in sources()
      for node in functions_of(path)
      if node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    ]
  )


def positional(node: ast.FunctionDef) -> list[str]:
  arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
  return [a.arg for a in arguments if a.arg not in ('self', 'cls')]


# Public signatures that upstream's users call by keyword; `__init__` by file.
WIDE = {
  'handler.__init__',
  'parameterized_experiment.__init__',
  'resnet_preprocessing.distorted_bounding_box_crop',
  'early_stopping.is_last_checkpoint',
  'sweeps.hyperparameter_tuning',
  'sweeps.neural_architecture_search',
  'sweeps.parameter_sweep',
  'tuning_lib.should_early_stop',
  'GlamUniTransformerLmHParams',
  'GrokStackedTransformerHParams',
  'GrokUniTransformerLmHParams',
  '__call__',
  'abstract_init_with_metadata',
  'aqt_einsum',
  'beam_search',
  'between',
  'build_vision_transformer_hparams_for_test',
  'compute_attention_masks_for_fprop',
  'compute_eval_metrics_helper',
  'custom_einsum',
  'einsum',
  'extend_step',
  'fakequant_einsum',
  'fakequant_vn',
  'for_diffusion',
  'for_transformer',
  'fprop',
  'fprop_with_encoder_output',
  'mixed_precision_for_transformer',
  'process',
  'quantize_attention_layer_weights',
  'quantize_transformer_layer_weights',
  'quantized_einsum',
  'reduce_einsum_activation_precision',
  'reduce_einsum_weight_precision',
  'reduce_precision',
  'render',
  'sample_decode',
  'set_canonical_sharding_params',
  'set_default_adafactor',
  'set_diffusion_quantization',
  'set_transformer_mixed_precision_quantization',
  'set_transformer_quantization',
  'setup_jax',
  'sharded_adam',
  'vanilla_sample_decode',
  'write_summary_entry',
}


def test_functions_take_few_parameters():
  check_none(
    [
      f'{path}:{node.lineno}: {node.name} takes {positional(node)}'
      for path in library()
      for node in functions_of(path)
      if not {node.name, f'{path.stem}.{node.name}'} & WIDE
      and len(positional(node)) > MAX_PARAMETERS
    ]
  )


def test_no_user_visible_asserts_or_bare_excepts():
  check_none(
    [
      f'{path}:{node.lineno}: {type(node).__name__}'
      for path in library()
      for node in ast.walk(parsed(path))
      if isinstance(node, ast.Assert)
      or (isinstance(node, ast.ExceptHandler) and node.type is None)
    ]
  )


@pytest.mark.parametrize('module', ['pax.main', 'pax.experiment_registry'])
def test_slow_libraries_are_not_imported_at_start(module):
  code = f'import sys, {module}; print(" ".join(sys.modules))'
  out = subprocess.run(
    [sys.executable, '-c', code],
    capture_output=True,
    text=True,
    check=True,
    cwd=ROOT,
    env={
      'PYTHONPATH': ':'.join([str(ROOT), *sys.path]),
      'HOME': '/nonexistent',
    },
  )
  loaded = set(out.stdout.split())
  assert not loaded & {*SLOW, *floors.ONLY_IN}
