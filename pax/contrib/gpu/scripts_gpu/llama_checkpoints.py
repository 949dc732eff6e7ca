# SPDX-License-Identifier: Apache-2.0
"""Jobs that start from LLaMA's weights as Hugging Face publishes them."""

from __future__ import annotations

import json
import pathlib
import struct
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pax.contrib.gpu.scripts_gpu import llama_weights
from pax.train_states import TrainState
from praxis import base_hyperparams, pax_fiddle, py_utils

_CONSTANTS = (
  'VOCAB_SIZE',
  'NUM_LAYERS',
  'MODEL_DIMS',
  'HIDDEN_DIMS',
  'NUM_HEADS',
  'NUM_KV_HEADS',
  'DIMS_PER_HEAD',
  'USE_MQA',
  'USE_REPEATED_LAYER',
)
_DTYPES = {'F32': np.float32, 'F16': np.float16, 'BF16': jnp.bfloat16}


class HuggingFaceHandler(base_hyperparams.FiddleBaseParameterizable):
  """Reads a folder of safetensors files as the state of a LLaMA at step 0."""

  # The constants of the experiment that tell sizes.
  constants: Mapping[str, Any] | None = None

  @classmethod
  def of(cls, llama: Any) -> pax_fiddle.Config:
    """Returns the handler of an experiment; see llama_utils.BaseLLaMA."""
    constants = {name: getattr(llama, name) for name in _CONSTANTS}
    return pax_fiddle.Config(cls, constants=constants)

  def restore(self, path: str, item: TrainState) -> TrainState:
    """Returns the state that `item` has the shapes and shardings of.

    Its optimizer states are zero.

    Raises:
      ValueError: the weights are not those of such a model.
    """
    weights = dict(read_safetensors(path))
    llama = types.SimpleNamespace(**self.constants)
    variables = llama_weights.from_huggingface(weights, llama)
    by_path = dict(py_utils.tree_paths(variables))

    def variable(path: str, like: jax.ShapeDtypeStruct) -> jax.Array:
      if path not in by_path:
        raise ValueError(
          f'the weights must have {path}, got none; where LoRA adds it, load '
          'them without, and start from the checkpoint of that job by '
          'CHECKPOINT_RESTORE_PATH'
        )
      return _array(by_path[path], like)

    zeros = jax.tree.map(lambda x: _array(np.zeros(x.shape, x.dtype), x), item)
    return zeros.replace(
      mdl_vars=py_utils.map_with_path(variable, item.mdl_vars)
    )


def read_safetensors(folder: str) -> Iterator[tuple[str, np.ndarray]]:
  """Yields the arrays of all files of a folder by name; none is read yet.

  Raises:
    ValueError: there is no such file, or an array has a strange type.

  References: https://github.com/huggingface/safetensors#format
  """
  files = sorted(pathlib.Path(folder).glob('*.safetensors'))
  if not files:
    raise ValueError(f'the folder {folder} must have *.safetensors, got none')
  for file in files:
    with file.open('rb') as f:
      (size,) = struct.unpack('<Q', f.read(8))
      header = json.loads(f.read(size))
    header.pop('__metadata__', None)
    for name, entry in header.items():
      if entry['dtype'] not in _DTYPES:
        raise ValueError(
          f'{name} of {file} must be one of {sorted(_DTYPES)}, got '
          f'{entry["dtype"]}'
        )
      yield (
        name,
        np.memmap(
          file,
          _DTYPES[entry['dtype']],
          mode='r',
          offset=8 + size + entry['data_offsets'][0],
          shape=tuple(entry['shape']),
        ),
      )


def _array(value: np.ndarray, like: jax.ShapeDtypeStruct) -> jax.Array:
  """Returns the value with the dtype and the sharding of another array."""
  if value.shape != like.shape:
    raise ValueError(
      f'a variable must have shape {list(like.shape)}, got {list(value.shape)}'
    )
  return jax.make_array_from_callback(
    like.shape, like.sharding, lambda at: np.asarray(value[at], like.dtype)
  )
