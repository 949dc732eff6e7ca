# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""softmax_xent on NaN, infinity, and sizes of 0 and 1: as jnp on all logits."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis.kernels import native
from praxis.kernels import softmax_xent as softmax_xent_lib

Options = softmax_xent_lib.Options

_NAN, _INF = np.nan, np.inf
# A NaN that is not the one of the processor.
_OTHER_NAN = np.array(0x7FFFFFFF, np.int32).view(np.float32)
_NATIVE = pytest.param(
  'native',
  marks=pytest.mark.skipif(
    not native.has_kernel('cpu', 'pax_softmax_xent'),
    reason='praxis.kernels._native is not built',
  ),
)
_CHUNKED = pytest.mark.parametrize('implementation', [_NATIVE, 'reference'])
_DTYPES = pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])

# (array, index, value) to set; there are 40 tokens and 300 classes.
_EDGES = {
  'nan activation': [('x', (3, 5), _NAN)],
  'other nan activation': [('x', (3, 5), _OTHER_NAN)],
  'infinite activation': [('x', (3, 5), _INF), ('x', (39, 0), -_INF)],
  'nan in the table': [('table', (5, 201), _NAN)],
  'nan bias': [('bias', 7, _NAN), ('bias', 250, _NAN)],
  'masked classes': [('bias', slice(10, 40), -_INF)],
  'masked strip': [('bias', slice(128, 256), -_INF)],
  'masked label': [('bias', 17, -_INF), ('labels', 2, 17)],
  'all classes are masked': [('bias', slice(None), -_INF)],
  'infinite bias': [('bias', 130, _INF), ('labels', 4, 130)],
  'two infinite biases': [('bias', 130, _INF), ('bias', 131, _INF)],
  'nan weight': [('weights', 6, _NAN)],
  'other nan weight': [('weights', 6, _OTHER_NAN)],
  'infinite weight': [('weights', 6, _INF)],
  'large activations': [('x', (8, slice(None)), 1e4)],
  'label past the vocabulary': [('labels', 9, 300), ('labels', 10, 2**31 - 1)],
  'most negative label': [('labels', 9, -(2**31))],
}
_VARIANTS = {
  'plain': Options(),
  'everything': Options(
    soft_cap=4.0, z_loss_weight=1e-2, label_smoothing=0.1, transposed=True
  ),
}


def _operands(dtype, tokens=40, dims=19, vocab=300, edges=()):
  rng = np.random.default_rng(0)
  arrays = {
    'x': rng.normal(size=(tokens, dims)).astype(np.float32),
    'table': rng.normal(size=(dims, vocab)).astype(np.float32),
    'bias': rng.normal(size=vocab).astype(np.float32),
    'weights': rng.uniform(size=tokens).astype(np.float32),
    'labels': rng.integers(0, max(vocab, 1), tokens).astype(np.int32),
  }
  arrays['labels'][1::5] = -1
  for name, index, value in edges:
    arrays[name][index] = value
  dtypes = {'x': dtype, 'table': dtype}
  return {n: jnp.asarray(a, dtypes.get(n)) for n, a in arrays.items()}


@functools.partial(jax.jit, static_argnums=0)
def _gradients(options, x, table, bias, labels, weights):
  def total(x, table, bias):
    result = softmax_xent_lib.softmax_xent(
      x, table, labels, weights, bias, options
    )
    return result.total, result

  return jax.grad(total, argnums=(0, 1, 2), has_aux=True)(x, table, bias)


def _results(operands, options):
  """Returns all results and gradients in one dict."""
  operands = dict(operands)
  if options.transposed:
    operands['table'] = operands['table'].T
  grads, result = _gradients(options, **operands)
  fields = {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
  names = ('dx', 'dtable', 'dbias')
  return jax.device_get(fields | dict(zip(names, grads, strict=True)))


def _check(operands, dtype, implementation, options):
  """Compares tokens with jnp on all logits, gradients with those in chunks."""
  options = dataclasses.replace(options, implementation=implementation)
  got = _results(operands, options)
  want = _results(operands, dataclasses.replace(options, implementation='xla'))
  for name in ('dx', 'dtable', 'dbias'):
    del want[name]
  _assert_equal(got, want, dtype)
  options = dataclasses.replace(options, implementation='reference')
  _assert_equal(got, _results(operands, options), dtype)


def _assert_equal(got, want, dtype):
  tolerance = 1e-4 if dtype == 'float32' else 3e-2
  np.testing.assert_array_equal(got['argmax'], want['argmax'])
  for name, value in want.items():
    value = np.asarray(value, np.float64)
    finite = value[np.isfinite(value)]
    np.testing.assert_allclose(
      np.asarray(got[name], np.float64),
      value,
      rtol=tolerance,
      atol=tolerance * np.max(np.abs(finite), initial=1e-6),
      err_msg=name,
    )


@_CHUNKED
@pytest.mark.parametrize('soft_cap', [1e4, 1e6, 1e30])
def test_a_soft_cap_far_above_the_logits(implementation, soft_cap):
  options = Options(soft_cap=soft_cap)
  _check(_operands('float32'), 'float32', implementation, options)


@_CHUNKED
@_DTYPES
@pytest.mark.parametrize('variant', list(_VARIANTS))
@pytest.mark.parametrize('edges', list(_EDGES))
def test_edges(implementation, dtype, variant, edges):
  operands = _operands(dtype, edges=_EDGES[edges])
  _check(operands, dtype, implementation, _VARIANTS[variant])


@_CHUNKED
@pytest.mark.parametrize(
  ('dtype', 'sizes'),
  [
    ('float32', dict(tokens=0)),
    ('bfloat16', dict(tokens=0)),
    ('float32', dict(tokens=1, dims=1, vocab=1)),
    ('float32', dict(dims=0)),
    ('bfloat16', dict(dims=0, vocab=1)),
    ('float32', dict(tokens=33, dims=33, vocab=129)),
  ],
  ids=str,
)
def test_small_sizes(implementation, dtype, sizes):
  operands = _operands(dtype, **sizes)
  _check(operands, dtype, implementation, _VARIANTS['everything'])


@_CHUNKED
def test_an_empty_batch_has_zero_gradients(implementation):
  # Memory that is not written keeps its previous content.
  options = Options(implementation=implementation)
  for vocab in (40, 70000):
    got = _results(_operands('float32', tokens=0, vocab=vocab), options)
    assert not got['dtable'].any() and not got['dbias'].any()
    assert got['total'] == 0


@_CHUNKED
def test_nan_is_the_maximum(implementation):
  edges = [('x', (0, 0), _NAN), ('bias', 12, _NAN), ('bias', 3, _INF)]
  operands = _operands('float32', tokens=2, vocab=40, edges=edges[:1])
  options = Options(implementation=implementation)
  assert _results(operands, options)['argmax'][0] == 0
  operands = _operands('float32', tokens=2, vocab=40, edges=edges[1:])
  assert _results(operands, options)['argmax'].tolist() == [12, 12]


@_CHUNKED
def test_padding_of_chunks_is_inert(implementation):
  # A class that is masked by the table makes the logits of padding NaN.
  edges = [('table', (slice(None), 6), -_INF), ('labels', slice(None), 7)]
  operands = _operands('float32', edges=edges)
  operands['x'] = jnp.abs(operands['x']) + 1
  got = _results(operands, Options(implementation=implementation))
  logits = operands['x'] @ operands['table'] + operands['bias']
  gradient = jax.nn.softmax(logits).at[:, 7].add(-1)
  want = operands['x'].T @ (operands['weights'][:, None] * gradient)
  np.testing.assert_allclose(got['dtable'], want, rtol=1e-4, atol=1e-4)


def test_sizes_and_settings_without_meaning():
  operands = _operands('float32', vocab=0)
  with pytest.raises(ValueError, match='at least 1 class'):
    _results(operands, Options())
  for value in (_NAN, _INF, -1.0):
    with pytest.raises(ValueError, match='soft_cap must be'):
      Options(soft_cap=value)
