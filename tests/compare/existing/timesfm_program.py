# SPDX-License-Identifier: Apache-2.0
"""Runs TimesFM 1.3, with the praxis and paxml that are on the Python path.

    timesfm_program.py write DIR     writes checkpoints of a small model
    timesfm_program.py forecast DIR  forecasts with them
    timesfm_program.py finetune DIR  trains two steps as the notebook does

Each prints its numbers as one line of JSON, the last line of the output.
"""

from __future__ import annotations

import importlib
import json
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import seeded_arrays
import timesfm
from timesfm import patched_decoder

from praxis import optimizers, pax_fiddle, py_utils, schedules

# By name: these may be upstream's modules.
(
  checkpoint_types,
  checkpoints,
  learners,
  tasks_lib,
  train_states,
  trainer_lib,
) = (
  importlib.import_module(f'paxml.{name}')
  for name in (
    'checkpoint_types',
    'checkpoints',
    'learners',
    'tasks_lib',
    'train_states',
    'trainer_lib',
  )
)

STEP = 7
_HPARAMS = timesfm.TimesFmHparams(
  context_len=16,
  horizon_len=12,
  input_patch_len=4,
  output_patch_len=8,
  num_layers=2,
  num_heads=2,
  model_dims=8,
  per_core_batch_size=2,
  quantiles=(0.1, 0.5, 0.9),
)
# Name of the folder of each type of checkpoint.
_TYPES = {
  'flax': checkpoints.CheckpointType.FLAX,
  'gda': checkpoints.CheckpointType.GDA,
}


def time_series(count: int, length: int) -> list[np.ndarray]:
  """Returns series whose values are a function of their indices."""
  steps = np.arange(length, dtype=np.float32)
  return [
    np.sin(0.3 * steps * (i + 1)) * (i + 1) + 0.05 * i * steps
    for i in range(count)
  ]


def batch() -> py_utils.NestedMap:
  series = np.stack(time_series(4, 24))
  return py_utils.NestedMap(input_ts=series[:, :16], actual_ts=series[:, 16:])


class _Untrained(timesfm.TimesFm):
  """Builds the model without a checkpoint, with values by a formula."""

  def load_from_checkpoint(self, checkpoint: timesfm.TimesFmCheckpoint) -> None:
    restore = checkpoints.restore_checkpoint
    checkpoints.restore_checkpoint = lambda shapes, **kwargs: shapes.replace(
      step=jnp.asarray(STEP, jnp.int32),
      mdl_vars=seeded_arrays.like(shapes.mdl_vars),
    )
    try:
      super().load_from_checkpoint(checkpoint)
    finally:
      checkpoints.restore_checkpoint = restore


def load_model(folder: pathlib.Path, kind: str) -> timesfm.TimesFm:
  checkpoint = timesfm.TimesFmCheckpoint(
    path=str(folder / kind), type=_TYPES[kind], step=STEP
  )
  return timesfm.TimesFm(_HPARAMS, checkpoint)


def write(folder: pathlib.Path) -> dict[str, Any]:
  """Writes one checkpoint of every type and returns the model's forecasts."""
  model = _Untrained(_HPARAMS, timesfm.TimesFmCheckpoint(path=str(folder)))
  state = train_states.TrainState(
    step=jnp.asarray(STEP, jnp.int32),
    mdl_vars=model._train_state.mdl_vars,
    opt_states=[],
  )
  for kind, checkpoint_type in _TYPES.items():
    checkpoints.save_checkpoint(
      state, str(folder / kind), checkpoint_type=checkpoint_type
    ).wait_until_finished()
  return {'written': forecasts(model)}


def forecasts(model: timesfm.TimesFm) -> dict[str, Any]:
  points, full = model.forecast(time_series(3, 13), freq=[0, 1, 2])
  return {
    'points': np.asarray(points).tolist(),
    'quantiles': np.asarray(full).tolist(),
  }


def forecast(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the forecasts with every checkpoint in the folder."""
  kinds = [kind for kind in _TYPES if (folder / kind).exists()]
  return {kind: forecasts(load_model(folder, kind)) for kind in kinds}


@pax_fiddle.auto_config
def learner(initial_value: float, **trained: Any) -> Any:
  return pax_fiddle.Config(
    learners.Learner,
    name='learner',
    loss_name='avg_qloss',
    optimizer=optimizers.Adam(
      epsilon=1e-7,
      clip_threshold=1e2,
      learning_rate=1e-2,
      lr_schedule=pax_fiddle.Config(
        schedules.Cosine,
        initial_value=initial_value,
        final_value=1e-4,
        total_steps=40000,
      ),
      ema_decay=0.9999,
    ),
    **trained,
  )


def train(
  task: Any, states: Any, inputs: Any
) -> tuple[Any, list[float], float]:
  """Returns the replicated states after two steps, and the losses."""

  def train_step(states, key, inputs):
    return trainer_lib.train_step_single_learner(task, states, key, inputs)

  def eval_step(states, key, inputs):
    states = states.to_eval_state()
    return trainer_lib.eval_step_single_learner(task, states, key, inputs)

  keys = jax.random.split(jax.random.PRNGKey(1), 1)
  sharded = jax.tree.map(lambda x: x[np.newaxis], inputs)
  run_train_step = jax.pmap(train_step, axis_name='batch')
  run_eval_step = jax.pmap(eval_step, axis_name='batch')
  replicated = trainer_lib.replicate_model_state(states)
  losses = []
  for _ in range(2):
    replicated, outputs = run_train_step(replicated, keys, sharded)
    losses.append(float(outputs.loss[0]))
  _, outputs = run_eval_step(replicated, keys, sharded)
  return replicated, losses, float(outputs.loss[0])


def trained_model(model: timesfm.TimesFm) -> Any:
  return pax_fiddle.Config(
    patched_decoder.PatchedDecoderFinetuneModel,
    name='patched_decoder_finetune',
    core_layer_tpl=model.model_p,
  )


def initialize(
  model: timesfm.TimesFm, config: Any, learner_config: Any, inputs: Any
) -> tuple[Any, Any]:
  """Returns a task, and its states with the variables of the model."""
  task = tasks_lib.SingleTask(
    name='ts-learn',
    model=config,
    train=tasks_lib.SingleTask.Train(learner=learner_config),
  )
  task.model.ici_mesh_shape = [1, 1, 1]
  task.model.mesh_axis_names = ['replica', 'data', 'mdl']
  states, _ = trainer_lib.initialize_model_state(
    task,
    jax.random.PRNGKey(0),
    inputs,
    checkpoint_type=checkpoint_types.CheckpointType.GDA,
  )
  pretrained = model._train_state.mdl_vars['params']
  states.mdl_vars['params']['core_layer'] = pretrained
  return task, states


def finetune(folder: pathlib.Path) -> dict[str, Any]:
  """Returns losses of two steps from the Flax checkpoint, and of evaluation."""
  model = load_model(folder, 'flax')
  inputs = batch()
  task, states = initialize(
    model,
    trained_model(model),
    learner(1e-3, bprop_variable_exclusion=['.*/stacked_transformer_layer/.*']),
    inputs,
  )
  pretrained = model._train_state.mdl_vars['params']
  replicated, losses, eval_loss = train(task, states, inputs)
  trained = py_utils.maybe_unreplicate_for_fully_replicated(replicated)
  finetuned = folder / 'finetuned'
  manager = checkpoints.save_checkpoint(trained, str(finetuned), overwrite=True)
  manager.wait_until_finished()
  restored = checkpoints.restore_checkpoint(states, str(finetuned))
  params = restored.mdl_vars['params']['core_layer']
  changed = jax.tree.map(
    lambda a, b: bool(np.any(np.asarray(a) != np.asarray(b))),
    params,
    pretrained,
  )
  model._train_state.mdl_vars['params'] = params
  model.jit_decode()
  return {
    'step': int(restored.step),
    'losses': losses,
    'eval_loss': eval_loss,
    'changed': {
      name: any(jax.tree.leaves(leaves)) for name, leaves in changed.items()
    },
    'forecast': forecasts(model),
  }


def main() -> None:
  command, folder = sys.argv[1:]
  run = {'write': write, 'forecast': forecast, 'finetune': finetune}[command]
  print(json.dumps(run(pathlib.Path(folder))))


if __name__ == '__main__':
  main()
