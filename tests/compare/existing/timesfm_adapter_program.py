# SPDX-License-Identifier: Apache-2.0
"""Trains the LoRA and DoRA adapters of TimesFM, as its `finetune.py` does.

    timesfm_adapter_program.py train DATA DIR     saves adapters of two steps
    timesfm_adapter_program.py forecast DATA DIR  forecasts with them

DATA is `timesfm_data`. Each prints its numbers as one line of JSON, the last
line of the output. It imports `timesfm_program` from the folder of the script.
"""

from __future__ import annotations

import importlib
import json
import pathlib
import sys
from typing import Any

import jax
import numpy as np
import timesfm
import timesfm_program
from timesfm import patched_decoder

from praxis import optimizers, pax_fiddle, py_utils, schedules

# By name: these may be upstream's modules.
checkpoint_types, checkpoints, learners, tasks_lib, trainer_lib = (
  importlib.import_module(f'paxml.{name}')
  for name in (
    'checkpoint_types',
    'checkpoints',
    'learners',
    'tasks_lib',
    'trainer_lib',
  )
)
adapter_utils = importlib.import_module('adapter.utils')

_RANK = 2
# (modules with adapters, whether they are DoRA) by the name of the folder.
_CASES = {
  'all': ('all', True),
  'mlp': ('mlp', False),
  'attention': ('attention', False),
}


def _pretrained(data: pathlib.Path) -> timesfm.TimesFm:
  return timesfm_program.load_model(data, 'flax')


@pax_fiddle.auto_config
def _learner() -> Any:
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
        initial_value=1e-1,
        final_value=1e-4,
        total_steps=40000,
      ),
      ema_decay=0.9999,
    ),
    bprop_variable_inclusion=[r'^.*lora.*$', r'^.*dora.*$'],
  )


def _train(data: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
  modules, use_dora = _CASES[folder.name]
  model = _pretrained(data)
  config = pax_fiddle.Config(
    patched_decoder.PatchedDecoderFinetuneModel,
    name='patched_decoder_finetune',
    core_layer_tpl=model.model_p,
  )
  adapter_utils.load_adapter_layer(
    mdl_vars=model._train_state.mdl_vars,
    model=config.core_layer_tpl,
    lora_rank=_RANK,
    lora_target_modules=modules,
    use_dora=use_dora,
  )
  task = tasks_lib.SingleTask(
    name='ts-learn',
    model=config,
    train=tasks_lib.SingleTask.Train(learner=_learner()),
  )
  task.model.ici_mesh_shape = [1, 1, 1]
  task.model.mesh_axis_names = ['replica', 'data', 'mdl']
  batch = timesfm_program.batch()
  states, _ = trainer_lib.initialize_model_state(
    task,
    jax.random.PRNGKey(0),
    batch,
    checkpoint_type=checkpoint_types.CheckpointType.GDA,
  )
  before = model._train_state.mdl_vars['params']
  states.mdl_vars['params']['core_layer'] = before
  replicated, losses, eval_loss = timesfm_program.train(task, states, batch)
  trained = py_utils.maybe_unreplicate_for_fully_replicated(replicated)
  after = trained.mdl_vars['params']['core_layer']
  changed = jax.tree.map(lambda a, b: bool(np.any(a != b)), after, before)
  trained.mdl_vars['params'] = adapter_utils.get_adapter_params(
    params=trained.mdl_vars,
    lora_target_modules=modules,
    num_layers=config.core_layer_tpl.stacked_transformer_params_tpl.num_layers,
    use_dora=use_dora,
  )
  checkpoints.save_checkpoint(
    trained, str(folder), overwrite=True
  ).wait_until_finished()
  return {'losses': losses, 'eval_loss': eval_loss, 'changed': changed}


def _forecast(data: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
  modules, use_dora = _CASES[folder.name]
  model = _pretrained(data)
  adapter_utils.load_adapter_checkpoint(
    model, str(folder), _RANK, modules, use_dora
  )
  return timesfm_program.forecasts(model)


def main() -> None:
  command, data, folder = sys.argv[1:]
  run = {'train': _train, 'forecast': _forecast}[command]
  results = {
    case: run(pathlib.Path(data), pathlib.Path(folder, case)) for case in _CASES
  }
  print(json.dumps(results))


if __name__ == '__main__':
  main()
