# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The repeated layer: loops, reports, caches and further arguments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import repeats
from tests.praxis.layers import running

_D, _L = 3, 6
_CACHE = [base_layer.DECODE_CACHE]
_REPORTS = [base_layer.SUMMARIES, base_layer.AUX_LOSS]


class _Step(base_layer.BaseLayer):
  """tanh(x w + shift + offset); reports, and counts decoding steps."""

  def setup(self):
    self.create_variable('w', base_layer.WeightHParams(shape=[_D, _D]))

  def __call__(self, x, shift=0.0, offset=0.0):
    y = jnp.tanh(x @ self.theta.w + shift + offset)
    self.add_summary('mean', lambda: jnp.mean(y))
    self.add_aux_loss('sum', jnp.sum(y), 2.0)
    self.update_decode_state('last', x)
    return y

  def extend_step(self, x, *, factor):
    last = self.get_decode_state('last')
    self.update_decode_state('last', factor * x)
    return self(x) + last

  def transform_decode_state(self, fn):
    last = self.get_decode_state('last')
    self.update_decode_state('last', fn(last, 0, -1))

  def pair(self, x, y):
    return y, jnp.tanh(x @ self.theta.w)


def _config(**kwargs):
  return repeats.Repeat.config(
    sub_tpl=pax_fiddle.Config(_Step), x_times=_L, **kwargs
  )


def _x():
  return running.normal(2, _D)


def _weights(variables):
  return np.asarray(variables['params']['sub']['w']).reshape(_L, _D, _D)


_SHAPES = {'flat': {}, 'nested': {'nd_prefix_shape': [2, 3]}}


@pytest.mark.parametrize('name', _SHAPES)
def test_further_arguments(name):
  layer, variables = running.build(_config(**_SHAPES[name]), _x())
  offsets = np.arange(_L * _D).reshape(_L, _D) / 20
  shift = np.full((2, 1), 0.3)
  for kwargs, order in [
    ({'per_layer_kwargs': {'offset': jnp.asarray(offsets)}}, offsets),
    (
      {'reversed_per_layer_kwargs': {'offset': jnp.asarray(offsets)}},
      offsets[::-1],
    ),
  ]:
    want = np.asarray(_x())
    for w, offset in zip(_weights(variables), order, strict=True):
      want = np.tanh(want @ w + shift + offset)
    got = running.run(layer, variables, _x(), jnp.asarray(shift), **kwargs)
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize('name', _SHAPES)
@pytest.mark.parametrize('unpack', [False, True])
def test_reports(name, unpack):
  config = _config(unpack_summaries=unpack, **_SHAPES[name])
  layer, variables = running.build(config, _x())
  out, reports = running.run(layer, variables, _x(), mutable=_REPORTS)
  means, losses, x = [], [], np.asarray(_x())
  for w in _weights(variables):
    x = np.tanh(x @ w)
    means.append(x.mean())
    losses.append(x.sum())
  np.testing.assert_allclose(out, x, atol=1e-5)
  summaries, aux = (reports[c]['sub'] for c in _REPORTS)
  if unpack:
    got_means = summaries['mean_scalar']
    assert isinstance(got_means, list)
    assert [mean.shape for mean in got_means] == [(1,)] * _L
    got_means = jnp.concatenate(got_means)
  else:
    got_means = summaries['mean_scalar']
  np.testing.assert_allclose(got_means, means, atol=1e-5)
  np.testing.assert_allclose(aux['sum'].value, sum(losses), atol=1e-4)
  assert aux['sum'].weight == 2.0 * _L


def test_auxiliary_losses_of_two_calls_are_added():
  layer, variables = running.build(_config(), _x())
  twice = lambda layer, x: layer(layer(x))
  _, once = running.run(layer, variables, _x(), mutable=_REPORTS[1:])
  _, both = running.run(
    layer, variables, _x(), method=twice, mutable=_REPORTS[1:]
  )
  got, first = (x[base_layer.AUX_LOSS]['sub']['sum'] for x in (both, once))
  assert got.weight == 2 * first.weight == 4.0 * _L
  assert got.value != first.value


def test_unrolled_decoding_adds_the_same_summaries():
  """As a scan: lists of summaries, sums of auxiliary losses."""
  mutable = [*_REPORTS, *_CACHE]
  scan = _config(unpack_summaries=True)
  layer, variables = running.build(scan, _x())
  _, want = running.run(layer, variables, _x(), mutable=mutable)
  unrolled = scan.clone().set(unroll_in_decode=True, name='unrolled')
  _, got = running.run(unrolled.Instantiate(), variables, _x(), mutable=mutable)
  for name in _REPORTS:
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
      got[name],
      want[name],
    )


@pytest.mark.parametrize(
  'kwargs',
  [{}, {'unroll_in_decode': True}, {'nd_prefix_shape': [2, 3]}],
)
def test_decoding(kwargs):
  layer, variables = running.build(_config(**kwargs), _x())
  _, cache = running.run(layer, variables, _x(), mutable=_CACHE)
  _, cache = running.run(
    layer,
    {**variables, **cache},
    mutable=_CACHE,
    method=lambda layer: layer.transform_decode_state(lambda x, b, t: 2 * x),
  )
  got, cache = running.run(
    layer,
    {**variables, **cache},
    _x(),
    factor=jnp.float32(3),
    method='extend_step',
    mutable=_CACHE,
  )
  lasts, x = [], np.asarray(_x())
  for w in _weights(variables):
    lasts.append(2 * x)
    x = np.tanh(x @ w)
  y = np.asarray(_x())
  for w, last in zip(_weights(variables), lasts, strict=True):
    y = np.tanh(y @ w) + last
  np.testing.assert_allclose(got, y, atol=1e-4)
  states = cache[base_layer.DECODE_CACHE]['sub']
  if kwargs.get('unroll_in_decode'):
    assert states['layer5']['last'].shape == (2, _D)
  else:
    assert states['last'].size == _L * 2 * _D


def test_intermediate_outputs():
  config = _config(collect_intermediate_outputs=True)
  layer, variables = running.build(config, _x())
  out, sown = running.run(
    layer, variables, _x(), mutable=[base_layer.INTERMEDIATES]
  )
  (collected,) = sown[base_layer.INTERMEDIATES]['repeat_intermediates']
  assert collected.shape == (_L, 2, _D)
  np.testing.assert_array_equal(collected[-1], out)
  config = _config(return_intermediate_outputs=True)
  layer, _ = running.build(config, _x())
  returned = running.run(layer, variables, _x())
  np.testing.assert_array_equal(returned, collected)


def test_all_positional_arguments_as_carry():
  config = _config(positional_args_as_scan_carry=True)
  layer, variables = running.build(config, _x(), _x(), method_name='pair')
  a, b = _x(), _x() + 1
  got = running.jit(
    lambda a, b: layer.apply(variables, a, b, method_name='pair')
  )(a, b)
  a, b = np.asarray(a), np.asarray(b)
  for w in _weights(variables):
    a, b = b, np.tanh(a @ w)
  np.testing.assert_allclose(got[0], a, atol=1e-5)
  np.testing.assert_allclose(got[1], b, atol=1e-5)


def test_remat_recomputes_by_policy():
  def num_tanh(policy):
    config = _config(checkpoint_policy=policy, name='layer')
    layer = config.Instantiate()
    variables = {'params': {'sub': {'w': jnp.ones((_L, _D, _D))}}}
    gradient = jax.grad(lambda x: layer.apply(variables, x).sum())
    return str(jax.make_jaxpr(gradient)(_x())).count('= tanh ')

  kinds = repeats.AutodiffCheckpointType
  assert num_tanh(kinds.SAVE_EVERYTHING) == 1
  assert num_tanh(kinds.SAVE_NOTHING) == 2


@pytest.mark.parametrize(
  'kwargs, message',
  [
    ({'x_times': 0}, 'x_times >= 1, got x_times=0'),
    ({'sub_tpl': None}, 'needs sub_tpl'),
    ({'nd_prefix_shape': [2, 2]}, r'must be x_times=6, got \[2, 2\]'),
    ({'optimizer_dims_mapping': ['data', None]}, 'entry for each leading'),
  ],
)
def test_impossible_repeats_are_refused(kwargs, message):
  with pytest.raises(ValueError, match=message):
    running.build(_config().set(**kwargs), _x())
