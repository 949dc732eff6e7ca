# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Convolution blocks for images and for padded sequences, against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import activations, convolutions, normalizations
from tests.praxis.layers.running import build, jit, normal, run

_PADDINGS = jnp.asarray([[0.0, 0, 0, 0, 0], [0, 0, 0, 1, 1]])
_MUTABLE = [base_layer.NON_TRAINABLE]


def _pointwise(x, w, stride=1):
  kernel = np.asarray(w, np.float64)[0, 0]
  return np.asarray(x, np.float64)[:, ::stride] @ kernel


def _normed(x, params):
  axes = tuple(range(x.ndim - 1))
  x = (x - x.mean(axes)) / np.sqrt(x.var(axes) + 1e-3)
  return x * (1 + np.asarray(params['gamma'])) + np.asarray(params['beta'])


def test_convolution_is_normalized_and_activated():
  x = normal(2, 4, 3, 2)
  cfg = convolutions.ConvBNAct.config(
    filter_shape=(1, 1, 2, 4), filter_stride=(1, 1)
  )
  layer, variables = build(cfg, x)
  params = variables['params']
  assert set(params) == {'w', 'bn'}
  got, updated = run(layer, variables, x, mutable=_MUTABLE)
  want = np.maximum(_normed(_pointwise(x, params['w']), params['bn']), 0)
  np.testing.assert_allclose(got, want, atol=1e-4)
  mean = _pointwise(x, params['w']).mean((0, 1, 2))
  old = np.asarray(variables['non_trainable']['bn']['moving_mean'])
  np.testing.assert_allclose(
    updated['non_trainable']['bn']['moving_mean'],
    0.999 * old + 0.001 * mean,
    atol=1e-5,
  )


def test_gradient_goes_through_the_moments():
  x = normal(2, 2, 2, 2)
  cfg = convolutions.ConvBNAct.config(
    filter_shape=(1, 1, 2, 2),
    filter_stride=(1, 1),
    activation_tpl=pax_fiddle.Config(activations.Tanh),
  )
  layer, variables = build(cfg, x)
  exact = lambda p: np.asarray(p, np.float64)
  params = jax.tree.map(exact, variables['params'])
  mark = np.asarray(normal(2, 2, 2, 2, seed=2), np.float64)
  loss = lambda w: np.sum(
    np.tanh(_normed(_pointwise(x, w), params['bn'])) * mark
  )

  @jit
  def grad(variables):
    return jax.grad(
      lambda v: jnp.sum(layer.apply(v, x, mutable=_MUTABLE)[0] * mark)
    )(variables)

  got = grad(variables)['params']['w']
  for at in np.ndindex(got.shape):
    step = np.zeros(got.shape)
    step[at] = 1e-5
    want = (loss(params['w'] + step) - loss(params['w'] - step)) / 2e-5
    np.testing.assert_allclose(got[at], want, rtol=1e-3, atol=1e-3)


def test_norm_and_activation_can_be_left_out_or_replaced():
  x = normal(2, 4, 3, 2)
  shape = {'filter_shape': (1, 1, 2, 4), 'filter_stride': (1, 1)}
  plain = convolutions.ConvBNAct.config(
    batch_norm_tpl=None, activation_tpl=None, **shape
  )
  layer, variables = build(plain, x)
  want = _pointwise(x, variables['params']['w'])
  np.testing.assert_allclose(run(layer, variables, x), want, atol=1e-5)
  other = convolutions.ConvBNAct.config(
    batch_norm_tpl=pax_fiddle.Config(normalizations.LayerNorm), **shape
  )
  _, variables = build(other, x)
  assert set(variables['params']['bn']) == {'scale', 'bias'}


def _with_padding(x, paddings, do_eval=True, **fields):
  fields = {'filter_shape': (1, 1, 2, 4), 'filter_stride': (1, 1)} | fields
  cfg = convolutions.ConvBNActWithPadding.config(batch_norm_tpl=None, **fields)
  layer, variables = build(cfg, x, paddings)
  y, out_paddings = run(layer, variables, x, paddings, do_eval=do_eval)
  return y, out_paddings, variables['params']


def test_padded_inputs_count_as_zero():
  x = normal(2, 5, 3, 2)
  y, paddings, params = _with_padding(x, _PADDINGS)
  np.testing.assert_array_equal(paddings, _PADDINGS)
  masked = np.asarray(x) * (1 - np.asarray(_PADDINGS))[:, :, None, None]
  want = np.maximum(_pointwise(masked, params['w']), 0)
  np.testing.assert_allclose(y, want, atol=1e-5)


# (fields, output paddings of the second example: 3 of 5 frames are valid)
_OUT_PADDINGS = {
  'stride': ({'filter_stride': (2, 2)}, [0, 0, 1]),
  'tf': ({'filter_stride': (3, 1), 'tf_equivalent_padding': True}, [0, 1]),
  # The last frames of the strides: 1, 3 and none.
  'lingvo': (
    {'filter_stride': (2, 2), 'compat_with_lingvo': True},
    [0, 1, 1],
  ),
  # Receptive fields 0-1, 1-2, 2-3, 3-4: only the last is all padding.
  'valid': (
    {'filter_shape': (2, 1, 2, 4), 'padding': 'VALID'},
    [0, 0, 0, 1],
  ),
  # Receptive fields of frames 0 and 2, 1 and 3, 2 and 4.
  'dilated': (
    {
      'filter_shape': (2, 1, 2, 4),
      'dilations': (2, 1),
      'padding': 'VALID',
    },
    [0, 0, 0],
  ),
}


@pytest.mark.parametrize('case', _OUT_PADDINGS)
def test_out_paddings(case):
  fields, want = _OUT_PADDINGS[case]
  y, paddings, _ = _with_padding(normal(2, 5, 3, 2) + 5.0, _PADDINGS, **fields)
  np.testing.assert_array_equal(paddings[1], want)
  assert y.shape[1] == len(want)
  np.testing.assert_array_equal(y[1, np.asarray(want) == 1], 0)


def test_lingvo_padding_has_no_dilation():
  with pytest.raises(ValueError, match='needs dilations'):
    _with_padding(
      normal(2, 5, 3, 2), _PADDINGS, dilations=(2, 1), compat_with_lingvo=True
    )
