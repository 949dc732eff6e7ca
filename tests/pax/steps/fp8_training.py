# SPDX-License-Identifier: Apache-2.0
"""A language model that trains for some steps in fp8."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pax import partitioning
from pax.tasks.lm import model_params
from praxis import optimizers, pax_fiddle, schedules
from praxis.pytypes import NestedMap

Config = pax_fiddle.Config

_KEY = jax.random.key(1)
_ROWS, _LENGTH, _VOCAB = 8, 4, 32


class Training(NamedTuple):
  """The states before and after each step, on the host, and the losses."""

  states: list[Any]
  losses: list[float]


class _Sizes:
  NUM_LAYERS = 2
  MODEL_DIMS = 16
  DIMS_PER_HEAD = 8
  HIDDEN_DIMS = 32
  VOCAB_SIZE = _VOCAB
  FPROP_DTYPE = jnp.float32
  PACKED_INPUT = False
  USE_REPEATED_LAYER = True
  ICI_MESH_SHAPE = (1, 1, 1)

  def datasets(self):
    return []


class _Lm(_Sizes, model_params.TransformerLmSpmdAdafactor):
  """Layers repeated by a scan."""


class _PipelinedLm(_Sizes, model_params.TransformerLmSpmdPipelineAdafactor):
  """Layers as pipeline stages."""

  NUM_STAGES = 2
  NUM_MICROBATCHES = 2
  USE_REPEATED_LAYER = False


def train(
  scaling: str | None,
  *,
  num_steps: int = 3,
  num_devices: int = 1,
  pipelined: bool = False,
  optimizer: Config | None = None,
  frozen: str = '',
  gradient: Config | None = None,
  **constants: Any,
) -> Training:
  """Trains from the same initial weights on the same batches.

  Args:
    scaling: fp8_scaling of the model.
    num_steps: number of steps.
    num_devices: number of devices of the mesh.
    pipelined: whether the two layers are pipeline stages.
    optimizer: its Config; None is Adam.
    frozen: matches the paths of variables that are not learned.
    gradient: Config of the learner's gradient function.
    **constants: of the experiment, e.g. ICI_MESH_SHAPE.
  """
  base = _PipelinedLm if pipelined else _Lm
  task_p = type('Case', (base,), constants)().task()
  task_p.model.lm_tpl.fp8_scaling = scaling
  task_p.train.learner.optimizer = optimizer or adam()
  task_p.train.learner.bprop_variable_exclusion = frozen
  task_p.train.learner.stochastic_gradient = gradient
  partitioner = partitioning.partition_task(
    task_p,
    jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), _batch(0)),
    devices=jax.devices()[:num_devices],
  )
  step = partitioner.train_step().lower(_KEY)
  step = step.compile({'xla_backend_optimization_level': 0})
  replicated = jax.sharding.NamedSharding(
    partitioner.mesh, jax.sharding.PartitionSpec()
  )
  key = jax.device_put(_KEY, replicated)
  state = partitioner.initialize(jax.random.key(0))
  states, losses = [jax.device_get(state)], []
  for i in range(num_steps):
    state, output = step(state, partitioner.put_batch(_batch(i)), key)
    states.append(jax.device_get(state))
    losses.append(float(output.loss))
  return Training(states, losses)


def adam(**fields: Any) -> Config[optimizers.Adam]:
  """Returns the Config of Adam with a constant learning rate."""
  return Config(
    optimizers.Adam,
    learning_rate=0.01,
    lr_schedule=Config(schedules.Constant),
    **fields,
  )


def einsum_variables(mdl_vars: Any) -> dict[str, dict[str, np.ndarray]]:
  """Returns the variables of each fp8 einsum by the path of its layer."""
  einsums = {}
  for path, value in jax.tree_util.tree_leaves_with_path(mdl_vars):
    *layer, name = jax.tree_util.keystr(path, simple=True, separator='/').split(
      '/'
    )
    if layer[-1] == 'einsum':
      einsums.setdefault('/'.join(layer), {})[name] = value
  return einsums


def _batch(seed: int) -> NestedMap:
  shape = (_ROWS, _LENGTH)
  ids = np.random.default_rng(seed).integers(0, _VOCAB, (_ROWS, _LENGTH + 1))
  ids = ids.astype(np.int32)
  return NestedMap(
    ids=ids[:, :-1],
    labels=ids[:, 1:],
    weights=np.ones(shape, np.float32),
    paddings=np.zeros(shape, np.float32),
  )
