# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Adam's update in one pass: the kernel against jnp, numpy and optax."""

from __future__ import annotations

import functools
import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads

from praxis import optimizers, py_utils
from praxis.kernels import adam, native

pytestmark = pytest.mark.skipif(
  not native.has_kernel('cpu', adam.KERNEL)
  or native.cpu_isa() not in ('avx2', 'avx512'),
  reason='praxis.kernels._native is not built, or not for this processor',
)

_SPEC = adam.Spec(epsilon=1e-6, epsilon_root=1e-8)
_BETAS = jnp.float32(0.9), jnp.float32(0.99)
_COLLECTIVE = re.compile(r' (all-\w+|collective-permute|reduce-scatter)')


def _operands(*shape):
  """Returns gradient, m and v."""
  rng = np.random.default_rng(0)
  gradient, m, v = (jnp.asarray(rng.normal(size=shape), 'f') for _ in range(3))
  return gradient, m, v * v


def _jit(fn, spec=_SPEC, axes=None):
  """Returns `adam.update` or `adam.reference`, jitted, or vmapped over axes."""
  run = functools.partial(fn, spec=spec)
  if fn is adam.update:
    # Custom derivatives take the formula by position.
    run = lambda *args: adam.update(*args, spec)
  return jax.jit(run if axes is None else jax.vmap(run, axes))


def _assert_same(got, want):
  """Asserts that the moments and steps differ by rounding only."""
  for a, b in zip(got, want, strict=True):
    np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7)


def _has_kernel(fn, *args) -> bool:
  return adam.KERNEL in jax.jit(fn).lower(*args).as_text()


@pytest.mark.parametrize('dims', [(), (0,), (1,), (7,), (33, 5), (3, 0, 2)])
def test_equals_numpy(dims):
  gradient, m, v = _operands(*dims)
  got = _jit(adam.update)(gradient, m, v, *_BETAS)
  gradient, m, v = (np.asarray(x, np.float64) for x in (gradient, m, v))
  m = 0.9 * m + 0.1 * gradient
  v = 0.99 * v + 0.01 * gradient**2
  _assert_same(got, (m / (np.sqrt(v + 1e-8) + 1e-6), m, v))


@pytest.mark.optimized
@pytest.mark.parametrize('inf_to_nan', [True, False])
@pytest.mark.parametrize('which', range(3))
def test_special_values_are_those_of_the_reference(which, inf_to_nan):
  special = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40, 1e-20, 3e38, -3e38]
  operands = list(_operands(9 * 7))
  operands[which] = jnp.asarray(special * 7, jnp.float32)
  spec = adam.Spec(epsilon=1e-6, inf_to_nan=inf_to_nan)
  got, want = (
    _jit(fn, spec)(*operands, *_BETAS) for fn in (adam.update, adam.reference)
  )
  for a, b in zip(got, want, strict=True):
    np.testing.assert_allclose(a, b, rtol=5e-7, atol=1e-44)
  assert np.isinf(got[1]).any() == (which == 1 or which == 0 and not inf_to_nan)


def test_large_arrays_are_updated_in_place():
  operands = _operands(2**21 + 3)
  want = _jit(adam.reference)(*operands, *_BETAS)
  run = jax.jit(
    lambda *args: adam.update(*args, _SPEC), donate_argnums=(0, 1, 2)
  )
  program = run.lower(*operands, *_BETAS).compile()
  assert not re.search(r'f32\[\d{4,}\]\S* copy\(', program.as_text())
  pointers = {x.unsafe_buffer_pointer() for x in operands}
  got = program(*operands, *_BETAS)
  assert {x.unsafe_buffer_pointer() for x in got} == pointers
  _assert_same(got, want)


def test_operands_that_are_used_again_keep_their_values():
  operands = _operands(2**16)

  @jax.jit
  def run(*args):
    return adam.update(*args, *_BETAS, _SPEC), args

  got, unchanged = run(*operands)
  _assert_same(got, _jit(adam.reference)(*operands, *_BETAS))
  jax.tree.map(np.testing.assert_array_equal, unchanged, operands)


@pytest.mark.parametrize('axes', [(0, 0, 0, 0, 0), (1, 0, 1, None, 0)])
def test_stacked_layers_are_one_call(axes):
  operands = *_operands(4, 4, 30), *(jnp.linspace(0.1, 0.9, 4),) * 2
  if axes[3] is None:
    operands = *operands[:3], _BETAS[0], operands[4]
  run = _jit(adam.update, axes=axes)
  text = run.lower(*operands).as_text()
  assert text.count(f'custom_call @{adam.KERNEL}') == 1 and 'while' not in text
  _assert_same(run(*operands), _jit(adam.reference, axes=axes)(*operands))


def test_vmap_of_vmap():
  operands = *_operands(2, 3, 8, 5), *(jnp.linspace(0.1, 0.9, 6),) * 2
  operands = *operands[:3], *(b.reshape(2, 3) for b in operands[3:])
  got, want = (
    jax.jit(jax.vmap(_jit(fn, axes=0)))(*operands)
    for fn in (adam.update, adam.reference)
  )
  _assert_same(got, want)


def test_derivatives_are_those_of_the_reference():
  operands = *_operands(12), *_BETAS
  tangents = jax.tree.map(jnp.cos, operands)
  got, want = (
    jax.jvp(_jit(fn), operands, tangents)
    for fn in (adam.update, adam.reference)
  )
  jax.tree.map(np.testing.assert_array_equal, got, want)
  smooth = adam.Spec(epsilon=0.1, epsilon_root=0.1)
  check_grads(_jit(adam.update, smooth), operands, order=1, rtol=0.02)


@pytest.mark.parametrize(
  'spec', [('a', 'b'), (('a', 'b'),), (None, 'a'), ()], ids=str
)
def test_any_sharding_needs_no_collective(spec):
  mesh = jax.make_mesh((2, 4), ('a', 'b'), axis_types=(AxisType.Auto,) * 2)
  sharding = NamedSharding(mesh, PartitionSpec(*spec))
  operands = _operands(64, 24)
  sharded = jax.device_put(operands, sharding)
  program = _jit(adam.update).lower(*sharded, *_BETAS).compile()
  text = program.as_text()
  assert adam.KERNEL in text and not _COLLECTIVE.findall(text)
  got = program(*sharded, *_BETAS)
  assert all(x.sharding.is_equivalent_to(sharding, 2) for x in got)
  _assert_same(got, _jit(adam.reference)(*operands, *_BETAS))


def test_sharded_stacked_layers_need_no_collective():
  mesh = jax.make_mesh((2, 4), ('a', 'b'), axis_types=(AxisType.Auto,) * 2)
  sharding = NamedSharding(mesh, PartitionSpec('a', None, 'b'))
  operands = _operands(4, 6, 24)
  betas = (jnp.linspace(0.1, 0.9, 4),) * 2
  sharded = jax.device_put(operands, sharding)
  program = _jit(adam.update, axes=0).lower(*sharded, *betas).compile()
  assert not _COLLECTIVE.findall(program.as_text())
  want = _jit(adam.reference, axes=0)(*operands, *betas)
  _assert_same(program(*sharded, *betas), want)


# ---- the optimizer ----------------------------------------------------------


def _transform(**fields):
  hyperparams = optimizers.AdamHyperparams(
    beta1=0.9, beta2=0.99, epsilon=1e-6, **fields
  )
  return optimizers.adam_transform(
    lambda step: 0.1 / (1.0 + step.astype(jnp.float32)), hyperparams
  )


def _train(tx, steps=3, **fields):
  """Returns the variables and the state after some steps."""
  params = {
    'large': jnp.ones((256, 256), **fields),
    'small': jnp.ones((3,), **fields),
  }
  state = tx.init(params)

  @jax.jit
  def step(params, state):
    grads = jax.tree.map(
      lambda x: (
        x * jnp.cos(jnp.arange(x.size)).reshape(x.shape).astype(x.dtype)
      ),
      params,
    )
    updates, state = tx.update(grads, state, params)
    return jax.tree.map(jnp.add, params, updates), state

  for _ in range(steps):
    params, state = step(params, state)
  return params, state


@pytest.mark.parametrize('weight_decay', [0.0, 0.1])
@pytest.mark.parametrize('clip_threshold', [0.0, 0.5])
def test_optimizer_is_the_same_without_the_kernel(clip_threshold, weight_decay):
  tx = _transform(clip_threshold=clip_threshold, weight_decay=weight_decay)
  got = _train(tx)
  with mock.patch.object(adam, 'is_fast', return_value=False):
    want = _train(tx)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=2e-6, atol=1e-6),
    got,
    want,
  )


def test_optimizer_is_optax_adam():
  theirs = optax.chain(
    optax.scale_by_adam(b1=0.9, b2=0.99, eps=1e-6),
    optax.scale_by_learning_rate(
      lambda step: 0.1 / (1.0 + step.astype(jnp.float32))
    ),
  )
  got, want = _train(_transform())[0], _train(theirs)[0]
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=2e-6, atol=2e-6),
    got,
    want,
  )


def test_optimizer_of_no_variables():
  tx = _transform()
  assert tx.update({}, tx.init({}), {})[0] == {}


def test_two_runs_have_the_same_bits():
  first, second = _train(_transform()), _train(_transform())
  jax.tree.map(np.testing.assert_array_equal, first, second)


def _optimizer_has_kernel(shape, dtype=jnp.float32) -> bool:
  tx = _transform()
  grads = jnp.ones(shape, dtype)
  return _has_kernel(tx.update, grads, tx.init(grads), grads)


def test_optimizer_has_a_kernel_where_it_is_fast():
  assert _optimizer_has_kernel((256, 256))
  assert not _optimizer_has_kernel((255, 256))
  assert not _optimizer_has_kernel((256, 256), jnp.bfloat16)
  with py_utils.tracing_for('tpu'):
    assert not _optimizer_has_kernel((256, 256))
  mesh = jax.make_mesh((2,), ('data',), axis_types=(AxisType.Auto,))
  with jax.set_mesh(mesh):
    assert not _optimizer_has_kernel((256, 256))


def test_optimizer_has_a_kernel_inside_shard_map():
  mesh = jax.make_mesh((2,), ('data',), axis_types=(AxisType.Auto,))
  tx = _transform()
  grads = jnp.cos(jnp.arange(2.0**17))
  state = tx.init(grads)
  specs = (
    PartitionSpec('data'),
    py_utils.NestedMap(
      count=PartitionSpec(), m=PartitionSpec('data'), v=PartitionSpec('data')
    ),
  )
  mapped = jax.jit(
    jax.shard_map(
      lambda grads, state: tx.update(grads, state),
      mesh=mesh,
      in_specs=specs,
      out_specs=specs,
      check_vma=False,
    )
  )
  assert _has_kernel(mapped, grads, state)
  got, want = mapped(grads, state), jax.jit(tx.update)(grads, state)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=2e-6, atol=1e-7),
    got,
    want,
  )


def test_one_device_needs_no_callback_at_compile_time():
  # Its address would be in the key of the persistent compilation cache.
  text = _jit(adam.update).lower(*_operands(8), *_BETAS).as_text()
  assert adam.KERNEL in text and 'CustomSPMDPartitioning' not in text


def test_other_platforms_have_no_kernel():
  traced = _jit(adam.update).trace(*_operands(8), *_BETAS)
  assert adam.KERNEL in traced.lower(lowering_platforms=('cpu',)).as_text()
  assert adam.KERNEL not in traced.lower(lowering_platforms=('tpu',)).as_text()


def test_shapes_that_do_not_fit_are_errors():
  gradient, m, v = _operands(4, 6)
  shape = jax.ShapeDtypeStruct((4, 6), jnp.float32)
  fields = dict(
    epsilon=np.float32(1), epsilon_root=np.float32(0), inf_to_nan=True
  )

  def call(*args, results=(shape,) * 3):
    return jax.block_until_ready(
      jax.ffi.ffi_call(adam.KERNEL, results)(*args, **fields)
    )

  rows = jnp.ones(4)
  call(gradient, m, v, rows, rows)
  flat = jax.ShapeDtypeStruct((24,), jnp.float32)
  for name, args, results in [
    ('m', (gradient, m[:3], v, rows, rows), (shape,) * 3),
    ('v', (gradient, m, v.T, rows, rows), (shape,) * 3),
    ('beta1', (gradient, m, v, rows[:3], rows), (shape,) * 3),
    ('beta1', (gradient, m, v, jnp.ones((4, 6, 1)), rows), (shape,) * 3),
    ('beta2', (gradient, m, v, rows, rows[0]), (shape,) * 3),
    ('step', (gradient, m, v, rows, rows), (flat, shape, shape)),
  ]:
    with pytest.raises(jax.errors.JaxRuntimeError, match=f'adam: {name} must'):
      call(*args, results=results)
