# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The extension: its stub, its registrations, life without it."""

from __future__ import annotations

import ast
import importlib
import logging
import math
import pathlib
import resource
import sys

import jax
import jax.numpy as jnp
import numpy as np
import psutil
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
    jnp.ones((64, 2)),
    jnp.ones((2, 8)),
    jnp.zeros((64,), jnp.int32),
    jnp.ones((64,)),
  )
  with caplog.at_level(logging.INFO, logger='absl'):
    result = softmax_xent_lib.softmax_xent(*args)
    softmax_xent_lib.softmax_xent(*args)
  assert result.xent.tolist() == pytest.approx([math.log(8.0)] * 64)
  lines = [r.getMessage() for r in caplog.records]
  assert sum('_native is not built' in line for line in lines) == 1
  options = softmax_xent_lib.Options(implementation='native')
  with pytest.raises(ValueError, match='not built'):
    softmax_xent_lib.softmax_xent(*args, options=options)


@pytest.mark.skipif(not _HAS_NATIVE, reason='the extension is not built')
@pytest.mark.parametrize(
  ('chunk', 'message'),
  [
    (2**58, 'chunk must be a multiple of 32 and not exceed the tokens'),
    (2**57 + 32, 'chunk must be a multiple of 32 and not exceed the tokens'),
    (33, 'chunk must be a multiple of 32'),
    (-32, 'chunk must be a multiple of 32'),
    (32, 'logits must hold 4096 floats, got 1'),
  ],
)
def test_sizes_that_do_not_fit_the_scratch_memory(chunk, message):
  # Products of these overflow to 0.
  x, table, ones = jnp.ones((4, 2)), jnp.ones((2, 8)), jnp.ones(4)
  floats = [jax.ShapeDtypeStruct(s, jnp.float32) for s in [(4,)] * 2]
  argmax = jax.ShapeDtypeStruct((4,), jnp.int32)
  grads = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (x, table)]
  scratch = [jax.ShapeDtypeStruct((1,), jnp.float32)] * 2
  empty = jax.ShapeDtypeStruct((0,), jnp.float32)
  call = jax.ffi.ffi_call(
    'pax_softmax_xent_gradient', [*floats, argmax, *grads, empty, *scratch]
  )
  with pytest.raises(jax.errors.JaxRuntimeError, match=message):
    jax.block_until_ready(
      call(
        *(x, table, jnp.zeros(0), jnp.zeros(4, jnp.int32)),
        *(ones, ones, jnp.zeros(0)),
        soft_cap=np.float32(0),
        label_smoothing=np.float32(0),
        transposed=False,
        chunk=np.int64(chunk),
        z_loss_weight=np.float32(0),
      )
    )


@pytest.mark.skipif(not _HAS_NATIVE, reason='the extension is not built')
def test_missing_scratch_memory_is_an_error_of_the_call():
  # One packed strip of the table takes 1 GiB per thread.
  x, table = jnp.ones((1, 2**21)), jnp.ones((2**21, 1))
  options = softmax_xent_lib.Options(implementation='native')

  @jax.jit
  def xent(x, table):
    labels, weights = jnp.zeros(1, jnp.int32), jnp.ones(1)
    return softmax_xent_lib.softmax_xent(
      x, table, labels, weights, options=options
    ).xent

  compiled = xent.lower(x, table).compile()
  limits = resource.getrlimit(resource.RLIMIT_AS)
  soft = psutil.Process().memory_info().vms + 2**29
  resource.setrlimit(resource.RLIMIT_AS, (soft, limits[1]))
  try:
    with pytest.raises(jax.errors.JaxRuntimeError, match='no scratch memory'):
      jax.block_until_ready(compiled(x, table))
  finally:
    resource.setrlimit(resource.RLIMIT_AS, limits)
