# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""softmax_xent against float64 numpy, on every implementation."""

from __future__ import annotations

import dataclasses
import functools
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import test_util

from praxis import py_utils
from praxis.kernels import native
from praxis.kernels import softmax_xent as softmax_xent_lib
from tests.testing import nightly

Options = softmax_xent_lib.Options

# Largest error over the largest value, by dtype of the activations.
_TOLERANCE = {'float32': 3e-5, 'bfloat16': 2e-2}

_NEEDS_NATIVE = pytest.mark.skipif(
  not native.has_kernel('cpu', 'pax_softmax_xent'),
  reason='praxis.kernels._native is not built',
)
_NATIVE = pytest.param('native', marks=_NEEDS_NATIVE)
_ALL = pytest.mark.parametrize('implementation', [_NATIVE, 'reference', 'xla'])
_CHUNKED = pytest.mark.parametrize('implementation', [_NATIVE, 'reference'])

_VARIANTS = {
  'plain': {},
  'everything': dict(
    soft_cap=4.0, z_loss_weight=1e-2, label_smoothing=0.1, transposed=True
  ),
}


@dataclasses.dataclass(frozen=True)
class Problem:
  """Arrays of one call; two of the labels are ignored."""

  x: jax.Array
  w: jax.Array
  labels: jax.Array
  weights: jax.Array
  bias: jax.Array | None

  def __call__(self, options: Options, x=None, w=None, bias=None):
    return softmax_xent_lib.softmax_xent(
      self.x if x is None else x,
      self.w if w is None else w,
      self.labels,
      self.weights,
      self.bias if bias is None else bias,
      options,
    )


def _problem(
  tokens=37, dims=19, vocab=133, dtype='float32', bias=True, transposed=False
) -> Problem:
  rng = np.random.default_rng(0)
  labels = rng.integers(0, vocab, tokens).astype(np.int32)
  labels[[1, tokens - 1]] = -1
  w = jnp.asarray(rng.normal(size=(dims, vocab)), dtype)
  return Problem(
    x=jnp.asarray(rng.normal(size=(tokens, dims)), dtype),
    w=w.T if transposed else w,
    labels=jnp.asarray(labels),
    weights=jnp.asarray(rng.uniform(size=tokens), jnp.float32),
    bias=jnp.asarray(rng.normal(size=vocab), jnp.float32) if bias else None,
  )


def _numpy(p: Problem, options: Options) -> dict[str, np.ndarray]:
  """Results and gradients of `total`, in float64 by hand."""
  x, w = (np.asarray(a, np.float64) for a in (p.x, p.w))
  w = w.T if options.transposed else w
  logits = x @ w + (0 if p.bias is None else np.asarray(p.bias, np.float64))
  slope = np.ones_like(logits)
  if options.soft_cap:
    logits = options.soft_cap * np.tanh(logits / options.soft_cap)
    slope = 1 - (logits / options.soft_cap) ** 2
  labels, vocab = np.asarray(p.labels), logits.shape[1]
  known = labels >= 0
  lse = np.log(np.exp(logits).sum(-1))
  target = np.full_like(logits, options.label_smoothing / (vocab - 1))
  rows = np.arange(len(labels))
  target[rows, np.maximum(labels, 0)] = 1 - options.label_smoothing
  xent = np.where(known, lse - (target * logits).sum(-1), 0)
  weights = np.where(known, np.asarray(p.weights, np.float64), 0)
  z = options.z_loss_weight
  probability = weights * (1 + 2 * z * lse)
  gradient = probability[:, None] * np.exp(logits - lse[:, None])
  gradient = slope * (gradient - weights[:, None] * target)
  dw = x.T @ gradient
  return dict(
    total=np.sum(weights * (xent + z * lse**2)),
    xent=xent,
    logsumexp=lse,
    argmax=logits.argmax(-1),
    dx=gradient @ w.T,
    dw=dw.T if options.transposed else dw,
    dbias=gradient.sum(0),
  )


def _assert_close(got, want, tolerance, name):
  got = np.asarray(got, np.float64)
  assert got.shape == np.shape(want), name
  error = np.max(np.abs(got - want)) / np.max(np.abs(want))
  assert error < tolerance, f'{name}: {error}'


@_ALL
@pytest.mark.parametrize(
  ('dtype', 'variant'),
  [
    ('float32', 'everything'),
    ('bfloat16', 'plain'),
    *nightly.cases(('float32', 'plain'), ('bfloat16', 'everything')),
  ],
)
def test_results_and_gradients(implementation, dtype, variant):
  options = Options(implementation=implementation, **_VARIANTS[variant])
  p = _problem(dtype=dtype, transposed=options.transposed)

  def total(x, w, bias):
    result = p(options, x, w, bias)
    return result.total, result

  grads, result = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))(
    p.x, p.w, p.bias
  )
  got = dict(
    **{f.name: getattr(result, f.name) for f in dataclasses.fields(result)},
    **dict(zip(('dx', 'dw', 'dbias'), grads, strict=True)),
  )
  want = _numpy(p, options)
  np.testing.assert_array_equal(got.pop('argmax'), want.pop('argmax'))
  assert grads[0].dtype == grads[1].dtype == dtype
  for name, value in got.items():
    exact = name in ('total', 'xent', 'logsumexp')
    _assert_close(value, want[name], 3e-5 if exact else _TOLERANCE[dtype], name)


@_CHUNKED
@pytest.mark.parametrize('dtype', list(_TOLERANCE))
def test_chunks_add_up(implementation, dtype):
  # More tokens than a chunk, and a last chunk that is not full.
  p = _problem(tokens=1100, dims=8, vocab=300, dtype=dtype, bias=False)
  options = Options(implementation=implementation)
  grads = jax.jit(jax.grad(lambda x, w: p(options, x, w).total, (0, 1)))(
    p.x, p.w
  )
  want = _numpy(p, options)
  for got, name in zip(grads, ('dx', 'dw'), strict=True):
    _assert_close(got, want[name], _TOLERANCE[dtype], name)


@_CHUNKED
def test_forward_alone_equals_forward_with_gradient(implementation):
  p = _problem(bias=False)
  options = Options(implementation=implementation, z_loss_weight=1e-2)
  alone = jax.jit(lambda x: p(options, x))(p.x)
  both, _ = jax.jit(jax.value_and_grad(lambda x: p(options, x).total))(p.x)
  np.testing.assert_allclose(alone.total, both, rtol=1e-6)
  want = _numpy(p, options)
  _assert_close(alone.xent, want['xent'], 3e-5, 'xent')
  np.testing.assert_array_equal(alone.argmax, want['argmax'])


@pytest.mark.parametrize(
  ('implementation', 'variant'),
  [
    pytest.param('native', 'everything', marks=_NEEDS_NATIVE),
    ('reference', 'plain'),
    pytest.param('native', 'plain', marks=[_NEEDS_NATIVE, pytest.mark.nightly]),
    *nightly.cases(('reference', 'everything')),
  ],
)
def test_check_grads_of_every_result(implementation, variant):
  options = Options(implementation=implementation, **_VARIANTS[variant])
  p = _problem(tokens=9, dims=4, vocab=7, transposed=options.transposed)
  mix = jnp.cos(jnp.arange(9.0))

  def fn(x, w, bias, weights):
    r = dataclasses.replace(p, weights=weights)(options, x, w, bias)
    return r.total + jnp.sum(mix * r.xent) + jnp.sum(jnp.sin(r.logsumexp))

  args = (p.x, p.w, p.bias, p.weights)
  test_util.check_grads(jax.jit(fn), args, 1, ('fwd', 'rev'), 1e-2, 1e-2, 1e-2)


@_CHUNKED
def test_vmap(implementation):
  p = _problem(tokens=24, bias=False)
  options = Options(implementation=implementation)
  xs = jnp.stack([p.x, -p.x, 2 * p.x])
  fn = jax.value_and_grad(lambda x, w: p(options, x, w).total, (0, 1))
  got = jax.jit(jax.vmap(fn, in_axes=(0, None)))(xs, p.w)
  one = jax.jit(fn)
  want = jax.tree.map(lambda *a: jnp.stack(a), *(one(x, p.w) for x in xs))
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5),
    got,
    want,
  )


@_ALL
def test_label_past_the_vocabulary_is_nan(implementation):
  p = _problem(bias=False)
  p = dataclasses.replace(p, labels=p.labels.at[5].set(133))
  options = Options(implementation=implementation)
  xent = jax.jit(lambda x: p(options, x).xent)(p.x)
  assert np.flatnonzero(np.isnan(xent)).tolist() == [5]


@_CHUNKED
def test_large_logits_do_not_overflow(implementation):
  p = _problem(bias=False)
  p = dataclasses.replace(p, x=100 * p.x)
  options = Options(implementation=implementation)
  total, grad = jax.jit(jax.value_and_grad(lambda x: p(options, x).total))(p.x)
  assert np.isfinite(total) and np.isfinite(grad).all()


def test_wrong_input_is_named():
  p = _problem()
  with pytest.raises(ValueError, match='w must have shape'):
    p(Options(transposed=True))
  with pytest.raises(ValueError, match='both be float32 or both bfloat16'):
    p(Options(), x=p.x.astype(jnp.bfloat16))
  with pytest.raises(ValueError, match='bias must have shape'):
    p(Options(), bias=p.bias[1:])
  with pytest.raises(ValueError, match='implementation must be one of'):
    Options(implementation='fast')
  with pytest.raises(ValueError, match='label_smoothing'):
    Options(label_smoothing=1.0)


@_CHUNKED
def test_no_logits_of_all_tokens_are_kept(implementation):
  p = _problem(tokens=2048, dims=8, vocab=4096, bias=False)
  all_logits = 4 * 2048 * 4096

  def peak(implementation: str) -> int:
    options = Options(implementation=implementation)
    fn = jax.jit(jax.grad(lambda x, w: p(options, x, w).total, (0, 1)))
    return fn.lower(p.x, p.w).compile().memory_analysis().temp_size_in_bytes

  assert peak('xla') > all_logits
  assert peak(implementation) < all_logits


@_CHUNKED
def test_total_is_differentiated_in_one_pass(implementation):
  p = _problem(bias=False)
  options = Options(implementation=implementation)

  def passes(name: str) -> tuple[int, bool]:
    fn = jax.value_and_grad(lambda x: jnp.sum(getattr(p(options, x), name)))
    text = str(jax.make_jaxpr(fn)(p.x))
    return text.count('custom_vmap_call['), 'prevent_cse' in text

  assert passes('total') == (1, False)
  assert passes('xent') == (1, True)


def test_auto_and_reference_lower_for_other_platforms_as_jnp():
  p = _problem(bias=False)
  for implementation in ('auto', 'reference'):
    options = Options(implementation=implementation)
    traced = jax.jit(jax.grad(lambda x, o=options: p(o, x).total)).trace(p.x)
    text = traced.lower(lowering_platforms=('tpu',)).as_text()
    assert 'pax_softmax_xent' not in text


def test_the_cuda_kernel_gets_large_chunks(monkeypatch):
  """5000 tokens are one launch, 8192 are two of 4096."""
  monkeypatch.setattr(
    softmax_xent_lib, '_native_platforms', lambda: ('cpu', 'cuda')
  )
  for tokens, rows in ((5000, 5024), (8192, 4096)):
    p = _problem(tokens=tokens, dims=8, vocab=96, bias=False)
    # Not a default, so that no cached function has other platforms.
    options = Options(implementation='native', z_loss_weight=0.5)
    traced = jax.jit(jax.grad(lambda x, p=p, o=options: p(o, x).total)).trace(
      p.x
    )
    text = traced.lower(lowering_platforms=('cuda',)).as_text()
    (call,) = re.findall(r'custom_call @pax_softmax_xent_rows.*', text)
    assert f'tensor<{rows}x96xf32>' in call
    assert 'output_operand_alias' in call


@_NEEDS_NATIVE
def test_native_is_an_error_on_other_platforms():
  p = _problem(bias=False)
  options = Options(implementation='native')
  traced = jax.jit(jax.grad(lambda x: p(options, x).total)).trace(p.x)
  assert 'pax_softmax_xent' in traced.lower().as_text()
  with pytest.raises(NotImplementedError, match='platform tpu'):
    traced.lower(lowering_platforms=('tpu',))
  with py_utils.tracing_for('tpu'):
    with pytest.raises(ValueError, match='not for tpu'):
      p(options)


@_NEEDS_NATIVE
@pytest.mark.parametrize('dtype', list(_TOLERANCE))
def test_results_do_not_depend_on_the_number_of_cores(dtype, monkeypatch):
  p = _problem(tokens=70, vocab=2000, dtype=dtype)
  options = Options(implementation='native')

  def gradients() -> bytes:
    fn = jax.jit(jax.grad(lambda x, w: p(options, x, w).total, (0, 1)))
    return b''.join(np.asarray(g).tobytes() for g in fn(p.x, p.w))

  few = gradients()
  monkeypatch.setattr(os, 'cpu_count', lambda: 64)
  monkeypatch.setattr(os, 'process_cpu_count', lambda: 64, raising=False)
  assert gradients() == few


@_NEEDS_NATIVE
def test_the_gradient_allocates_one_chunk_of_logits():
  # Partial sums of dx would be larger than the logits: dims exceed classes.
  p = _problem(tokens=64, dims=2048, vocab=1024, bias=False)
  options = Options(implementation='native')
  fn = jax.jit(jax.grad(lambda x, w: p(options, x, w).total, (0, 1)))
  memory = fn.lower(p.x, p.w).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 2 * 4 * 64 * 1024


@_CHUNKED
@pytest.mark.parametrize('variant', ['plain', *nightly.cases('everything')])
def test_jvp_and_second_derivatives(implementation, variant):
  pairs = zip(
    _derivatives(implementation, variant),
    _derivatives('xla', variant),
    strict=True,
  )
  for got, want in pairs:
    _assert_close(got, np.asarray(want, np.float64), 1e-4, variant)


@functools.cache
def _derivatives(implementation: str, variant: str) -> list[jax.Array]:
  fields = _VARIANTS[variant]
  p = _problem(
    tokens=9, dims=5, vocab=13, transposed=fields.get('transposed', False)
  )
  operands = (p.x, p.w, p.bias)
  rng = np.random.default_rng(1)
  tangents = tuple(
    jnp.asarray(rng.normal(size=a.shape), jnp.float32) for a in operands
  )

  options = Options(implementation=implementation, **fields)

  def loss(*args: jax.Array) -> jax.Array:
    result = p(options, *args)
    return result.total + jnp.sum(jnp.sin(result.xent) * result.logsumexp)

  def slope(*args: jax.Array) -> jax.Array:
    grads = jax.grad(loss, (0, 1, 2))(*args)
    return sum(jnp.sum(jnp.square(g)) for g in grads)

  @jax.jit
  def derivatives(operands, tangents):
    forward = jax.jvp(loss, operands, tangents)
    over_reverse = jax.jvp(jax.grad(loss, (0, 1, 2)), operands, tangents)
    return forward, over_reverse, jax.grad(slope, (0, 1, 2))(*operands)

  return jax.tree.leaves(derivatives(operands, tangents))


@_NEEDS_NATIVE
def test_auto_computes_few_tokens_by_jnp(monkeypatch):
  monkeypatch.setattr(softmax_xent_lib, '_FAST_ISAS', (native.cpu_isa(),))
  x, w = jnp.ones((64, 8)), jnp.ones((8, 16))

  def lowered(num_tokens: int) -> str:
    labels, weights = jnp.zeros(num_tokens, int), jnp.ones(num_tokens)
    args = (x[:num_tokens], w, labels, weights)
    fn = jax.jit(lambda *args: softmax_xent_lib.softmax_xent(*args).total)
    return fn.lower(*args).as_text()

  assert 'pax_softmax_xent' in lowered(64)
  assert 'pax_softmax_xent' not in lowered(63)
