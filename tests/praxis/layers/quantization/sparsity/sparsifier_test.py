# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Layers that prune their weights while they train."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import pipeline, quantization
from praxis.layers.quantization import quantization_hparams
from praxis.layers.quantization.sparsity import (
  sparsifier,
  sparsity,
  sparsity_hparams,
  sparsity_modes,
)
from tests.praxis.layers import running
from tests.testing import nightly

_X = running.normal(3, 8)
_HP = sparsity_hparams.SparsityHParams
_Weight = sparsity_hparams.WeightSparsityParams
_NON_TRAINABLE = base_layer.NON_TRAINABLE


def _linear(hparams, **fields):
  fields.setdefault('quantization', None)
  layer = quantization.Linear.config(
    name='l', input_dims=8, output_dims=4, sparsity=hparams, **fields
  ).Instantiate()
  return layer, running.jit(layer.init)(jax.random.key(0), _X)


def _train(layer, variables, steps):
  """Returns the outputs and masks of steps that do not change the weights."""
  step = running.jit(lambda v: layer.apply(v, _X, mutable=[_NON_TRAINABLE]))
  outputs, masks = [], []
  for _ in range(steps):
    y, new = step(variables)
    variables = {**variables, **new}
    outputs.append(y)
    masks.append(np.asarray(variables[_NON_TRAINABLE]['w_sparsity_mask']))
  return outputs, masks, variables


def test_a_mask_is_there_from_a_step_on():
  mode = sparsity_modes.TrainingMode(target_step=1)
  hparams = _HP(weight_params=_Weight(prune_rate=(2, 4)), mode=mode)
  hparams.track_sad_metric = True
  layer, variables = _linear(hparams)
  outputs, masks, variables = _train(layer, variables, 3)
  w = np.asarray(variables['params']['w'])
  want = sparsity.get_sparsity_mask(jnp.asarray(w), 2, 4, order='C')
  want = np.asarray(want)
  for mask, expected in zip(
    masks, (np.ones_like(want), want, want), strict=True
  ):
    np.testing.assert_array_equal(mask, expected)
  np.testing.assert_allclose(outputs[0], _X @ w, atol=1e-5)
  np.testing.assert_allclose(outputs[2], _X @ (w * want), atol=1e-5)
  counters = variables[_NON_TRAINABLE]
  assert (counters['step'], counters['mask_update_count']) == (3, 2)
  assert counters['sparse_architecture_divergence'] == 0.0


@pytest.mark.parametrize(
  ('mode', 'changes'),
  [
    (sparsity_modes.OneShotMode(target_step=1), [0, 1, 1, 1]),
    (sparsity_modes.MaterializeMode(), [0, 0, 0, 0]),
    (
      sparsity_modes.FewShotMode(
        num_shots=2, target_step=0, mask_update_interval=2
      ),
      [1, 1, 2, 2],
    ),
  ],
)
def test_modes_say_when(mode, changes):
  layer, variables = _linear(
    _HP(weight_params=_Weight(prune_rate=(1, 2)), mode=mode)
  )
  assert variables[_NON_TRAINABLE]['num_shots'] == mode.get_num_shots()
  step = running.jit(lambda v: layer.apply(v, _X, mutable=[_NON_TRAINABLE]))
  for want in changes:
    variables = {**variables, **step(variables)[1]}
    assert variables[_NON_TRAINABLE]['mask_update_count'] == want


def test_both_factors_of_a_low_rank_layer_are_pruned_at_once():
  mode = sparsity_modes.OneShotMode(target_step=1)
  layer, variables = _linear(
    _HP(weight_params=_Weight(prune_rate=(1, 2)), mode=mode), rank=4
  )
  step = running.jit(lambda v: layer.apply(v, _X, mutable=[_NON_TRAINABLE]))
  for done, kept in ((0, 1.0), (1, 0.5), (1, 0.5)):
    variables = {**variables, **step(variables)[1]}
    state = variables[_NON_TRAINABLE]
    assert state['mask_update_count'] == done
    assert np.mean(state['w_a_sparsity_mask']) == kept
    assert np.mean(state['w_b_sparsity_mask']) == kept
  assert state['step'] == 3


def test_a_percentage_grows_and_what_is_pruned_stays():
  hparams = _HP(
    sparsity_type=sparsity_hparams.SparsityType.UNSTRUCTURED,
    weight_params=_Weight(prune_rate=None),
    mode=sparsity_modes.TrainingMode(),
    polynomial_decay_schedule=sparsity_hparams.PolynomialDecayParams(
      initial_sparsity=0.0, final_sparsity=50.0, end_step=2, exponent=1.0
    ),
  )
  _, masks, _ = _train(*_linear(hparams), 4)
  assert [m.sum() for m in masks] == [32, 24, 16, 16]
  assert not np.any(masks[2] & ~masks[1])


@pytest.mark.parametrize(
  ('repeats', 'share_weights'),
  [(2, False), (2, True), *nightly.cases((1, False))],
)
def test_a_pipeline_counts_train_steps_not_microbatches(repeats, share_weights):
  stage = quantization.Linear.config(
    input_dims=8,
    output_dims=8,
    quantization=None,
    sparsity=_HP(
      weight_params=_Weight(prune_rate=(1, 2)),
      mode=sparsity_modes.FewShotMode(
        num_shots=2, target_step=1, mask_update_interval=2
      ),
    ),
  )
  cls, fields = pipeline.LayerwiseShardablePipelined, {}
  if repeats > 1:
    cls = pipeline.CircularLayerwiseShardablePipelined
    fields = {'circular_repeat': repeats, 'share_weights': share_weights}
  config = cls.config(
    name='p',
    num_stages=2,
    num_microbatches=4,
    single_stage_body=stage,
    **fields,
  )
  layer, x = config.Instantiate(), running.normal(8, 8)
  variables = running.jit(layer.init)(jax.random.key(0), x)
  step = running.jit(lambda v: layer.apply(v, x, mutable=[_NON_TRAINABLE]))
  for number, updates in enumerate([0, 1, 1, 2], start=1):
    variables = {**variables, **step(variables)[1]}
    state = variables[_NON_TRAINABLE]['body']
    np.testing.assert_array_equal(state['step'], number)
    np.testing.assert_array_equal(state['mask_update_count'], updates)
    assert np.mean(state['w_sparsity_mask']) == (0.5 if updates else 1.0)


def test_pruned_weights_are_pulled_to_zero():
  w, mask = running.normal(4, 2), jnp.array([[True, False]] * 4)
  out, vjp = jax.vjp(lambda w: sparsifier.sr_ste(w, mask, 0.5)[0], w)
  np.testing.assert_allclose(out, np.where(mask, w, 0))
  (grad,) = vjp(jnp.ones_like(out))
  np.testing.assert_allclose(grad, 1 + np.where(mask, 0, 0.5 * w), rtol=1e-6)


def test_pruned_weights_can_have_a_value_that_is_learned():
  params = _Weight(
    prune_rate=(1, 2), pruned_value=0.5, pruned_value_trainable=True
  )
  layer, variables = _linear(
    _HP(weight_params=params, mode=sparsity_modes.TrainingMode())
  )
  outputs, masks, variables = _train(layer, variables, 1)
  w = np.asarray(variables['params']['w'])
  want = _X @ np.where(masks[0], w, 0.5)
  np.testing.assert_allclose(outputs[0], want, atol=1e-5)
  assert variables['params']['w_sparsity_mask_pruned_value'] == 0.5


@pytest.mark.parametrize('kind', ['BINARY_MASK', 'PROB_MASK'])
def test_masks_can_be_learned(kind):
  hparams = _HP(
    weight_params=_Weight(prune_rate=(1, 2)),
    mode=sparsity_modes.TrainingMode(),
    topk_estimator_type=kind,
  )
  layer, variables = _linear(hparams)

  @running.jit
  def run(params):
    apply = lambda p: layer.apply({**variables, 'params': p}, _X)
    y, vjp = jax.vjp(apply, params)
    return y, vjp(jnp.ones_like(y))[0]

  y, grads = run(variables['params'])
  p = jax.tree.map(np.asarray, variables['params'])
  pairs = p['w_mask'].reshape(-1, 2)
  mask = (pairs == pairs.max(-1, keepdims=True)).reshape(8, 4)
  np.testing.assert_allclose(y, _X @ (p['w'] * mask), atol=1e-5)
  if kind == 'BINARY_MASK':
    want = p['w'] * np.asarray(_X).sum(0)[:, None]
    np.testing.assert_allclose(grads['w_mask'], want, atol=1e-5)


def test_a_sparse_layer_is_materialized_without_masks():
  params = quantization_hparams.QuantizationParams(
    mode=quantization_hparams.QuantizationMode.MATERIALIZE
  )
  hparams = _HP(
    weight_params=_Weight(prune_rate=(1, 4)),
    mode=sparsity_modes.TrainingMode(),
  )
  layer, variables = _linear(hparams, quantization=params)
  _, masks, variables = _train(layer, variables, 1)
  quantize = lambda v: layer.apply(v, method=layer.quantize_weight)
  tree = running.jit(quantize)(variables)
  assert set(tree) == {'params'}
  assert set(tree['params']) == {'w', 'w_quantized_scale'}
  np.testing.assert_array_equal(np.asarray(tree['params']['w'])[~masks[0]], 0)
  assert np.all(np.asarray(tree['params']['w'])[masks[0]] != 0)


def test_nothing_is_pruned_before_the_schedule_begins():
  hparams = _HP(
    sparsity_type=sparsity_hparams.SparsityType.UNSTRUCTURED,
    weight_params=_Weight(prune_rate=None),
    mode=sparsity_modes.TrainingMode(),
    polynomial_decay_schedule=sparsity_hparams.PolynomialDecayParams(
      initial_sparsity=25.0, final_sparsity=50.0, begin_step=2, end_step=3
    ),
  )
  _, masks, _ = _train(*_linear(hparams), 4)
  assert [m.sum() for m in masks] == [32, 32, 24, 16]


def test_what_does_not_fit_is_refused():
  with pytest.raises(ValueError, match='end_step must be greater than'):
    sparsity_hparams.PolynomialDecayParams(begin_step=5, end_step=5)
  with pytest.raises(ValueError, match='num_shots must be more than 1'):
    sparsity_modes.FewShotMode(num_shots=1)
  with pytest.raises(ValueError, match='must not be negative'):
    _Weight(prune_rate=None, offset=-1)
  with pytest.raises(ValueError, match='non-decaying sparse structure'):
    _Weight(prune_rate=None, sparse_ste=True, structure_decay=True)
  with pytest.raises(ValueError, match='only works with non-decaying mask'):
    _Weight(prune_rate=None, sparse_ste=True, mask_decay_weight=0.1)
  with pytest.raises(ValueError, match='prune_rate must be None or a tuple'):
    _HP(weight_params=_Weight(prune_rate=0.5))
  with pytest.raises(
    ValueError, match='SR-STE only works with structured sparsity'
  ):
    _HP(
      sparsity_type=sparsity_hparams.SparsityType.UNSTRUCTURED,
      weight_params=_Weight(prune_rate=0.5, sparse_ste=True),
    )
  with pytest.raises(ValueError, match='block_size must be 0'):
    _HP(
      sparsity_type=sparsity_hparams.SparsityType.UNSTRUCTURED,
      weight_params=_Weight(prune_rate=0.5),
      block_size=2,
    )
