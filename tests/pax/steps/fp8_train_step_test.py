# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Train steps of a language model that multiplies in fp8."""

from __future__ import annotations

import functools
import operator

import jax
import numpy as np
import pytest

from pax.learners import stochastic_gradients
from tests.pax.steps import fp8_training

_TENSORS = ('input', 'kernel', 'output_grad')
_LARGEST = {'input': 448.0, 'kernel': 448.0, 'output_grad': 57344.0}


@pytest.fixture(scope='module')
def delayed():
  optimizer = fp8_training.adam(
    weight_decay=0.5, ema_decay=0.5, clip_gradient_norm_to_value=1e-3
  )
  return fp8_training.train('delayed', optimizer=optimizer)


def test_scales_follow_the_histories_of_every_product(delayed):
  assert np.all(np.isfinite(delayed.losses))
  before, first, second, third = (
    fp8_training.einsum_variables(s.mdl_vars['params']) for s in delayed.states
  )
  # Queries, keys and values; their output; two products of the feed-forward.
  assert len(third) == 4
  for path, op in third.items():
    for tensor in _TENSORS:
      scale, history = f'{tensor}_scale', f'{tensor}_amax_history'
      assert op[scale].shape == (2, 1) and op[history].shape == (2, 1024)
      assert np.all(before[path][scale] == 1.0)
      assert np.all(first[path][scale] == 1.0)
      assert np.all(before[path][history] == 0.0)
      for step, (old, new) in enumerate(((first, second), (second, third))):
        # The largest of all steps before, brought to the range.
        largest = old[path][history].max(-1, keepdims=True)
        assert np.all(largest > 0)
        want = largest / _LARGEST[tensor]
        np.testing.assert_allclose(new[path][scale], want, rtol=1e-6)
        assert np.all((new[path][history] > 0).sum(-1) == step + 2)
      assert len(np.unique(op[history][:, 0])) == 2


def test_the_optimizer_and_its_average_leave_them_alone(delayed):
  text = functools.partial(jax.tree_util.keystr, simple=True, separator='/')
  paths = [
    text(path)
    for path, x in jax.tree_util.tree_leaves_with_path(
      delayed.states[-1].opt_states
    )
    if np.size(x)
  ]
  for kind in ('/m/', '/v/', '/ema/'):
    assert any(kind in path and 'combined_qkv/w' in path for path in paths)
  assert not [path for path in paths if 'einsum' in path]


def test_scales_of_frozen_layers_follow_their_tensors():
  states = fp8_training.train(
    'delayed', frozen='params/lm/transformer/.*'
  ).states
  first, last = (s.mdl_vars['params'] for s in (states[0], states[-1]))
  before, after = (fp8_training.einsum_variables(p) for p in (first, last))
  assert len(after) == 4
  for path, op in after.items():
    layer = functools.reduce(operator.getitem, path.split('/')[:-1], last)
    old = functools.reduce(operator.getitem, path.split('/')[:-1], first)
    np.testing.assert_array_equal(layer['w'], old['w'])
    for tensor in _TENSORS:
      history, scale = f'{tensor}_amax_history', f'{tensor}_scale'
      assert np.all((op[history] > 0).sum(-1) == 3)
      assert np.all(op[scale] != before[path][scale])


def test_private_gradients_need_scales_without_variables():
  gradient = stochastic_gradients.DpSgdStochasticGradient.config(
    l2_norm_clip=0.1, noise_multiplier=0.5
  )
  with pytest.raises(ValueError, match='DpSgdStochasticGradient clips .*amax'):
    fp8_training.train('delayed', gradient=gradient)
  losses = fp8_training.train('current', gradient=gradient, num_steps=1).losses
  assert np.all(np.isfinite(losses))
