# SPDX-License-Identifier: Apache-2.0
"""The layers of the architecture: which module may import which.

python3 tools/layers.py    # writes the diagram in docs/architecture.md
"""

from __future__ import annotations

import functools
import pathlib
import re
import textwrap
from typing import NamedTuple

_DOC = pathlib.Path(__file__).absolute().parents[1] / 'docs/architecture.md'
_BLOCK = re.compile(r'(?<=<!-- layers -->\n```\n).*?(?=```\n)', re.DOTALL)
_WIDTH = 79


class Layer(NamedTuple):
  """Modules that may import each other and the layers below."""

  name: str
  description: str
  # Packages and modules, with everything in them that no other layer names.
  modules: tuple[str, ...]


# Lowest first. The longest matching name decides the layer of a module.
LAYERS: tuple[Layer, ...] = (
  Layer(
    'core',
    'configuration (Fiddle), nested maps, array and tree utilities',
    (
      'praxis.asserts',
      'praxis.base_hyperparams',
      'praxis.fiddle_tags',
      'praxis.lazy_loader',
      'praxis.metric_utils',
      'praxis.lingvo_lib',
      'praxis.nested_map',
      'praxis.pax_fiddle',
      'praxis.py_utils',
      'praxis.alias_names',
      'praxis.pytypes',
      'praxis.struct_text',
      'praxis.trees',
      'praxis.value_domains',
    ),
  ),
  Layer(
    'kernels',
    'C++ and CUDA custom calls, each with a jnp reference',
    ('praxis.kernels',),
  ),
  Layer(
    'base',
    'base classes of layers, models and inputs',
    (
      'praxis.base_input',
      'praxis.base_layer',
      'praxis.base_model',
      'praxis.flax_utils',
      'praxis.test_utils',
    ),
  ),
  Layer(
    'layers',
    'layers, optimizers, schedules',
    (
      'praxis.gshard_utils',
      'praxis.layers',
      'praxis.optimizer_prefix_vectorization',
      'praxis.optimizers',
      'praxis.schedules',
      'praxis.weight_matrices',
    ),
  ),
  Layer(
    'decoding',
    'sampling, greedy and beam search',
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
  Layer(
    'models',
    'transformer language models, encoder-decoders, classifiers',
    (
      'praxis.contrib',
      'praxis.layers.glam',
      'praxis.layers.grok',
      'praxis.layers.models',
      'praxis.layers.quantization.quantize',
      'praxis.layers.transformer_models',
    ),
  ),
  Layer(
    'checkpoints',
    'the train state, its checkpoints, files, buckets, barriers of processes',
    (
      'pax.checkpoints',
      'pax.coordination_service',
      'pax.files',
      'pax.host_memory',
      'pax.huggingface',
      'pax.train_states',
    ),
  ),
  Layer(
    'training',
    'tasks, learners, inputs, metrics',
    (
      'pax.base_inference_runner',
      'pax.base_metrics',
      'pax.ghostnorm',
      'pax.base_task',
      'pax.exit_codes',
      'pax.generation_runner',
      'pax.inputs',
      'pax.learners',
      'pax.garbage_collection',
      'pax.stop_signals',
      'pax.tasks_lib',
      'pax.xla_passthrough',
    ),
  ),
  Layer(
    'experiment_api',
    'base class and registry of experiments, searches over them',
    (
      'pax.automl',
      'pax.base_executor',
      'pax.base_experiment',
      'pax.constant_domains',
      'pax.experiment_registry',
      'pax.experiment_vars_summary',
      'pax.parameterized_experiment',
      'pax.tuning',
    ),
  ),
  Layer(
    'experiments',
    'experiments: classes of constants; they run nothing',
    (
      'pax.contrib',
      'pax.tasks',
    ),
  ),
  Layer(
    'steps',
    'train, eval, decode and inference steps: pure functions',
    ('pax.steps',),
  ),
  Layer(
    'storage',
    'sharding of states and batches, summaries',
    (
      'pax.io_utils',
      'pax.partitioning',
      'pax.summaries',
    ),
  ),
  Layer(
    'programs',
    'training loop, evaluation, decoding, inference',
    (
      'pax.executors',
      'pax.programs',
    ),
  ),
  Layer(
    'plotting',
    'loss curves as PNG and HTML',
    ('pax.plotting',),
  ),
  Layer(
    'runtime',
    'the command line, jobs, studies, tools, ahead-of-time checks',
    (
      'pax.aot',
      'pax.jobs',
      'pax.main',
      'pax.runner',
      'pax.studies',
      'pax.tools',
    ),
  ),
  Layer(
    'paxml',
    "paxml's module paths and signatures, re-exported",
    (
      'pax.paxml_api',
      'paxml',
    ),
  ),
)

_RUNTIME = ('pax.aot', 'pax.main', 'pax.programs', 'pax.runner', 'pax.steps')

# {package: packages that it never imports, in addition to the higher layers}.
# Experiments only declare; the runtime knows no experiment.
FORBIDDEN: dict[str, tuple[str, ...]] = {
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

# {external package: the only package of ours that imports it}.
ONLY_IN: dict[str, str] = {
  'lingvo': 'praxis.lingvo_lib',
  'seqio': 'pax.inputs.seqio',
  'tensorflow': 'pax.inputs.seqio',
}


def is_in(module: str, package: str) -> bool:
  """Returns whether `module` is `package` or inside it."""
  return module == package or module.startswith(package + '.')


@functools.cache
def level(module: str) -> int | None:
  """Returns the index in LAYERS of a module, or None if it is not ours."""
  matches = [
    (len(name), index)
    for index, layer in enumerate(LAYERS)
    for name in layer.modules
    if is_in(module, name)
  ]
  return max(matches)[1] if matches else None


def violation(importer: str, imported: str) -> str | None:
  """Returns why `importer` may not import `imported`, or None if it may."""
  low, high = level(importer), level(imported)
  if low is not None and high is not None and high > low:
    return (
      f'{importer} ({LAYERS[low].name}) imports {imported} of a higher layer '
      f'({LAYERS[high].name})'
    )
  for package, names in FORBIDDEN.items():
    if is_in(importer, package) and any(is_in(imported, n) for n in names):
      return f'{importer} must not import {imported} (tools/layers.py)'
  owner = ONLY_IN.get(imported.split('.')[0])
  if owner and importer.startswith(('praxis', 'pax')):
    if not is_in(importer, owner):
      return f'{importer} imports {imported}; only {owner} may'
  return None


def diagram() -> str:
  """Returns the layers as text, highest first."""
  margin = max(len(layer.name) for layer in LAYERS) + 3
  lines = []
  for layer in reversed(LAYERS):
    lines.append(f' {layer.name:{margin - 1}}{layer.description}')
    modules = '  '.join(name.replace('.', '/') for name in layer.modules)
    indent = ' ' * (margin + 2)
    lines += textwrap.wrap(
      modules, _WIDTH, initial_indent=indent, subsequent_indent=indent
    )
  return '\n'.join(lines) + '\n'


def documented_diagram() -> str:
  """Returns the diagram that docs/architecture.md shows."""
  block = _BLOCK.search(_DOC.read_text())
  if block is None:
    raise ValueError(f'{_DOC} must have the block of the diagram, has none')
  return block[0]


def main() -> None:
  text = diagram()
  _DOC.write_text(_BLOCK.sub(lambda _: text, _DOC.read_text(), count=1))


if __name__ == '__main__':
  main()
