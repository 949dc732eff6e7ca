# SPDX-License-Identifier: Apache-2.0
"""The C++ extension of the input pipeline, built from csrc/host."""

# bazel: deps=//pax/inputs:_host
from __future__ import annotations

import functools
import importlib
import types

from absl import logging

_EXTENSION = 'pax.inputs._host'


@functools.cache
def load() -> types.ModuleType | None:
  """Returns the extension, or None if it is not built."""
  try:
    return importlib.import_module(_EXTENSION)
  except ModuleNotFoundError as error:
    if error.name != _EXTENSION:
      raise
    logging.info('%s is not built: packing runs in Python.', _EXTENSION)
    return None
