# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Import of tensors in MXFP4."""

from __future__ import annotations

import itertools
import json

import ml_dtypes
import numpy as np
import pytest

from pax.huggingface import (
  conversion,
  model_folder,
  mxfp4,
  safetensors,
  stacked_variables,
)
from tests.pax.huggingface import reference_models

# Sign, two bits of the exponent, one of the mantissa.
_E2M1 = {
  0b0000: 0.0,
  0b0001: 0.5,
  0b0010: 1.0,
  0b0011: 1.5,
  0b0100: 2.0,
  0b0101: 3.0,
  0b0110: 4.0,
  0b0111: 6.0,
}
_E2M1 |= {code | 0b1000: -value for code, value in _E2M1.items()}


def _by_hand(blocks, scales):
  """Returns the tensor [E, I, O], one value after the other."""
  experts, outputs, num_blocks, num_bytes = blocks.shape
  values = np.zeros((experts, num_blocks * 32, outputs))
  for e, o, b, i in np.ndindex(blocks.shape):
    byte, factor = int(blocks[e, o, b, i]), 2.0 ** (int(scales[e, o, b]) - 127)
    first = 32 * b + 2 * i
    values[e, first, o] = _E2M1[byte & 15] * factor
    values[e, first + 1, o] = _E2M1[byte >> 4] * factor
  assert num_bytes == 16
  return values


def _write(file, arrays):
  header = safetensors.make_header(
    {name: (x.shape, x.dtype) for name, x in arrays.items()}
  )
  safetensors.write(file, header, arrays.values())
  return safetensors.read_entries(file)


def test_every_byte_and_scale(tmp_path):
  rng = np.random.default_rng(0)
  blocks = rng.permutation(np.arange(1024) % 256).astype(np.uint8)
  scales = rng.permutation(np.arange(64) * 4).astype(np.uint8)
  blocks, scales = blocks.reshape(2, 8, 4, 16), scales.reshape(2, 8, 4)
  entries = _write(
    tmp_path / 'file', {'x_blocks': blocks, 'x_scales': scales, 'y': scales}
  )
  unpacked = mxfp4.unpack(entries)
  assert list(unpacked) == ['x', 'y'] and unpacked['y'] == entries['y']
  entry = unpacked['x']
  assert entry.shape == (2, 128, 8) and entry.dtype == ml_dtypes.bfloat16
  got, want = np.asarray(entry.read()), _by_hand(blocks, scales)
  assert got.dtype == entry.dtype
  np.testing.assert_array_equal(got.astype(np.float64), want)
  parts = [slice(None), slice(1, 2), slice(0, 2)]
  for index in itertools.product(parts, [slice(None), slice(31, 70)], parts):
    part = np.asarray(entry.memory_map()[index])
    np.testing.assert_array_equal(part.astype(np.float64), want[index])


def test_devices_read_their_part_of_each_variable(tmp_path, monkeypatch):
  reference_models.write_mxfp4(tmp_path / 'model')
  folder = model_folder.ModelFolder.open(tmp_path / 'model')
  sizes = []
  dequantize = mxfp4._dequantize
  monkeypatch.setattr(
    mxfp4,
    '_dequantize',
    lambda blocks, scales: (
      sizes.append(blocks.size) or dequantize(blocks, scales)
    ),
  )
  in_pairs = stacked_variables.Repetition(num_prefix_layers=0, block_size=2)
  for repetition, variable in itertools.product(
    (None, in_pairs), ('wi_0', 'wi_gate_0', 'wo_0')
  ):
    (found,) = [
      x
      for x in stacked_variables.of_layouts(folder.layouts, repetition)
      if x.path.endswith(f'x_layers_0/ff_layer/{variable}')
    ]
    read = lambda name: folder.entries[name].memory_map()
    whole = found.from_tensors(read)
    index = (slice(0, 1),) * (repetition is not None)
    index += (slice(2, 4), slice(None), slice(0, 32))
    sizes.clear()
    part = found.from_tensors(read, index)
    np.testing.assert_array_equal(part, whole[index])
    # Two values per byte.
    assert sum(sizes) == part.size // 2


def test_an_export_is_not_quantized(tmp_path):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  arrays = reference_models.write_mxfp4(source)
  conversion.to_pax(source, job)
  conversion.to_huggingface(job, output)
  config = model_folder.read_config(source)
  assert config.pop('quantization_config')
  assert model_folder.read_config(output) == config
  entries = safetensors.read_folder(output)
  names = {name.removesuffix('_blocks') for name in arrays}
  assert set(entries) == {x for x in names if not x.endswith('_scales')}
  for name, entry in entries.items():
    want = arrays.get(name)
    if want is None:
      want = _by_hand(arrays[f'{name}_blocks'], arrays[f'{name}_scales'])
    got = entry.read()
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(
      got.astype(np.float64), want.astype(np.float64), err_msg=name
    )
  conversion.to_huggingface(job, tmp_path / 'single', dtype='float32')
  config = json.loads((tmp_path / 'single/config.json').read_text())
  assert config['dtype'] == 'float32' and 'quantization_config' not in config


@pytest.mark.parametrize(
  'change',
  [
    {'x_scales': None},
    {'x_scales': np.zeros((2, 3, 2), np.uint8)},
    {'x_scales': np.zeros((2, 3, 1), np.float32)},
    {'x_blocks': np.zeros((2, 3, 1, 8), np.uint8)},
  ],
)
def test_damaged_pairs_are_errors(change, tmp_path):
  arrays = {
    'x_blocks': np.zeros((2, 3, 1, 16), np.uint8),
    'x_scales': np.zeros((2, 3, 1), np.uint8),
  }
  arrays = {k: x for k, x in {**arrays, **change}.items() if x is not None}
  with pytest.raises(ValueError, match='x_blocks in .* must be uint8'):
    mxfp4.unpack(_write(tmp_path / 'file', arrays))
