# SPDX-License-Identifier: Apache-2.0
"""Restores training states from LLaMA checkpoints of Hugging Face."""

from __future__ import annotations

import inspect
import pathlib
import types
from collections.abc import Mapping

import jax
import numpy as np

from pax.contrib.gpu.scripts_gpu import llama_weights
from pax.huggingface import safetensors
from pax.train_states import TrainState
from praxis import base_hyperparams, pax_fiddle, py_utils


class HuggingFaceHandler(base_hyperparams.FiddleBaseParameterizable):
  """Reads a folder of safetensors files as the state of a LLaMA at step 0."""

  # The sizes of the model, by the names of LlamaConstants.
  constants: Mapping[str, int] | None = None

  @classmethod
  def from_experiment(
    cls, llama: llama_weights.LlamaConstants
  ) -> pax_fiddle.Config[HuggingFaceHandler]:
    """Returns the config of a handler for the model of an experiment."""
    names = inspect.get_annotations(llama_weights.LlamaConstants)
    constants = {name: getattr(llama, name) for name in names}
    return pax_fiddle.Config(cls, constants=constants)

  def restore(self, path: str, item: TrainState) -> TrainState:
    """Returns a state with the weights and with zeros as optimizer state.

    Args:
      path: The folder of the safetensors files.
      item: A state with the shapes, dtypes and shardings of the result.

    Raises:
      ValueError: The weights do not have the names and shapes of the model, or
        `constants` is not set.
    """
    if self.constants is None:
      raise ValueError(
        'constants of HuggingFaceHandler must be set, got None; from_experiment'
        ' makes its config with them'
      )
    entries = safetensors.read_folder(pathlib.Path(path))
    weights = {name: entry.memory_map() for name, entry in entries.items()}
    llama = types.SimpleNamespace(**self.constants)
    variables = llama_weights.from_huggingface(weights, llama)
    by_path = dict(py_utils.tree_paths(variables))

    def restore_variable(path: str, target: jax.ShapeDtypeStruct) -> jax.Array:
      if path not in by_path:
        raise ValueError(
          f'the weights must have {path}, got none; if LoRA adds it, train '
          'without USE_LORA first, and then set CHECKPOINT_RESTORE_PATH to the '
          'checkpoint of that job'
        )
      return _to_jax_array(by_path[path], target)

    zeros = jax.tree.map(
      lambda x: _to_jax_array(np.zeros(x.shape, x.dtype), x), item
    )
    return zeros.replace(
      mdl_vars=py_utils.map_with_path(restore_variable, item.mdl_vars)
    )


def _to_jax_array(value: np.ndarray, target: jax.ShapeDtypeStruct) -> jax.Array:
  """Returns the value with the dtype and the sharding of `target`."""
  if value.shape != target.shape:
    raise ValueError(
      f'a variable must have shape {list(target.shape)}, got '
      f'{list(value.shape)}'
    )
  return jax.make_array_from_callback(
    target.shape,
    target.sharding,
    lambda index: np.asarray(value[index], target.dtype),
  )
