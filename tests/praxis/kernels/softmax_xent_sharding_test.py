# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""softmax_xent on eight devices: what moves between them, and what must not."""

from __future__ import annotations

import contextlib
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from praxis.kernels import native
from praxis.kernels import softmax_xent as softmax_xent_lib
from tests.testing import nightly

_TOKENS, _DIMS, _VOCAB = 512, 24, 104
_WHOLE = PartitionSpec()
_COLLECTIVE = re.compile(
  r'= (.*?) (all-gather|all-reduce|all-to-all|collective-permute'
  r'|reduce-scatter)\('
)


def _mesh(axis_type: AxisType = AxisType.Auto) -> Mesh:
  return jax.make_mesh((2, 4), ('replica', 'data'), axis_types=(axis_type,) * 2)


def _operands(num_tokens: int = _TOKENS) -> tuple[jax.Array, ...]:
  numbers = np.random.default_rng(0)
  floats = (
    numbers.normal(size=(num_tokens, _DIMS)),
    numbers.normal(size=(_DIMS, _VOCAB)),
    np.zeros(_VOCAB),
    np.linspace(0.0, 1.0, num_tokens),
  )
  x, w, bias, weights = (jnp.asarray(a, jnp.float32) for a in floats)
  return (
    x,
    w,
    bias,
    jnp.asarray(numbers.integers(_VOCAB, size=num_tokens)),
    weights,
  )


@functools.cache
def _wanted(num_tokens=_TOKENS):
  args = _operands(num_tokens)
  return jax.device_get(jax.jit(_value_and_grad('xla'))(*args))


def _value_and_grad(implementation: str):
  options = softmax_xent_lib.Options(implementation=implementation)

  def loss(x, w, bias, labels, weights):
    args = (x, w, labels, weights, bias, options)
    result = softmax_xent_lib.softmax_xent(*args)
    return result.total / jnp.sum(weights)

  return jax.value_and_grad(loss, argnums=(0, 1, 2))


def _shard(mesh: Mesh, args, table=_WHOLE):
  tokens = PartitionSpec(('replica', 'data'))
  specs = (tokens, table, _WHOLE, tokens, tokens)
  return tuple(
    jax.device_put(a, NamedSharding(mesh, s))
    for a, s in zip(args, specs, strict=True)
  )


def _assert_equal(got, want):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
    jax.device_get(got),
    want,
  )


@pytest.fixture(params=[True, False], ids=['set_mesh', 'shardings only'])
def mesh(request):
  """A mesh that is known while tracing, or only from the arrays."""
  mesh = _mesh()
  with jax.set_mesh(mesh) if request.param else contextlib.nullcontext():
    yield mesh


@pytest.mark.parametrize(
  ('implementation', 'mesh'),
  [
    ('auto', True),
    ('reference', False),
    *nightly.cases(('auto', False), ('reference', True)),
  ],
  indirect=['mesh'],
)
def test_sharded_tokens_are_never_gathered(implementation, mesh):
  fn = _value_and_grad(implementation)
  args = _operands()
  want = _wanted()
  sharded = _shard(mesh, args)
  compiled = jax.jit(fn).lower(*sharded).compile()
  found = _COLLECTIVE.findall(compiled.as_text())
  assert {kind for _, kind in found} == {'all-reduce'}, found
  # Sums over tokens only: nothing of the size of x, nor one row per token.
  shapes = ' '.join(shapes for shapes, _ in found)
  assert f'[{_DIMS},{_VOCAB}]' in shapes
  assert f'[{_TOKENS}' not in shapes and f'[{_TOKENS // 8}' not in shapes
  got = compiled(*sharded)
  _assert_equal(got, want)
  assert got[1][0].sharding.is_equivalent_to(sharded[0].sharding, 2)


def test_gradients_of_results_per_token_gather_no_tokens():
  mesh = _mesh()
  x, w, bias, labels, weights = _shard(mesh, _operands())

  def loss(x, w):
    result = softmax_xent_lib.softmax_xent(x, w, labels, weights, bias)
    return jnp.sum(jnp.square(result.xent))

  with jax.set_mesh(mesh):
    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(x, w).compile()
  kinds = {kind for kind, _ in _COLLECTIVE.findall(compiled.as_text())}
  assert not kinds & {'all-gather', 'all-to-all'}, kinds


@pytest.mark.parametrize(
  ('implementation', 'table'),
  [
    ('auto', PartitionSpec(None, 'data')),
    ('reference', _WHOLE),
    *nightly.cases(
      ('auto', _WHOLE), ('reference', PartitionSpec(None, 'data'))
    ),
  ],
)
def test_axes_of_type_explicit(implementation, table):
  mesh = _mesh(AxisType.Explicit)
  fn = jax.jit(_value_and_grad(implementation))
  with jax.set_mesh(mesh):
    sharded = _shard(mesh, _operands(), table)
    got = fn(*sharded)
    for gradient, operand in zip(got[1], sharded, strict=False):
      assert jax.typeof(gradient).sharding == jax.typeof(operand).sharding
  _assert_equal(got, _wanted())


def test_forward_alone_needs_no_collective(mesh):
  x, w, _, labels, weights = _shard(mesh, _operands())

  def per_token(*args):
    return softmax_xent_lib.softmax_xent(*args).xent

  compiled = jax.jit(per_token).lower(x, w, labels, weights).compile()
  assert not _COLLECTIVE.findall(compiled.as_text())


def test_sharded_table_is_gathered_and_its_gradient_is_right(mesh):
  args = _operands()
  sharded = _shard(mesh, args, table=PartitionSpec(None, 'data'))
  got = jax.jit(_value_and_grad('auto'))(*sharded)
  _assert_equal(got, _wanted())


def test_a_known_mesh_needs_no_callback_at_compile_time():
  # Its address would be in the key of the persistent compilation cache.
  mesh = _mesh()
  sharded = _shard(mesh, _operands())
  fn = jax.jit(_value_and_grad('auto'))
  assert 'CustomSPMDPartitioning' in fn.lower(*sharded).as_text()
  with jax.set_mesh(mesh):
    text = jax.jit(_value_and_grad('auto')).lower(*sharded).as_text()
  assert 'CustomSPMDPartitioning' not in text


def test_tokens_that_the_mesh_does_not_divide(mesh):
  num_tokens = _TOKENS - 3
  replicated = tuple(
    jax.device_put(a, NamedSharding(mesh, _WHOLE))
    for a in _operands(num_tokens)
  )
  got = jax.jit(_value_and_grad('auto'))(*replicated)
  _assert_equal(got, _wanted(num_tokens))


def test_inside_shard_map():
  fn = _value_and_grad('auto')
  args = _operands()
  tokens = PartitionSpec(('replica', 'data'))

  def step(*args):
    value, grads = fn(*args)
    share = jnp.sum(args[-1])
    axes = ('replica', 'data')
    total = jax.lax.psum(share, axes)
    return jax.tree.map(
      lambda a: jax.lax.psum(a * share, axes) / total, (value, grads[1])
    )

  mapped = jax.shard_map(
    step,
    mesh=_mesh(),
    in_specs=(tokens, _WHOLE, _WHOLE, tokens, tokens),
    out_specs=_WHOLE,
    check_vma=False,
  )
  value, grads = _wanted()
  _assert_equal(jax.jit(mapped)(*args), (value, grads[1]))


def _value_and_grad_by_classes(implementation, class_axes, **fields):
  """Returns a function to the loss, the results per token, and gradients."""
  options = softmax_xent_lib.Options(
    implementation=implementation, class_axes=class_axes, **fields
  )

  def loss(x, w, bias, labels, weights):
    w = w.T if options.transposed else w
    args = (x, w, labels, weights, bias, options)
    result = softmax_xent_lib.softmax_xent(*args)
    return result.total / jnp.sum(weights), result

  return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)


def _shard_classes(mesh: Mesh, args):
  tokens = PartitionSpec('replica')
  specs = (tokens, PartitionSpec(None, 'data'), PartitionSpec('data'))
  return tuple(
    jax.device_put(a, NamedSharding(mesh, s))
    for a, s in zip(args, (*specs, tokens, tokens), strict=True)
  )


_NEEDS_NATIVE = pytest.mark.skipif(
  not native.has_kernel('cpu', 'pax_softmax_xent'),
  reason='praxis.kernels._native is not built',
)


@pytest.mark.parametrize(
  ('implementation', 'transposed'),
  [
    pytest.param('native', True, marks=_NEEDS_NATIVE),
    ('reference', False),
    pytest.param('native', False, marks=[_NEEDS_NATIVE, pytest.mark.nightly]),
    *nightly.cases(('reference', True)),
  ],
)
def test_sharded_classes_are_never_gathered(implementation, transposed):
  fields = dict(z_loss_weight=1e-2, transposed=transposed)
  fields['soft_cap'] = 4.0 if transposed else 0.0
  x, w, bias, labels, weights = _operands()
  # All classes of the second of four shards are masked.
  size = _VOCAB // 4
  bias = bias.at[size : 2 * size].set(-jnp.inf)
  labels = jnp.where(labels // size == 1, labels + size, labels)
  args = (x, w, bias, labels.at[1::5].set(-1), weights)
  want = jax.jit(_value_and_grad_by_classes('reference', (), **fields))(*args)
  mesh = _mesh()
  with jax.set_mesh(mesh):
    fn = jax.jit(
      _value_and_grad_by_classes(implementation, ('data',), **fields)
    )
    sharded = _shard_classes(mesh, args)
    compiled = fn.lower(*sharded).compile()
    got = compiled(*sharded)
  gathers = [
    shapes
    for shapes, kind in _COLLECTIVE.findall(compiled.as_text())
    if kind in ('all-gather', 'all-to-all', 'collective-permute')
  ]
  # One candidate of each shard for the argmax of each token.
  assert not any(f'{n}' in s for s in gathers for n in (_DIMS, _VOCAB, size))
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)


def test_classes_that_cannot_be_sharded():
  x, w, _, labels, weights = _operands()

  def xent(w=w, **fields):
    options = softmax_xent_lib.Options(**fields)
    args = (x, w, labels, weights, None, options)
    return softmax_xent_lib.softmax_xent(*args)

  with pytest.raises(ValueError, match='must be axes of the mesh'):
    xent(class_axes=('data',))
  with jax.set_mesh(_mesh()):
    with pytest.raises(ValueError, match='102 classes on 4 shards'):
      xent(w[:, :102], class_axes=('data',))
    with pytest.raises(ValueError, match='does not support label_smoothing'):
      xent(class_axes=('data',), label_smoothing=0.1)
  with jax.set_mesh(_mesh(AxisType.Explicit)):
    with pytest.raises(ValueError, match='axes of type Auto'):
      xent(class_axes=('data',))
