# bazel: size=small
# SPDX-License-Identifier: Apache-2.0
"""State space models: the parallel form and the steps against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import ssm
from tests.praxis.layers import running

_B, _L, _D, _N = 2, 6, 3, 4
_STEP = 0.3
_CACHE = [base_layer.DECODE_CACHE]
_TYPES = ('ss4d-1d', 'ss4d-1d-legs', 'ss4d-1d-lagt')


def _config(cls=ssm.SSM, **kwargs):
  return cls.config(nheads=_N, dim=_D, l_max=8, step_size=_STEP).set(**kwargs)


def _inputs():
  return running.normal(_B, _L, _D)


def _hippo_by_hand(kind):
  """The matrix entry by entry, from the papers."""
  a = np.zeros((_N, _N))
  for n in range(_N):
    for k in range(n + 1):
      if kind == 'LagT':
        a[n, k] = -1
      else:
        a[n, k] = -(n + 1) if n == k else -(((2 * n + 1) * (2 * k + 1)) ** 0.5)
  return a


def _eigenvalues(hippo_type):
  if hippo_type == 'ss4d-1d':
    steps = np.arange(_N) * np.pi * (_N - 1) / _N
    return -0.5 + 1j * (steps - np.pi * (_N - 1) / 2)
  kind = 'LegS' if hippo_type.endswith('legs') else 'LagT'
  a = _hippo_by_hand(kind)
  p = np.sqrt(np.arange(_N) + 0.5) if kind == 'LegS' else np.full(_N, 0.5**0.5)
  values = np.linalg.eigvals(a + np.outer(p, p))
  values = values[np.argsort(values.imag)]
  scale = _N if kind == 'LagT' else 1
  return values.real + 1j * values.imag * scale


def _s4d_by_hand(params, u, hippo_type):
  a = _eigenvalues(hippo_type)
  c = np.asarray(params['C_re'], np.float64) + 1j * np.asarray(params['C_im'])
  decay = np.exp(_STEP * a)
  out = np.zeros(u.shape)
  for b, d in np.ndindex(_B, _D):
    x = np.zeros(_N, complex)
    for t in range(u.shape[1]):
      x = decay * x + (decay - 1) / a * u[b, t, d]
      out[b, t, d] = (c[:, d] @ x).real + params['D'][0, d] * u[b, t, d]
  return out


def _s5_by_hand(params, u, hippo_type, uses_b=False):
  a = _eigenvalues(hippo_type)
  params = {k: np.asarray(v, np.float64) for k, v in params.items()}
  b = params['B_re'] + 1j * params['B_im'] if uses_b else np.ones((_N, _D))
  c = params['C_re'] + 1j * params['C_im']
  decay = np.exp(_STEP * a)
  out = np.zeros(u.shape)
  for row in range(_B):
    x = np.zeros(_N, complex)
    for t in range(u.shape[1]):
      x = decay * x + (decay - 1) / a * (b @ u[row, t])
      out[row, t] = (c @ x).real + params['D'] * u[row, t]
  return out


def _check_decoding(layer, variables, want):
  """Decoding step by step, then several steps, equals the forward pass."""
  _, cache = running.run(layer, variables, _inputs(), mutable=_CACHE)

  @running.jit
  def extend(cache, inputs):
    return layer.apply(
      {**variables, **cache}, inputs, method='extend_step', mutable=_CACHE
    )

  for t in range(3):
    got, cache = extend(cache, _inputs()[:, t])
    np.testing.assert_allclose(got, want[:, t], atol=1e-5)
  got, _ = extend(cache, _inputs()[:, 3:])
  np.testing.assert_allclose(got, want[:, 3:], atol=1e-5)


@pytest.mark.parametrize('hippo_type', _TYPES)
def test_s4d_equals_numpy_and_its_steps(hippo_type):
  config = _config(hippo_type=hippo_type, decode_num_samples=1)
  layer, variables = running.build(config, _inputs())
  assert running.shapes(variables) == {
    'C_re': (_N, _D),
    'C_im': (_N, _D),
    'D': (1, _D),
  }
  want = _s4d_by_hand(variables['params'], np.asarray(_inputs()), hippo_type)
  got = running.run(layer, variables, _inputs())
  np.testing.assert_allclose(got, want, atol=1e-5)
  _check_decoding(layer, variables, want)


@pytest.mark.parametrize(
  'hippo_type, uses_b', [(_TYPES[0], True), (_TYPES[1], False)]
)
def test_s5_equals_numpy_and_its_steps(hippo_type, uses_b):
  config = _config(
    ssm.S5,
    hippo_type=hippo_type,
    uses_input_matrix=uses_b,
    decode_num_samples=1,
  )
  layer, variables = running.build(config, _inputs())
  assert running.shapes(variables) == {
    **dict.fromkeys(('B_re', 'B_im'), (_N, _D)),
    **dict.fromkeys(('C_re', 'C_im'), (_D, _N)),
    'D': (_D,),
  }
  u = np.asarray(_inputs())
  want = _s5_by_hand(variables['params'], u, hippo_type, uses_b)
  got = running.run(layer, variables, _inputs())
  np.testing.assert_allclose(got, want, atol=1e-5)
  _check_decoding(layer, variables, want)


@pytest.mark.parametrize('cls', [ssm.SSM, ssm.S5])
def test_steps_continue_the_forward_pass(cls):
  config = _config(cls, continues_from_forward=True, decode_num_samples=2)
  layer, variables = running.build(config, _inputs())
  reference = _s4d_by_hand if cls is ssm.SSM else _s5_by_hand
  u = np.asarray(_inputs())
  want = reference(variables['params'], u, 'ss4d-1d')
  prefix, rest = _inputs()[:, :4], _inputs()[:, 4:]
  got, cache = running.run(layer, variables, prefix, mutable=_CACHE)
  np.testing.assert_allclose(got, want[:, :4], atol=1e-5)
  # Both samples of an example continue from the stored state.
  got, _ = running.run(
    layer,
    {**variables, **cache},
    jnp.repeat(rest, 2, axis=0),
    method='extend_step',
    mutable=_CACHE,
  )
  np.testing.assert_allclose(got, np.repeat(want[:, 4:], 2, axis=0), atol=1e-5)


@pytest.mark.parametrize('cls', [ssm.SSM, ssm.S5])
def test_gradients_equal_numpy(cls):
  layer, variables = running.build(_config(cls), _inputs())
  at = (variables['params'], _inputs())
  numbers = np.random.default_rng(1)
  direction = jax.tree.map(lambda x: numbers.normal(size=x.shape), at)

  def by_hand(step):
    params, u = jax.tree.map(
      lambda x, d: np.asarray(x, np.float64) + step * d, at, direction
    )
    reference = _s4d_by_hand if cls is ssm.SSM else _s5_by_hand
    return np.sum(np.sin(reference(params, u, 'ss4d-1d')))

  @running.jit
  def gradient(at):
    loss = lambda at: jnp.sum(jnp.sin(layer.apply({'params': at[0]}, at[1])))
    return jax.grad(loss)(at)

  along = jax.tree.map(lambda g, d: np.sum(g * d), gradient(at), direction)
  want = (by_hand(1e-5) - by_hand(-1e-5)) / 2e-5
  np.testing.assert_allclose(sum(jax.tree.leaves(along)), want, rtol=1e-3)


@pytest.mark.parametrize('kind', ['LegS', 'LagT'])
def test_hippo_matrices(kind):
  a = _hippo_by_hand(kind)
  np.testing.assert_allclose(ssm.make_hippo(_N, kind), a)
  got, p, b = ssm.make_nplr_hippo(_N, kind)
  np.testing.assert_allclose(got, a)
  normal = a + np.outer(p, p)
  np.testing.assert_allclose(normal @ normal.T, normal.T @ normal, atol=1e-12)
  values, p_new, b_new, vectors = ssm.make_dplr_hippo(_N, kind)
  if kind == 'LagT':
    values = values.real + 1j * values.imag / _N
  np.testing.assert_allclose(
    vectors @ np.diag(values) @ vectors.conj().T, normal, atol=1e-12
  )
  np.testing.assert_allclose(vectors @ p_new, p, atol=1e-12)
  np.testing.assert_allclose(vectors @ b_new, b, atol=1e-12)
  with pytest.raises(ValueError, match="'LegS' or 'LagT', got 'legs'"):
    ssm.make_hippo(_N, 'legs')


def test_convolution_looks_back_only():
  u, kernel = running.normal(_B, _L, _D), running.normal(8, _D, seed=1)
  want = np.zeros(u.shape)
  for t in range(_L):
    for s in range(t + 1):
      want[:, t] += np.asarray(u[:, s] * kernel[t - s])
  got = running.jit(ssm.causal_convolution)(u, kernel)
  np.testing.assert_allclose(got, want, atol=1e-5)
  with pytest.raises(ValueError, match='at least as long as u, 6, got 5'):
    ssm.causal_convolution(u, kernel[:5])


@pytest.mark.parametrize('cls', [ssm.SSM, ssm.S5])
def test_bfloat16(cls):
  config = _config(cls, fprop_dtype=jnp.bfloat16)
  inputs = _inputs().astype(jnp.bfloat16)
  layer, variables = running.build(config, inputs)
  got = running.run(layer, variables, inputs)
  assert got.dtype == jnp.bfloat16
  reference = _s4d_by_hand if cls is ssm.SSM else _s5_by_hand
  u = np.asarray(inputs, np.float64)
  want = reference(variables['params'], u, 'ss4d-1d')
  np.testing.assert_allclose(got.astype(np.float32), want, rtol=0.01, atol=0.01)


@pytest.mark.parametrize('cls', [ssm.SSM, ssm.S5])
def test_sharding_follows_the_dimensions(cls):
  config = _config(
    cls, ici_mesh_shape=[1, 1, 1], mesh_axis_names=['replica', 'data', 'mdl']
  )
  config.weight_split_dims_mapping.wt = ['data', 'mdl']
  if cls is ssm.SSM:
    config.weight_split_dims_mapping.wt = [None, 'mdl']
  tree = config.Instantiate().abstract_init_with_metadata(_inputs())['params']
  split = lambda name: list(tree[name].tensor_split_dims_mapping)
  if cls is ssm.S5:
    assert split('B_re') == ['data', 'mdl']
    assert split('C_re') == ['mdl', 'data']
    assert split('D') == ['mdl']
  else:
    assert split('C_im') == split('D') == [None, 'mdl']


@pytest.mark.parametrize(
  'kwargs, message',
  [
    ({'nheads': 0}, 'nheads, dim, l_max and step_size > 0'),
    ({'step_size': 0.0}, 'step_size > 0'),
    ({'hippo_type': 'legt'}, "must be 'ss4d-1d'"),
    ({'l_max': 5}, 'at most l_max=5 long, got 6'),
  ],
)
def test_bad_settings(kwargs, message):
  with pytest.raises(ValueError, match=message):
    running.build(_config(**kwargs), _inputs())


def test_states_of_another_batch_are_refused():
  layer, variables = running.build(_config(decode_num_samples=2), _inputs())
  _, cache = running.run(layer, variables, _inputs(), mutable=_CACHE)
  with pytest.raises(ValueError, match='states of 4 examples, got inputs of 2'):
    layer.apply(
      {**variables, **cache},
      _inputs()[:, 0],
      method='extend_step',
      mutable=_CACHE,
    )
