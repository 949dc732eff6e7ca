# SPDX-License-Identifier: Apache-2.0
"""Trains, evaluates and decodes with partitioners, as a user of paxml does.

Runs with the praxis and paxml on the Python path, on eight devices, and prints
its numbers as one line of JSON, the last line of the output.
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from typing import Any

os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from etils import epath

from praxis import (
  base_input,
  base_layer,
  base_model,
  optimizers,
  pax_fiddle,
  py_utils,
  schedules,
)
from praxis.layers import linears

# By name: these may be upstream's modules.
checkpoints, learners, partitioning, tasks_lib, trainer_lib = (
  importlib.import_module(f'paxml.{name}')
  for name in (
    'checkpoints',
    'learners',
    'partitioning',
    'tasks_lib',
    'trainer_lib',
  )
)
NestedMap = py_utils.NestedMap
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]

_AXES = ['replica', 'data', 'mdl']
_MESH = [1, 4, 2]


class Regression(base_model.BaseModel):
  """Squared error of a linear layer."""

  linear_tpl: LayerTpl = base_layer.template_field(linears.Linear)

  def setup(self) -> None:
    self.create_child('linear', self.linear_tpl)
    self.create_variable(
      'offset',
      base_layer.WeightHParams([3], init=base_layer.WeightInit.Constant(0.5)),
    )

  def compute_predictions(self, input_batch: Any) -> Any:
    return self.linear(input_batch.x) + self.theta.offset

  def compute_loss(self, predictions: Any, input_batch: Any) -> Any:
    error = jnp.square(predictions - input_batch.y).mean(-1)
    self.add_summary('mean', predictions.mean())
    rows = jnp.asarray(error.shape[0], jnp.float32)
    return NestedMap(loss=(error.mean(), rows)), NestedMap(error=error)

  def decode(self, input_batch: Any) -> Any:
    predictions = self.compute_predictions(input_batch)
    rows = jnp.asarray(predictions.shape[0], jnp.float32)
    metrics = NestedMap(mean=(predictions.mean(), rows))
    return metrics, NestedMap(predictions=predictions), NestedMap()


class Rows(base_input.BaseInput):
  """Random batches; an input that cannot be resumed."""

  def __post_init__(self) -> None:
    super().__post_init__()
    self._count = 0

  def get_next(self) -> NestedMap:
    self._count += 1
    rng = np.random.RandomState(self._count)
    return NestedMap(
      x=rng.normal(size=(self.batch_size, 4)).astype(np.float32),
      y=rng.normal(size=(self.batch_size, 3)).astype(np.float32),
    )


def _task() -> Any:
  linear = pax_fiddle.Config(linears.Linear, input_dims=4, output_dims=3)
  linear.weight_split_dims_mapping.wt = ['data', None]
  model = pax_fiddle.Config(Regression, name='model', linear_tpl=linear)
  model.set(ici_mesh_shape=_MESH, mesh_axis_names=_AXES)
  task = pax_fiddle.Config(tasks_lib.SingleTask, name='task', model=model)
  task.train.learner = pax_fiddle.Config(
    learners.Learner,
    name='learner',
    loss_name='loss',
    optimizer=pax_fiddle.Config(
      optimizers.Adam,
      learning_rate=0.1,
      lr_schedule=pax_fiddle.Config(schedules.Constant, value=1.0),
      ema_decay=0.9,
    ),
  )
  return base_layer.instantiate(task)


def _with_values(variables: Any) -> Any:
  """Returns arrays of the same shapes whose values depend on the shape only."""

  def value(x: Any) -> Any:
    values = np.sin(np.arange(x.size, dtype=np.float32)).reshape(x.shape)
    return jax.device_put(values, x.sharding)

  return jax.tree.map(value, variables)


def _shapes(tree: Any) -> list[str]:
  return [f'{x.dtype}{list(x.shape)}' for x in jax.tree.leaves(tree)]


def _specs(tree: Any) -> list[str]:
  specs = jax.tree.leaves(
    tree, is_leaf=lambda x: isinstance(x, jax.sharding.PartitionSpec)
  )
  return [str([axis for axis in spec if axis]) for spec in specs]


def _numbers(tree: Any) -> list[list[float]]:
  return [np.asarray(x).ravel().tolist() for x in jax.tree.leaves(tree)]


def train(batch_size: int) -> dict[str, Any]:
  """Two train steps, an evaluation and a decoding of one batch."""
  task = _task()
  partitioner = partitioning.create_partitioner(task, reshard_inputs=True)
  config = pax_fiddle.Config(Rows, name='train', batch_size=batch_size)
  rows = partitioner.preprocess_input_config(config).Instantiate()
  partitioner.setup(task, jax.random.PRNGKey(0), None, rows)
  metadata = partitioner.get_train_state_metadata()
  key, state, _ = partitioner.initialize_prng_key_and_train_state(
    jax.random.PRNGKey(1), None, checkpoints.CheckpointType.GDA
  )
  result = {
    'shapes': _shapes(metadata.unpadded_global_shapes),
    'specs': _specs(metadata.partition_specs),
    'state': _shapes(state),
  }
  state = state.replace(mdl_vars=_with_values(state.mdl_vars))
  key = partitioner.preprocess_prng_key(key)
  args = trainer_lib.BaseStepFnStaticArgs(unpadded_global_batch_size=batch_size)

  def run(step_fn: Any, state: Any, is_eval: bool) -> tuple[Any, Any]:
    batch = rows.get_next_padded()
    shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch
    )
    step, specs = partitioner.partition(step_fn, shapes, is_eval=is_eval)
    batch = partitioner.preprocess_inputs(rows, batch, specs)
    return step(state, key, batch, args)

  losses = []
  for _ in range(2):
    state, output = run(trainer_lib.train_step_single_learner, state, False)
    losses.append(float(output.loss))
  eval_state = state.to_eval_state()
  _, evaluated = run(trainer_lib.eval_step_single_learner, eval_state, True)
  decode_step, is_eval = partitioning.get_step_fn(
    trainer_lib.RunningMode.DECODE
  )
  _, decoded = run(decode_step, eval_state, is_eval)
  return result | {
    'losses': losses,
    'step': int(state.step),
    'variables': _numbers(state.mdl_vars),
    'eval': [float(evaluated.loss), sorted(evaluated.summary_tensors)],
    'decoded': _numbers(decoded.weighted_scalars),
    'checkpoint': _checkpoint(state, metadata, partitioner.global_mesh),
  }


def _checkpoint(state: Any, metadata: Any, mesh: Any) -> list[Any]:
  """Saves and restores a state; returns names, step, and variables."""
  folder = epath.Path(tempfile.mkdtemp())
  kind = checkpoints.CheckpointType.GDA
  checkpoints.save_checkpoint(
    state, folder, checkpoint_type=kind
  ).wait_until_finished()
  restored = checkpoints.restore_checkpoint(
    metadata.padded_global_shapes,
    folder,
    global_mesh=mesh,
    checkpoint_type=kind,
    state_specs=metadata.partition_specs,
  )
  return [
    sorted(path.name for path in folder.iterdir()),
    checkpoints.retrieve_latest_checkpoint_step(folder),
    _numbers(restored.mdl_vars),
  ]


def initial_states() -> dict[str, Any]:
  """Shapes and shardings of states of the functions of trainer_lib."""
  task = _task()
  shapes = NestedMap(
    x=jax.ShapeDtypeStruct((8, 4), jnp.float32),
    y=jax.ShapeDtypeStruct((8, 3), jnp.float32),
  )
  metadata = trainer_lib.create_train_state_metadata(task, shapes)
  devices = np.array(jax.devices()).reshape(_MESH)
  mesh = jax.sharding.Mesh(devices, _AXES)
  partitioned, _ = trainer_lib.initialize_partitioned_model_states(
    task,
    jax.random.PRNGKey(0),
    shapes,
    metadata.partition_specs,
    global_mesh=mesh,
  )
  state, _ = trainer_lib.initialize_model_state(
    task, jax.random.PRNGKey(0), shapes, discard_opt_states=True
  )
  replicated = trainer_lib.replicate_model_state(state)
  learner = task.learners[0]
  hparams = metadata.var_weight_hparams
  masks = [
    tasks_lib.get_excluded_var_mask_for_grad(hparams, learner),
    tasks_lib.get_excluded_var_mask_for_opt(hparams, learner),
  ]
  return {
    'partitioned': _shapes(partitioned),
    'shardings': _specs(
      jax.tree.map(lambda x: x.sharding.spec, partitioned.mdl_vars)
    ),
    'state': _shapes(state),
    'replicated': _shapes(replicated),
    'masks': [jax.tree.leaves(mask) for mask in masks],
  }


if __name__ == '__main__':
  # A batch of 8 rows for 8 devices, and batches that they do not divide.
  flags.FLAGS(['partitioner_program'])
  results = {f'train {n}': train(n) for n in (8, 3, 12)}
  print(json.dumps(results | {'initial states': initial_states()}))
