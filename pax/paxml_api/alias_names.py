# SPDX-License-Identifier: Apache-2.0
"""Aliases of common names in the modules of paxml.

Users' code spells common names through the module that it imports, such as
`learners.JTensor` or `trainer_lib.RunningMode`. The import system of `paxml`
publishes these aliases in every module below it; modules of pax do not repeat
them.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pax.paxml_api import seqio_values
from praxis import alias_names

# Aliases in all modules, in addition to those of praxis, by their owner.
_NAMES_BY_OWNER = {
  'absl.flags': 'FLAGS',
  'jax.sharding': 'PartitionSpec',
  'paxml.base_experiment': 'BaseExperiment BaseExperimentT',
  'paxml.checkpoints': 'CheckpointType',
  'paxml.io_utils': 'EvaluationMode',
  'paxml.summary_utils': 'SummaryWriter',
  'paxml.train_states': 'TensorProvenance TrainState TrainStateProvenance',
  'paxml.trainer_lib': (
    'BaseStepFnStaticArgs RunningMode StepFnOutput TrainStateMetadata'
  ),
  'praxis.base_layer': 'NON_PAX_RNG_KEY NON_PAX_VAR_COLLECTION SummaryType',
  'praxis.optimizer_prefix_vectorization': 'NO_PREFIX_KEY',
  'praxis.pytypes': (
    'NestedJTensorOrPartitionSpec NestedShapeDtypeLike ScalarFloat '
    'WeightedScalar WeightedScalarsList'
  ),
}
# Modules that are attributes of all modules.
_MODULES = {
  'checkpoints': 'paxml.checkpoints',
  'metric_utils': 'paxml.metric_utils',
  'ocp': 'orbax.checkpoint',
  'profiling': 'paxml.profiling',
  'seqio_input': 'paxml.seqio_input',
  'summary_utils': 'paxml.summary_utils',
  'tf': 'tensorflow',
  'tf_data_service_lib': 'paxml.tf_data_service_lib',
  'tfds': 'tensorflow_datasets',
}
# Aliases in one module.
_NAMES_OF_MODULES = {
  'paxml.checkpoints': {
    'paxml.checkpoint_paths': (
      'CHECKPOINT_PREFIX get_step_from_checkpoint_asset is_checkpoint_asset '
      'latest_checkpoint latest_checkpoint_if_exists '
      'make_checkpoint_step_dir retrieve_latest_checkpoint_step '
      'retrieve_latest_checkpoint_step_if_exists'
    ),
    'paxml.checkpoint_types': 'retrieve_checkpoint_type',
  },
  'paxml.contrib.gpu.scripts_gpu.llama_utils': {
    'paxml.contrib.gpu.scripts_gpu.saxml_layers': 'LLaMARotaryEmbedding',
  },
  'paxml.contrib.gpu.scripts_gpu.tasks': {
    seqio_values.__name__: (
      'BOOLQ_OUTPUT_FEATURES GPT_OUTPUT_FEATURES_LM LAMBADA_OUTPUT_FEATURES '
      'TaskRegistry vocab vocab_path'
    ),
  },
  'paxml.decode_programs': {'paxml.base_metrics': 'BaseMetrics'},
  'paxml.executors': {'logging': 'INFO'},
  'paxml.seqio_input': {
    'praxis.py_utils': 'INDEX_WITHIN_SHARD_KEY NUM_SHARDS_KEY SHARD_INDEX_KEY',
    'seqio': 'MixtureRegistry',
  },
  'paxml.tasks.lm.params.c4': {
    'pax.inputs.seqio.c4_tasks': (
      'C4_EVAL_DATADIR C4_TRAIN_DATADIR GPT_SPM_PATH'
    ),
    seqio_values.__name__: (
      'C4_GPT_EVAL_FEATURES_LM C4_GPT_TRAIN_FEATURES_LM GPT_VOCABULARY '
      'PASS_THROUGH_VOCABULARY TaskRegistry'
    ),
  },
  'paxml.tasks_lib': {
    'paxml.base_inference_runner': 'BaseInferenceRunner',
    'paxml.trainer_lib': 'EarlyStoppingFn',
  },
  'paxml.train': {'paxml.checkpoints': 'Checkpointer PaxCheckpointHandler'},
}
# Aliases with a name of their own: the owner and the name there.
_RENAMED = {
  ('paxml.checkpoint_paths', 'PyTree'): ('typing', 'Any'),
  ('paxml.checkpoints', 'PyTree'): ('typing', 'Any'),
  ('paxml.summary_utils', 'CluMetrics'): ('praxis.pytypes', 'Metrics'),
  ('paxml.tasks_lib', 'RegexStr'): ('builtins', 'str'),
  ('paxml.trainer_lib', 'NestedShape'): ('praxis.pytypes', 'NestedMap'),
  ('paxml.trainer_lib', 'ParamsT'): ('praxis.pytypes', 'HParamsT'),
}

_OWNER_BY_NAME = {
  name: owner
  for owner, names in _NAMES_BY_OWNER.items()
  for name in names.split()
}
_ORIGINS = _RENAMED | {
  (module, name): (owner, name)
  for module, names_by_owner in _NAMES_OF_MODULES.items()
  for owner, names in names_by_owner.items()
  for name in names.split()
}


def _resolve(module: str, name: str) -> Any:
  """Returns the object that an alias in the module names.

  Raises:
    AttributeError: the module has no such alias, or the package of its owner
      is not installed.
  """
  owner = _OWNER_BY_NAME.get(name) or alias_names.alias_owner(name)
  owner, attribute = _ORIGINS.get((module, name), (owner, name))
  target = _MODULES.get(name, owner)
  if target in (None, module):
    raise AttributeError(f'module {module!r} has no attribute {name!r}')
  try:
    resolved = importlib.import_module(target)
  except ModuleNotFoundError as error:
    raise AttributeError(
      f'{module}.{name} is an alias in {target}, which cannot be imported: '
      f'{error}'
    ) from error
  return resolved if name in _MODULES else getattr(resolved, attribute)


class _Aliases:
  """The function `__getattr__` of a module that publishes aliases."""

  def __init__(self, own_getattr: Callable[[str], Any] | None):
    self._own_getattr = own_getattr
    # Paths of the module in paxml.
    self.paths: dict[str, None] = {}

  def __call__(self, name: str) -> Any:
    if self._own_getattr is not None:
      with contextlib.suppress(AttributeError):
        return self._own_getattr(name)
    *others, last = self.paths
    for path in others:
      with contextlib.suppress(AttributeError):
        return _resolve(path, name)
    return _resolve(last, name)


def publish_aliases(module: ModuleType, path: str) -> None:
  """Makes the aliases of a module of paxml attributes of the module.

  A module of pax with several paths in paxml publishes the aliases of each.

  Args:
    module: A module of paxml, or the module of pax behind its path.
    path: The path of the module, such as 'paxml.learners'.
  """
  aliases = vars(module).get('__getattr__')
  if not isinstance(aliases, _Aliases):
    aliases = _Aliases(aliases)
    vars(module)['__getattr__'] = aliases
  aliases.paths[path] = None
