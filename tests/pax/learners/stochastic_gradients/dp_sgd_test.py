# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Per-example gradients are clipped, averaged and noised."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax.learners import stochastic_gradients
from praxis import base_layer, pax_fiddle
from praxis.layers import normalizations
from tests.pax.learners.stochastic_gradients import regression

BOUND = 1.0


def _made(cls=stochastic_gradients.DpSgdStochasticGradient, **fields):
  return cls.config(**{'l2_norm_clip': BOUND, **fields}).Instantiate()


def test_standard_gradient_is_plain_differentiation():
  gradient = stochastic_gradients.StandardGradient.config().Instantiate()
  (loss, aux), grads = regression.run(gradient)
  by_hand = regression.gradients_by_hand()
  np.testing.assert_allclose(
    regression.flat(grads), by_hand.mean(axis=0), rtol=1e-5
  )
  np.testing.assert_allclose(
    loss, regression.losses_by_hand().mean(), rtol=1e-5
  )
  np.testing.assert_allclose(aux.aux_info['error'], by_hand[:, 0], rtol=1e-5)


@pytest.mark.parametrize('inner_batch_size', [None, 2, 8])
def test_each_example_is_clipped(inner_batch_size):
  (loss, aux), grads = regression.run(_made(inner_batch_size=inner_batch_size))
  by_hand = regression.gradients_by_hand()
  want = regression.clipped(by_hand, BOUND).mean(axis=0)
  np.testing.assert_allclose(regression.flat(grads), want, rtol=1e-5)
  np.testing.assert_allclose(
    loss, regression.losses_by_hand().mean(), rtol=1e-5
  )
  long = np.linalg.norm(by_hand, axis=1) > BOUND
  assert 0 < long.mean() < 1
  np.testing.assert_allclose(aux.dp_aux_info['frac_clipped'], long.mean())
  np.testing.assert_allclose(
    aux.aux_info['error'], [by_hand[:, 0].mean()], rtol=1e-4, atol=1e-6
  )


def test_normalizing_divides_by_the_bound():
  _, grads = regression.run(_made(l2_norm_clip=0.5, normalize_gradients=True))
  clipped = regression.clipped(regression.gradients_by_hand(), 0.5)
  want = clipped.mean(axis=0) / 0.5
  np.testing.assert_allclose(regression.flat(grads), want, rtol=1e-5)


def test_losses_can_scale_the_bound():
  # All weights are 1 here: nothing changes.
  _, plain = regression.run(_made())
  _, scaled = regression.run(_made(use_loss_weight_scaling=True))
  np.testing.assert_allclose(
    regression.flat(plain), regression.flat(scaled), rtol=1e-6
  )


def test_an_example_without_weight_adds_nothing():
  inputs = regression.batch()
  inputs['weight'] = np.array([1, 0, 2, 1, 0, 1, 3, 0], np.float32)

  def loss_fn(variables, others_and_inputs, key):
    examples = others_and_inputs[1]
    weight = jnp.sum(examples['weight'])
    loss, _ = regression.loss_fn(variables, others_and_inputs, key)
    return weight * loss, stochastic_gradients.GradAuxInfo({}, weight)

  gradient = _made(use_loss_weight_scaling=True)
  _, grads = jax.jit(
    lambda *args: gradient.grad_fn(loss_fn, *args, jax.random.key(0))
  )(regression.variables(), ({}, inputs))
  clipped = regression.clipped(regression.gradients_by_hand(), BOUND)
  want = (inputs['weight'][:, None] * clipped).mean(axis=0)
  np.testing.assert_allclose(regression.flat(grads), want, rtol=1e-5)


@pytest.mark.parametrize(
  'fields, deviation',
  [
    (dict(noise_multiplier=4.0), 4.0 * BOUND / 8),
    (
      dict(noise_multiplier=4.0, l2_norm_clip=0.1, normalize_gradients=True),
      4.0 / 8,
    ),
  ],
)
def test_noise_has_the_deviation_that_is_reported(fields, deviation):
  silent = {**fields, 'noise_multiplier': 0.0}
  _, quiet = regression.run(_made(**silent))
  noisy = _made(**fields)
  runs = [regression.run(noisy, seed) for seed in range(40)]
  noise = [regression.flat(g) - regression.flat(quiet) for _, g in runs]
  np.testing.assert_allclose(np.std(noise), deviation, rtol=0.2)
  np.testing.assert_allclose(np.mean(noise), 0.0, atol=deviation / 3)
  (_, aux), _ = runs[0]
  np.testing.assert_allclose(aux.dp_aux_info['noise_std'], deviation, rtol=1e-6)


def test_noise_does_not_depend_on_the_inner_batch():
  fields = dict(noise_multiplier=4.0)
  _, want = regression.run(_made(**fields))
  for size in (2, 4):
    _, grads = regression.run(_made(inner_batch_size=size, **fields))
    np.testing.assert_allclose(
      regression.flat(grads), regression.flat(want), rtol=1e-5
    )


@pytest.mark.parametrize(
  'inner_batch_size, examples_per_gradient',
  [(None, 1), (8, 1), (4, 2), (2, 2), (1, 2)],
)
def test_means_of_microbatches_are_clipped(
  inner_batch_size, examples_per_gradient
):
  gradient = _made(
    stochastic_gradients.MicrobatchDpSgdStochasticGradient,
    microbatch_size=2,
    inner_batch_size=inner_batch_size,
  )
  (_, aux), grads = regression.run(gradient)
  assert aux.aux_info['error'].shape == (examples_per_gradient,)
  means = regression.gradients_by_hand().reshape(4, 2, 4).mean(axis=1)
  want = regression.clipped(means, BOUND).mean(axis=0)
  np.testing.assert_allclose(regression.flat(grads), want, rtol=1e-5)
  long = np.linalg.norm(means, axis=1) > BOUND
  np.testing.assert_allclose(aux.dp_aux_info['frac_clipped'], long.mean())


def test_copies_of_an_example_count_as_one():
  gradient = _made(
    stochastic_gradients.AugMulDpSgdStochasticGradient,
    microbatch_size=3,
    inner_batch_size=6,
  )
  _, grads = regression.run(gradient)
  _, want = regression.run(_made())
  np.testing.assert_allclose(
    regression.flat(grads), regression.flat(want), rtol=1e-5
  )


@pytest.mark.parametrize('inner_batch_size', [None, 8])
@pytest.mark.parametrize('copies', [1, 64])
def test_examples_and_their_copies_draw_their_own_random_numbers(
  copies, inner_batch_size
):
  gradient = _made(
    stochastic_gradients.AugMulDpSgdStochasticGradient,
    l2_norm_clip=100.0,
    microbatch_size=copies,
    inner_batch_size=inner_batch_size,
  )

  def loss_fn(variables, others_and_inputs, key):
    rows = others_and_inputs[1]['row']
    noise = jax.random.normal(key, rows.shape)
    loss = jnp.mean(variables['params'][rows] * noise)
    return loss, stochastic_gradients.GradAuxInfo({})

  variables = {'params': jnp.zeros(regression.ROWS)}
  inputs = {'row': jnp.arange(regression.ROWS)}
  run = jax.jit(lambda v, x, key: gradient.grad_fn(loss_fn, v, ({}, x), key))
  _, grads = run(variables, inputs, jax.random.key(0))
  means = regression.ROWS * np.asarray(grads['params'])
  assert len(np.unique(means)) == regression.ROWS
  assert (np.abs(means) < 4 / copies**0.5).all()


@pytest.mark.parametrize('uniform', [True, False])
def test_each_variable_is_clipped_by_itself(uniform):
  gradient = _made(
    stochastic_gradients.PerLayerDpSgdStochasticGradient, use_uniform=uniform
  )
  (_, aux), grads = regression.run(gradient)
  # Of the four numbers the bias is one and the vector three.
  parts = (0.5, 0.5) if uniform else (0.25, 0.75)
  by_hand = regression.gradients_by_hand()
  want, fractions = [], []
  for share, part in zip(parts, (by_hand[:, :1], by_hand[:, 1:]), strict=True):
    bound = BOUND * share**0.5
    want.append(regression.clipped(part, bound).mean(axis=0))
    fractions.append((np.linalg.norm(part, axis=1) > bound).mean())
  np.testing.assert_allclose(
    regression.flat(grads), np.concatenate(want), rtol=1e-5
  )
  dp_aux_info = aux.dp_aux_info
  np.testing.assert_allclose(
    dp_aux_info['frac_clipped']['params']['w'], fractions[1]
  )
  np.testing.assert_allclose(
    dp_aux_info['mean_frac_clipped'], np.mean(fractions)
  )
  np.testing.assert_allclose(
    dp_aux_info['stdev_frac_clipped'], np.std(fractions)
  )
  np.testing.assert_allclose(
    dp_aux_info['mean_layer_grad_norms']['params']['b'],
    np.abs(by_hand[:, 0]).mean(),
    rtol=1e-5,
  )


def test_replicas_make_what_one_program_makes():
  _, want = regression.run(_made())
  grads, reported = regression.run_on_replicas(_made())
  np.testing.assert_allclose(
    regression.flat(grads), regression.flat(want), rtol=1e-5
  )
  by_hand = regression.gradients_by_hand()
  long = np.linalg.norm(by_hand, axis=1) > BOUND
  np.testing.assert_allclose(
    reported['frac_clipped'], long.reshape(4, 2).mean(axis=1)
  )


def _normalized_loss(variables, others_and_inputs, key):
  """The loss of inputs that are normalized by the statistics of their batch."""
  layer = pax_fiddle.Config(
    normalizations.BatchNorm, name='norm', dim=1
  ).Instantiate()
  others, inputs = others_and_inputs
  x = jnp.asarray(inputs['x'])[..., jnp.newaxis]
  params = layer.init(jax.random.key(0), x)
  x, _ = layer.apply(params, x, mutable=['non_trainable'])
  inputs = inputs | {'x': x[..., 0]}
  return regression.loss_fn(variables, (others, inputs), key)


@pytest.mark.parametrize(
  ('cls', 'rows'),
  [
    (stochastic_gradients.DpSgdStochasticGradient, 1),
    (stochastic_gradients.PercoreClippedDpSgdGradient, 2),
  ],
)
def test_statistics_of_a_batch_are_not_those_of_other_replicas(cls, rows):
  # An example must change no other clipped gradient.
  gradient = cls(l2_norm_clip=1e6)
  got, _ = regression.run_on_replicas(gradient, loss_fn=_normalized_loss)
  gradient_of = jax.jit(jax.grad(_normalized_loss, has_aux=True))
  each = []
  for i in range(0, regression.ROWS, rows):
    inputs = {k: x[i : i + rows] for k, x in regression.batch().items()}
    grads, _ = gradient_of(regression.variables(), ({}, inputs), None)
    each.append(regression.flat(grads))
  np.testing.assert_allclose(
    regression.flat(got), np.mean(each, axis=0), rtol=1e-5, atol=1e-6
  )


def test_noises_of_replicas_make_up_the_noise():
  gradient = _made(noise_multiplier=8.0)
  _, quiet = regression.run(_made())
  noise = [
    regression.flat(regression.run_on_replicas(gradient, seed=seed)[0])
    - regression.flat(quiet)
    for seed in range(40)
  ]
  np.testing.assert_allclose(np.std(noise), 8.0 * BOUND / 8, rtol=0.2)


@pytest.mark.parametrize(
  'cls, fields, message',
  [
    (
      stochastic_gradients.DpSgdStochasticGradient,
      dict(l2_norm_clip=0.0),
      'above 0, got 0.0',
    ),
    (
      stochastic_gradients.DpSgdStochasticGradient,
      dict(noise_multiplier=1.0, use_loss_weight_scaling=True),
      'set noise_multiplier to 0',
    ),
    (
      stochastic_gradients.PercoreClippedDpSgdGradient,
      dict(adaptive_clipping_method='max'),
      "None or 'min', got 'max'",
    ),
    (
      stochastic_gradients.GhostClippingDpSgdStochasticGradient,
      dict(inner_batch_size=4),
      'inner_batch_size must be None',
    ),
  ],
)
def test_wrong_settings_are_refused(cls, fields, message):
  with pytest.raises(ValueError, match=message):
    _made(cls, **fields)


@pytest.mark.parametrize(
  'cls, fields, message',
  [
    (
      stochastic_gradients.DpSgdStochasticGradient,
      dict(inner_batch_size=3),
      'divides the batch',
    ),
    (
      stochastic_gradients.MicrobatchDpSgdStochasticGradient,
      dict(microbatch_size=3),
      'must divide the batch of 8, got 3',
    ),
    (
      stochastic_gradients.PercoreClippedDpSgdGradient,
      dict(),
      'set ici_mesh_shape to None',
    ),
  ],
)
def test_sizes_that_do_not_fit_are_refused(cls, fields, message):
  with pytest.raises(ValueError, match=message):
    regression.run(_made(cls, **fields))


@pytest.mark.parametrize('axes', ['data', ('data',)])
def test_a_model_that_splits_its_batch_over_the_same_axis(axes):
  names = ('replica', 'data')
  mesh = jax.make_mesh((2, 4), names, (jax.sharding.AxisType.Auto,) * 2)

  def loss_fn(variables, others_and_inputs, key):
    others, inputs = others_and_inputs
    split = [('replica', 'data'), None] if axes == 'data' else ['data', None]
    x = base_layer.maybe_shard(inputs['x'], split, names)
    inputs = inputs | {'x': x}
    return regression.loss_fn(variables, (others, inputs), key)

  gradient = stochastic_gradients.DpSgdStochasticGradient(
    l2_norm_clip=0.5, spmd_axis_name=axes
  )
  with jax.set_mesh(mesh):
    (loss, _), grads = jax.jit(
      lambda v, x, k: gradient.grad_fn(loss_fn, v, ({}, x), k)
    )(regression.variables(), regression.batch(), jax.random.key(0))
  np.testing.assert_allclose(
    loss, regression.losses_by_hand().mean(), rtol=1e-5
  )
  wanted = regression.clipped(regression.gradients_by_hand(), 0.5).mean(axis=0)
  np.testing.assert_allclose(regression.flat(grads), wanted, rtol=1e-5)


def test_models_that_vmap_does_not_map_are_refused():
  def loss_fn(weights, fixed_and_inputs, key):
    del key
    rows = fixed_and_inputs[1]
    product = jax.lax.ragged_dot(rows, weights, jnp.array([1]))
    return jnp.sum(product), stochastic_gradients.GradAuxInfo({}, 1.0)

  with pytest.raises(ValueError, match='ragged_dot.*gating_func'):
    _made().grad_fn(
      loss_fn, jnp.ones([1, 3, 2]), ({}, jnp.ones([4, 3])), jax.random.key(0)
    )
