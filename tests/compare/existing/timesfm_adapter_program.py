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

from praxis import py_utils

# By name: it may be upstream's module.
checkpoints = importlib.import_module('paxml.checkpoints')
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


def _train(data: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
  modules, use_dora = _CASES[folder.name]
  model = _pretrained(data)
  config = timesfm_program.trained_model(model)
  adapter_utils.load_adapter_layer(
    mdl_vars=model._train_state.mdl_vars,
    model=config.core_layer_tpl,
    lora_rank=_RANK,
    lora_target_modules=modules,
    use_dora=use_dora,
  )
  inputs = timesfm_program.batch()
  task, states = timesfm_program.initialize(
    model,
    config,
    timesfm_program.learner(
      1e-1, bprop_variable_inclusion=[r'^.*lora.*$', r'^.*dora.*$']
    ),
    inputs,
  )
  before = model._train_state.mdl_vars['params']
  replicated, losses, eval_loss = timesfm_program.train(task, states, inputs)
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
