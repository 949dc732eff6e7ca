# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Matrices in FP8 against their values by hand."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from pax.huggingface import (
  conversion,
  families,
  fp8_blocks,
  model_folder,
  safetensors,
)
from tests.pax.huggingface import loaded_models, reference_models

_FP8 = ml_dtypes.float8_e4m3fn


def _quantized(rng, shape, block):
  """Returns values and scales, not all of the same magnitude."""
  values = rng.normal(size=shape).astype(_FP8)
  blocks = [-(-size // step) for size, step in zip(shape, block, strict=True)]
  return values, (0.2 * 2.0 ** rng.integers(-3, 1, blocks)).astype(np.float32)


def _by_hand(values, scales, block):
  found = np.empty(values.shape, np.float32)
  for row, column in np.ndindex(values.shape):
    scale = scales[row // block[0], column // block[1]]
    found[row, column] = np.float32(values[row, column]) * scale
  return found.astype(ml_dtypes.bfloat16)


def _write(path, arrays):
  path.parent.mkdir(parents=True, exist_ok=True)
  header = safetensors.make_header(
    {name: (x.shape, x.dtype) for name, x in arrays.items()}
  )
  safetensors.write(path, header, arrays.values())
  return safetensors.read_entries(path)


@pytest.mark.parametrize('shape', [(6, 8), (7, 9), (2, 3)])
def test_blocks_at_the_ends_are_smaller(shape, tmp_path):
  values, scales = _quantized(np.random.default_rng(0), shape, (3, 4))
  arrays = {'w': values, 'w_scale_inv': scales, 'b': np.ones(2, np.float32)}
  entries = fp8_blocks.unpack(_write(tmp_path / 'file', arrays), [3, 4])
  assert list(entries) == ['w', 'b']
  entry = entries['w']
  assert entry.shape == shape and entry.dtype == ml_dtypes.bfloat16
  np.testing.assert_array_equal(
    entry.read().view(np.uint16),
    _by_hand(values, scales, (3, 4)).view(np.uint16),
  )


def test_a_deepseek_is_read_and_exported_as_bfloat16(tmp_path):
  block = (5, 7)
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  quantization = {'quant_method': 'fp8', 'weight_block_size': list(block)}
  config = {
    **reference_models.load()['deepseek_v3']['config'],
    'quantization_config': quantization,
  }
  arrays, want = {}, {}
  rng = np.random.default_rng(1)
  for layout in families.read_model(config).weights():
    name, shape = layout.tensor, layout.tensor_shape
    if name in want:
      continue
    if name.endswith('_proj.weight'):
      values, scales = _quantized(rng, shape, block)
      arrays |= {name: values, f'{name}_scale_inv': scales}
      want[name] = _by_hand(values, scales, block)
    else:
      arrays[name] = want[name] = reference_models.weight(name, shape).astype(
        ml_dtypes.bfloat16
      )
  assert len(arrays) > len(want) + 20
  _write(source / 'model.safetensors', arrays)
  (source / 'config.json').write_text(json.dumps(config))
  conversion.to_pax(source, job)
  conversion.to_huggingface(job, output)
  assert 'quantization_config' not in model_folder.read_config(output)
  found = safetensors.read_folder(output)
  assert set(found) == set(want)
  for name, entry in found.items():
    np.testing.assert_array_equal(
      entry.read().view(np.uint16), want[name].view(np.uint16), err_msg=name
    )
  # The folder itself is the same model as its export.
  read = lambda folder: loaded_models.read_variables(
    model_folder.ModelFolder.open(folder)
  )
  before, after = (read(folder)['params']['lm'] for folder in (source, output))
  experts = lambda tree: tree['transformer']['x_layers_1']['ff_layer']['wo_0']
  np.testing.assert_array_equal(experts(before), experts(after))


@pytest.mark.parametrize(
  'change, block, message',
  [
    ({}, [4], 'weight_block_size .* must be two positive numbers, got .4.'),
    ({'w': np.ones((6, 8), np.float32)}, [3, 4], 'must be a matrix of float8'),
    ({'w': np.ones(6, _FP8)}, [3, 4], 'must be a matrix of float8'),
    (
      {'w_scale_inv': np.ones((2, 3), np.float32)},
      [3, 4],
      r'inv \[2, 2\], got',
    ),
  ],
)
def test_damaged_pairs_are_errors(change, block, message, tmp_path):
  arrays = {
    'w': np.ones((6, 8), _FP8),
    'w_scale_inv': np.ones((2, 2), np.float32),
  }
  with pytest.raises(ValueError, match=message):
    fp8_blocks.unpack(_write(tmp_path / 'file', {**arrays, **change}), block)
