# SPDX-License-Identifier: Apache-2.0
"""The tensors of a folder, quantized ones as the numbers that they mean."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from pax.huggingface import fp8_blocks, mxfp4, safetensors

# What config.json has of tensors that are quantized.
QUANTIZATION_CONFIG = 'quantization_config'

Entry = safetensors.TensorEntry | mxfp4.PackedEntry | fp8_blocks.ScaledEntry


def read(path: pathlib.Path, config: Mapping[str, Any]) -> Mapping[str, Entry]:
  """Returns the tensors by name, in the order of the files.

  Args:
    path: The folder.
    config: Contents of config.json.

  Raises:
    ValueError: The files or their quantization are damaged.
  """
  entries = safetensors.read_folder(path)
  quantization = config.get(QUANTIZATION_CONFIG) or {}
  method = quantization.get('quant_method')
  if method == 'mxfp4':
    return mxfp4.unpack(entries)
  if method == 'fp8':
    return fp8_blocks.unpack(
      entries, quantization.get('weight_block_size') or ()
    )
  return entries


def is_quantized(entry: Entry) -> bool:
  """Whether a tensor is not in the files as it is read."""
  return not isinstance(entry, safetensors.TensorEntry)
