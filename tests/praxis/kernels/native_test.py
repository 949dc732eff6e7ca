# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The extension: its stub, its registrations, life without it."""

from __future__ import annotations

import ast
import importlib
import logging
import math
import pathlib
import sys

import jax.numpy as jnp
import pytest

from praxis.kernels import native
from praxis.kernels import softmax_xent as softmax_xent_lib

_HAS_NATIVE = native.has_kernel('cpu', 'pax_softmax_xent')


@pytest.fixture
def without_extension(monkeypatch):
  caches = (
    native._load,
    native._registered,
    softmax_xent_lib._forward,
    softmax_xent_lib._gradient,
    softmax_xent_lib._log_choice,
  )
  monkeypatch.setitem(sys.modules, native._EXTENSION, None)
  for cache in caches:
    cache.cache_clear()
  yield
  monkeypatch.undo()
  for cache in caches:
    cache.cache_clear()


@pytest.mark.skipif(not _HAS_NATIVE, reason='the extension is not built')
def test_stub_names_what_the_extension_has():
  extension = importlib.import_module('praxis.kernels._native')
  stub = pathlib.Path(native.__file__).with_name('_native.pyi')
  functions = [
    node.name
    for node in ast.parse(stub.read_text()).body
    if isinstance(node, ast.FunctionDef)
  ]
  public = [name for name in dir(extension) if not name.startswith('_')]
  assert sorted(functions) == public
  for key, capsule in extension.registrations().items():
    assert key.split(':')[0] in ('cpu', 'CUDA')
    assert type(capsule).__name__ == 'PyCapsule'


def test_missing_extension_falls_back_and_says_so(without_extension, caplog):
  args = (
    jnp.ones((4, 2)),
    jnp.ones((2, 8)),
    jnp.zeros((4,), jnp.int32),
    jnp.ones((4,)),
  )
  with caplog.at_level(logging.INFO, logger='absl'):
    result = softmax_xent_lib.softmax_xent(*args)
    softmax_xent_lib.softmax_xent(*args)
  assert result.xent.tolist() == pytest.approx([math.log(8.0)] * 4)
  lines = [r.getMessage() for r in caplog.records]
  assert sum('_native is not built' in line for line in lines) == 1
  options = softmax_xent_lib.Options(implementation='native')
  with pytest.raises(ValueError, match='not built'):
    softmax_xent_lib.softmax_xent(*args, options=options)
