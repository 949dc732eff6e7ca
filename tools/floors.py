# SPDX-License-Identifier: Apache-2.0
"""The floors of the house: who may import whom (docs/architecture.md)."""

from __future__ import annotations

# Lowest first. A module imports its own floor and those below; the longest
# matching name decides which floor it is on.
FLOORS: tuple[tuple[str, tuple[str, ...]], ...] = (
  (
    'core',
    (
      'praxis.asserts',
      'praxis.base_hyperparams',
      'praxis.fiddle_tags',
      'praxis.lazy_loader',
      'praxis.metric_utils',
      'praxis.nested_map',
      'praxis.pax_fiddle',
      'praxis.py_utils',
      'praxis.pytypes',
      'praxis.struct_text',
      'praxis.trees',
    ),
  ),
  ('kernels', ('praxis.kernels',)),
  (
    'base',
    (
      'praxis.base_input',
      'praxis.base_layer',
      'praxis.base_model',
      'praxis.flax_utils',
    ),
  ),
  (
    'layers',
    (
      'praxis.gshard_utils',
      'praxis.layers',
      'praxis.optimizer_prefix_vectorization',
      'praxis.optimizers',
      'praxis.schedules',
    ),
  ),
  (
    'decoding',
    (
      'praxis.beam_search',
      'praxis.decoder_hparams',
      'praxis.decoder_utils',
      'praxis.decoding',
      'praxis.flat_beam_search',
      'praxis.sample_decode',
      'praxis.token_samplers',
    ),
  ),
  (
    'models',
    (
      'praxis.contrib',
      'praxis.layers.glam',
      'praxis.layers.grok',
      'praxis.layers.models',
      'praxis.layers.quantization.quantize',
      'praxis.layers.transformer_models',
    ),
  ),
  (
    'learning',
    (
      'pax.atomic_file',
      'pax.base_inference_runner',
      'pax.base_metrics',
      'pax.ghostnorm',
      'pax.base_task',
      'pax.inputs',
      'pax.learners',
      'pax.seqio_input',
      'pax.tasks_lib',
      'pax.tf_records',
      'pax.train_states',
      'pax.xla_passthrough',
    ),
  ),
  (
    'declaring',
    (
      'pax.automl',
      'pax.base_executor',
      'pax.base_experiment',
      'pax.experiment_registry',
      'pax.experiment_vars_summary',
      'pax.parameterized_experiment',
      'pax.tuning',
    ),
  ),
  ('experiments', ('pax.contrib', 'pax.tasks')),
  ('steps', ('pax.steps',)),
  (
    'storage',
    (
      'pax.checkpoints',
      'pax.io_utils',
      'pax.partitioning',
      'pax.summaries',
    ),
  ),
  (
    'programs',
    (
      'pax.executors',
      'pax.programs',
    ),
  ),
  ('plotting', ('pax.plotting',)),
  (
    'running',
    (
      'pax.aot',
      'pax.jobs',
      'pax.main',
      'pax.runner',
      'pax.studies',
      'pax.tools',
    ),
  ),
  ('paxml', ('pax.paxml_api', 'paxml')),
)

_RUNTIME = ('pax.aot', 'pax.main', 'pax.programs', 'pax.runner', 'pax.steps')

# {who: what they may never import}, whatever the floors say: to declare an
# experiment is not to run it, and nothing that runs knows an experiment.
NEVER: dict[str, tuple[str, ...]] = {
  'pax.base_experiment': _RUNTIME,
  'pax.contrib': _RUNTIME,
  'pax.experiment_registry': _RUNTIME,
  'pax.tasks': _RUNTIME,
  **dict.fromkeys(_RUNTIME, ('pax.contrib', 'pax.tasks')),
  **dict.fromkeys(
    ('pax.checkpoints', 'pax.io_utils', 'pax.partitioning', 'pax.summaries'),
    ('pax.contrib', 'pax.tasks'),
  ),
}

# {package: the only place that may import it}.
ONLY_IN: dict[str, str] = {
  'lingvo': 'pax.inputs',
  'seqio': 'pax.inputs',
  'tensorflow': 'pax.inputs',
}


def is_in(module: str, package: str) -> bool:
  return module == package or module.startswith(package + '.')


def floor(module: str) -> int | None:
  """Index in FLOORS, or None for what stands outside the house."""
  found = [
    (len(name), level)
    for level, (_, names) in enumerate(FLOORS)
    for name in names
    if is_in(module, name)
  ]
  return max(found)[1] if found else None


def fault(importer: str, imported: str) -> str | None:
  """What is wrong with `importer` importing `imported`, or None."""
  here, there = floor(importer), floor(imported)
  if here is not None and there is not None and there > here:
    return (
      f'{importer} ({FLOORS[here][0]}) imports {imported}, which is on a '
      f'higher floor ({FLOORS[there][0]})'
    )
  for who, whats in NEVER.items():
    if is_in(importer, who) and any(is_in(imported, w) for w in whats):
      return f'{importer} may never import {imported} (tools/floors.py)'
  home = ONLY_IN.get(imported.split('.')[0])
  if home and importer.startswith(('praxis', 'pax')):
    if not is_in(importer, home):
      return f'{importer} imports {imported}: only {home} may'
  return None
