# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Attention of a sequence: the kernel and jnp against numpy in float64."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from praxis.kernels import attention, attention_reference

_needs_kernel = pytest.mark.skipif(
  not attention.has_kernel(), reason='praxis.kernels._native is not built'
)


def _operands(shape, num_kv_heads, dtype='float32'):
  """Returns queries, keys, values, segment ids and a cotangent."""
  batch, length, _, dims = shape
  rng = np.random.default_rng(0)
  keys = (batch, length, num_kv_heads, dims)
  floats = [
    jnp.asarray(rng.normal(size=s), dtype) for s in (shape, keys, keys, shape)
  ]
  ids = np.sort(rng.integers(3, size=(batch, length)), axis=1)
  return (*floats[:3], jnp.asarray(ids, jnp.int32), floats[3])


def _visible(ids, spec):
  length = ids.shape[1]
  distance = np.arange(length) - np.arange(length)[:, None]
  before = length if spec.before is None else spec.before
  after = length if spec.after is None else spec.after
  in_reach = (-before <= distance) & (distance <= after)
  return (ids[:, :, None] == ids[:, None]) & in_reach


def _by_numpy(query, key, value, ids, dout, spec, sinks=None):
  """Returns the output and the gradients of sum(dout * output)."""
  query, key, value, dout = (
    np.asarray(x, np.float64) for x in (query, key, value, dout)
  )
  batch, length, num_heads, dims = query.shape
  num_groups = num_heads // key.shape[2]
  wide_key, wide_value = (
    np.repeat(x, num_groups, axis=2) for x in (key, value)
  )
  logits = np.einsum('btnh,bsnh->bnts', query, wide_key)
  slope = np.ones_like(logits)
  if spec.soft_cap:
    logits = spec.soft_cap * np.tanh(logits / spec.soft_cap)
    slope = 1 - (logits / spec.soft_cap) ** 2
  visible = _visible(np.asarray(ids), spec)[:, None]
  probs = np.where(visible, np.exp(logits), 0)
  of_sinks = 0 if sinks is None else np.exp(np.asarray(sinks))[:, None, None]
  total = probs.sum(axis=-1, keepdims=True) + of_sinks
  probs /= total
  out = np.einsum('bnts,bsnh->btnh', probs, wide_value)
  dprobs = np.einsum('btnh,bsnh->bnts', dout, wide_value)
  delta = np.einsum('bnts,bnts->bnt', dprobs, probs)[..., None]
  dlogits = probs * (dprobs - delta) * slope

  def grouped(x):
    return x.reshape(batch, length, key.shape[2], num_groups, dims).sum(axis=3)

  gradients = (
    np.einsum('bnts,bsnh->btnh', dlogits, wide_key),
    grouped(np.einsum('bnts,btnh->bsnh', dlogits, query)),
    grouped(np.einsum('bnts,btnh->bsnh', probs, dout)),
  )
  if sinks is not None:
    gradients += (-np.sum(of_sinks / total * delta, axis=(0, 2, 3)),)
  return (out, *gradients)


@functools.partial(jax.jit, static_argnums=(0, 6))
def _results(attend, query, key, value, ids, dout, spec, sinks=None):
  """Returns the output and the gradients of sum(dout * output)."""

  def run(query, key, value, sinks):
    return attend(query, key, value, ids, spec, sinks)

  out, transpose = jax.vjp(run, query, key, value, sinks)
  gradients = transpose(dout)
  return (out, *(x for x in gradients if x is not None))


def _reference(query, key, value, ids, spec, sinks=None):
  out, logsumexp = attention_reference.forward(query, key, value, ids, spec)
  if sinks is None:
    return out
  share = jax.nn.sigmoid(logsumexp - sinks[:, None])
  return out * jnp.swapaxes(share, 1, 2)[..., None].astype(out.dtype)


def _assert_close(got, want, tolerance):
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    a, b = (np.asarray(x, np.float64) for x in (a, b))
    assert a.shape == b.shape
    if a.size:
      assert np.max(np.abs(a - b)) <= tolerance * np.max(np.abs(b))


@pytest.mark.parametrize(
  ('shape', 'num_kv_heads', 'fields'),
  [
    ((2, 70, 4, 24), 2, dict()),
    ((1, 130, 3, 64), 1, dict(soft_cap=2.0)),
    ((1, 130, 3, 64), 1, dict(soft_cap=1e6)),
    ((2, 200, 2, 16), 2, dict(before=40)),
    ((1, 131, 2, 80), 2, dict(before=20, after=33)),
    ((1, 64, 2, 5), 1, dict(after=None)),
    ((1, 1, 1, 1), 1, dict()),
  ],
)
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('attend', [attention.attention, _reference])
def test_values_and_gradients(attend, dtype, shape, num_kv_heads, fields):
  operands = _operands(shape, num_kv_heads, dtype)
  spec = attention.Spec(**fields)
  got = _results(attend, *operands, spec)
  assert [x.dtype for x in got] == [jnp.dtype(dtype)] * 4
  tolerance = 1e-5 if dtype == 'float32' else 2e-2
  _assert_close(got, _by_numpy(*operands, spec), tolerance)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_sinks_are_in_the_denominators_only(dtype):
  operands = _operands((2, 70, 4, 24), 2, dtype)
  spec, sinks = attention.Spec(before=9), jnp.array([-2.0, 0.5, 3.0, 40.0])
  got = _results(attention.attention, *operands, spec, sinks)
  assert [x.dtype for x in got] == [jnp.dtype(dtype)] * 4 + [jnp.float32]
  tolerance = 1e-5 if dtype == 'float32' else 2e-2
  _assert_close(got, _by_numpy(*operands, spec, sinks), tolerance)


@pytest.mark.parametrize('shape', [(2, 0, 2, 16), (0, 3, 2, 16), (2, 3, 2, 0)])
def test_empty_arrays(shape):
  operands = _operands(shape, 1)
  got = _results(attention.attention, *operands, attention.Spec())
  wanted = [shape, *(x.shape for x in operands[:3])]
  assert [x.shape for x in got] == wanted


@_needs_kernel
def test_logits_are_not_in_memory():
  operands = _operands((1, 1024, 2, 32), 2)
  spec = attention.Spec()
  text = _results.lower(attention.attention, *operands, spec).compile()
  assert '1024,1024' not in text.as_text()
  assert text.as_text().count('custom_call_target="pax_attention') == 2
  by_einsum = _results.lower(_reference, *operands, spec).compile()
  assert '1024,1024' in by_einsum.as_text()


@_needs_kernel
@pytest.mark.parametrize('sinks', [None, jnp.array([0.5, -1.0])], ids=str)
def test_second_derivatives_are_of_the_reference(sinks):
  *heads, ids, dout = _operands((1, 9, 2, 4), 1)
  spec = attention.Spec(soft_cap=3.0)
  floats = (*heads, sinks)

  def squared_gradient(attend):
    def loss(floats):
      *heads, sinks = floats
      return jnp.sum(dout * attend(*heads, ids, spec, sinks))

    def of_gradient(floats):
      return sum(jnp.sum(g**2) for g in jax.tree.leaves(jax.grad(loss)(floats)))

    return jax.jit(jax.grad(of_gradient))

  got = squared_gradient(attention.attention)(floats)
  _assert_close(got, squared_gradient(_reference)(floats), 1e-5)


def test_forward_mode_is_an_error():
  *heads, ids, _ = _operands((1, 9, 2, 4), 1)
  spec = attention.Spec()
  run = lambda *heads: attention.attention(*heads, ids, spec)
  with pytest.raises(TypeError, match='forward-mode'):
    jax.jvp(run, heads, heads)


def test_vmap():
  *heads, ids, dout = _operands((2, 40, 2, 8), 1)
  spec = attention.Spec()
  stacked = [jnp.stack([x, -2 * x]) for x in heads]
  mapped = jax.vmap(
    lambda *heads: _results(attention.attention, *heads, ids, dout, spec)
  )
  got = jax.jit(mapped)(*stacked)
  for i in range(2):
    want = _by_numpy(*(x[i] for x in stacked), ids, dout, spec)
    _assert_close([x[i] for x in got], want, 1e-5)
  # As the stages of a pipeline in a batch of models.
  nested = jax.vmap(mapped)(*(x[None] for x in stacked))
  _assert_close([x[0] for x in nested], got, 1e-6)


@_needs_kernel
@pytest.mark.parametrize('kind', ['mesh', 'operands', 'explicit'])
def test_a_sharded_batch_has_no_collective(kind):
  operands = _operands((4, 70, 2, 16), 1)
  spec = attention.Spec()
  axis_type = AxisType.Explicit if kind == 'explicit' else AxisType.Auto
  mesh = jax.make_mesh((4,), ('data',), axis_types=(axis_type,))
  sharding = NamedSharding(mesh, PartitionSpec('data'))
  placed = jax.device_put(operands, sharding)
  run = functools.partial(_results.__wrapped__, attention.attention, spec=spec)
  jitted = jax.jit(run)
  if kind == 'operands':
    compiled = jitted.lower(*placed).compile()
  else:
    with jax.set_mesh(mesh):
      compiled = jitted.lower(*placed).compile()
  got = compiled(*placed)
  for collective in ('all-gather', 'all-reduce', 'permute', 'all-to-all'):
    assert collective not in compiled.as_text()
  assert 'pax_attention_gradient' in compiled.as_text()
  assert all(x.sharding.spec[0] == 'data' for x in got)
  _assert_close(got, _by_numpy(*operands, spec), 1e-5)


def test_other_platforms_have_no_kernel():
  operands = _operands((1, 9, 2, 4), 1)
  text = (
    _results.trace(attention.attention, *operands, attention.Spec())
    .lower(lowering_platforms=('tpu',))
    .as_text()
  )
  assert attention.FORWARD not in text


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (
      lambda q, k, v: (q, k[:, :4], v[:, :4]),
      r'must have shape \(1, 9, 2, 4\)',
    ),
    (lambda q, k, v: (q[:, :, :3], k, v), 'heads of keys must divide'),
    (lambda q, k, v: (q, k.astype('bfloat16'), v), 'all be float32 or all'),
  ],
)
def test_operands_that_do_not_fit_are_errors(change, message):
  *heads, ids, _ = _operands((1, 9, 4, 4), 2)
  with pytest.raises(ValueError, match=message):
    attention.attention(*change(*heads), ids, attention.Spec())


def test_settings_that_are_errors():
  with pytest.raises(ValueError, match='before must be at least 0'):
    attention.Spec(before=-1)
  with pytest.raises(ValueError, match='soft_cap must be at least 0'):
    attention.Spec(soft_cap=float('nan'))


@_needs_kernel
@pytest.mark.parametrize(
  ('ids_shape', 'scratch', 'message'),
  [
    ((1, 8), 4096, 'segment_ids must have shape'),
    ((1, 9), 1, 'sums must hold'),
  ],
)
def test_calls_that_do_not_fit_are_errors(ids_shape, scratch, message):
  *heads, _, dout = _operands((1, 9, 2, 4), 1)
  ids = jnp.zeros(ids_shape, jnp.int32)
  statistics = jnp.zeros((1, 2, 9))
  shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in heads]
  shapes.append(jax.ShapeDtypeStruct((scratch,), jnp.float32))
  call = jax.ffi.ffi_call(attention.GRADIENT, shapes)
  attributes = attention._attributes(attention.Spec())
  with pytest.raises(jax.errors.JaxRuntimeError, match=message):
    jax.block_until_ready(
      call(*heads, ids, dout, statistics, statistics, **attributes)
    )
