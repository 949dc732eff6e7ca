# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Pipelines give what their stages give one after the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import convolutions, pipeline
from praxis.layers.pipeline import microbatches, schedule
from tests.praxis.layers import running
from tests.testing import nightly

_B, _D, _S = 12, 3, 3
_REPORTS = [base_layer.SUMMARIES, base_layer.AUX_LOSS]


class _Stage(base_layer.BaseLayer):
  """x + tanh(x w) scale."""

  def setup(self):
    self.create_variable('w', base_layer.WeightHParams(shape=[_D, _D]))

  def __call__(self, x, scale, bias=None):
    y = x + jnp.tanh(x @ self.theta.w) * scale
    if bias is not None:
      y = y + bias
    self.add_summary('mean', jnp.mean(y))
    self.add_aux_loss('sum', jnp.mean(y**2), 0.5)
    return y


def _config(repeats=1, **kwargs):
  cls = pipeline.LayerwiseShardablePipelined
  if repeats > 1:
    cls = pipeline.CircularLayerwiseShardablePipelined
    kwargs['circular_repeat'] = repeats
  return pax_fiddle.Config(
    cls,
    num_stages=_S,
    single_stage_body=pax_fiddle.Config(_Stage),
    **kwargs,
  )


def _inputs():
  # The scale goes with the batch, the bias does not.
  scale = running.normal(_B, 1, seed=2)
  return running.normal(_B, _D), scale, running.normal(1, _D, seed=3)


def _loss(apply):
  def loss(w, x, scale, bias):
    return jnp.sum(apply(w, x, scale, bias) ** 2) / _B

  return running.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))


def _sequence(w, x, scale, bias):
  for each in w.reshape(-1, _D, _D):
    x = x + jnp.tanh(x @ each) * scale + bias
  return x


_PIPELINES = {
  'plain': ({'num_microbatches': 6}, 1),
  'by_size': ({'microbatch_size': 6}, 1),
  'streaming': ({'num_microbatches': 6, 'stream_io': True}, 1),
  'polluted': (
    {
      'num_microbatches': 3,
      'polluting_bubbles_with_nan': True,
      'pipeline_broadcast_inputs': True,
    },
    1,
  ),
  'circular': ({'num_microbatches': 6}, 2),
  'circular_tight': ({'num_microbatches': 3}, 2),
  'circular_at_once': (
    {'num_microbatches': 4, 'enable_async_circular_transfer': False},
    3,
  ),
  'circular_polluted': (
    {
      'num_microbatches': 6,
      'stream_io': True,
      'polluting_bubbles_with_nan': True,
      'pipeline_broadcast_inputs': True,
    },
    2,
  ),
}


# Options of the others are among these.
_BY_DAY = [
  'by_size', 'streaming', 'circular_tight', 'circular_at_once',
  'circular_polluted',
]  # fmt: skip


@pytest.mark.parametrize('name', nightly.except_for(_BY_DAY, _PIPELINES))
def test_pipeline_is_the_sequence_of_its_stages(name):
  kwargs, repeats = _PIPELINES[name]
  layer, variables = running.build(_config(repeats, **kwargs), *_inputs())
  w = variables['params']['body']['w']
  assert w.shape == ((repeats,) if repeats > 1 else ()) + (_S, _D, _D)

  def apply(w, x, scale, bias):
    return layer.apply({'params': {'body': {'w': w}}}, x, scale, bias=bias)

  got, gradients = _loss(apply)(w, *_inputs())
  want, want_gradients = _loss(_sequence)(w, *_inputs())
  np.testing.assert_allclose(got, want, rtol=1e-5)
  for a, b in zip(gradients, want_gradients, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5 * np.max(np.abs(b)))


@pytest.mark.parametrize('repeats', [2, *nightly.cases(1)])
def test_inputs_may_be_split_already(repeats):
  x, scale, bias = _inputs()
  layer, variables = running.build(
    _config(repeats, num_microbatches=6), x, scale, bias=bias
  )
  want = running.run(layer, variables, x, scale, bias=bias)
  layer = _config(repeats).Instantiate()
  x, scale = microbatches.split_batch((x, scale), 6)
  got = running.run(layer, variables, x, scale, bias=bias)
  assert got.shape == (6, 2, _D)
  np.testing.assert_array_equal(microbatches.join_batch(got), want)


def test_gradients_of_repeated_weights_are_summed_where_they_are():
  # XLA's compiler for GPUs rejects a sum that moves the axis of stages.
  repeats = 2
  config = _config(repeats, num_microbatches=6)
  layer, variables = running.build(config, *_inputs())

  def loss(params):
    return jnp.sum(layer.apply({'params': params}, *_inputs()))

  program = str(jax.make_jaxpr(jax.grad(loss))(variables['params']))
  assert f'f32[{repeats},{_S},{_D},{_D}] = scatter-add' in program
  assert f'f32[{_S},{repeats},{_D},{_D}]' not in program


def test_shared_weights_of_a_circular_pipeline():
  config = _config(2, num_microbatches=3, share_weights=True)
  layer, variables = running.build(config, *_inputs())
  w = variables['params']['body']['w']
  assert w.shape == (_S, _D, _D)
  want = _sequence(jnp.concatenate([w, w]), *_inputs())
  got = running.run(layer, variables, *_inputs())
  np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize('repeats', [1, 2])
def test_reports_are_means_over_microbatches_without_bubbles(repeats):
  config = _config(repeats, num_microbatches=4)
  layer, variables = running.build(config, *_inputs())
  _, reports = running.run(layer, variables, *_inputs(), mutable=_REPORTS)
  summaries, losses = (reports[c]['body'] for c in _REPORTS)
  x, scale, bias = _inputs()
  w = variables['params']['body']['w'].reshape(-1, _D, _D)
  assert len(summaries) == len(w)
  loss = 0.0
  for i, each in enumerate(w):
    x = x + jnp.tanh(x @ each) * scale + bias
    name = f'stage{i % _S}'
    if repeats > 1:
      name = f'circular_layer{i // _S}.{name}'
    mean = summaries[f'mean.{name}_scalar']
    np.testing.assert_allclose(mean, np.mean(x), atol=1e-4)
    loss += np.mean(x**2)
  np.testing.assert_allclose(losses['sum'].value, loss, rtol=1e-4)
  assert losses['sum'].weight == 0.5 * len(w)


def test_losses_of_two_calls_are_added():
  layer, variables = running.build(_config(num_microbatches=4), *_inputs())

  def twice(layer, x, scale, bias):
    return layer(layer(x, scale, bias), scale, bias)

  _, reports = running.run(
    layer, variables, *_inputs(), method=twice, mutable=_REPORTS
  )
  loss = reports[base_layer.AUX_LOSS]['body']['sum']
  x, scale, bias = _inputs()
  w = variables['params']['body']['w']
  want = 0.0
  for each in (*w, *w):
    x = x + jnp.tanh(x @ each) * scale + bias
    want += np.mean(x**2)
  np.testing.assert_allclose(loss.value, want, rtol=1e-4)
  assert loss.weight == 0.5 * 2 * _S


@pytest.mark.parametrize('repeats', [2, *nightly.cases(1)])
def test_stacked_summaries(repeats):
  config = _config(repeats, num_microbatches=4, unpack_summaries=False)
  layer, variables = running.build(config, *_inputs())
  _, reports = running.run(layer, variables, *_inputs(), mutable=_REPORTS)
  mean = reports[base_layer.SUMMARIES]['body']['mean_scalar']
  x, scale, bias = _inputs()
  want = []
  for w in variables['params']['body']['w'].reshape(-1, _D, _D):
    x = x + jnp.tanh(x @ w) * scale + bias
    want.append(np.mean(x))
  np.testing.assert_allclose(mean.reshape(-1), want, atol=1e-4)


class _CountingStage(_Stage):
  """Counts its calls, and averages its inputs."""

  def setup(self):
    super().setup()
    for name, dtype in ('calls', jnp.int32), ('mean', jnp.float32):
      zero = base_layer.WeightInit.Constant(0)
      weight = base_layer.WeightHParams(shape=[], dtype=dtype, init=zero)
      self.create_variable(name, weight, trainable=False)

  def __call__(self, x, scale, bias=None):
    self.update_var('calls', self.get_var('calls') + 1)
    mean = 0.5 * self.get_var('mean') + 0.5 * jnp.mean(x)
    self.update_var('mean', mean)
    return super().__call__(x, scale, bias)


@pytest.mark.parametrize(
  'kwargs, repeats',
  [
    *nightly.cases(({}, 1), ({'polluting_bubbles_with_nan': True}, 2)),
    ({'stream_io': True, 'polluting_bubbles_with_nan': True}, 1),
    ({'share_weights': True}, 2),
    ({'bf16_accum_in_fp32': True, 'stream_io': True}, 2),
  ],
)
def test_each_microbatch_updates_the_variables_of_its_stage(kwargs, repeats):
  config = _config(repeats, num_microbatches=6, **kwargs)
  config.single_stage_body = pax_fiddle.Config(_CountingStage)
  inputs = _inputs()
  layer, variables = running.build(config, *inputs)
  mutable = [base_layer.NON_TRAINABLE]
  _, updates = running.run(layer, variables, *inputs, mutable=mutable)
  updates = updates[base_layer.NON_TRAINABLE]['body']
  is_shared = 'share_weights' in kwargs
  start = variables[base_layer.NON_TRAINABLE]['body']
  calls = start['calls'] + 6 * (1 + is_shared)
  np.testing.assert_array_equal(updates['calls'], calls)

  num_streams = _S if kwargs.get('stream_io') else 1
  xs, scales = microbatches.split_batch(inputs[:2], 6, num_streams)
  w = variables['params']['body']['w'].reshape(-1, _D, _D)
  want = np.array(start['mean'], np.float64).reshape(-1)
  for _ in range(1 + is_shared):
    for i, each in enumerate(w):
      for x in xs:
        want[i] = 0.5 * want[i] + 0.5 * np.mean(x)
      xs = [
        _sequence(each, *a, inputs[2]) for a in zip(xs, scales, strict=True)
      ]
  np.testing.assert_allclose(updates['mean'].reshape(-1), want, atol=1e-5)
  # Without a mutable collection, nothing is updated.
  got = running.run(layer, variables, *inputs)
  np.testing.assert_allclose(
    got, _sequence(jnp.tile(w, (1 + is_shared, 1, 1)), *inputs), atol=1e-4
  )


def test_stages_on_devices_of_their_own_talk_to_neighbors_only():
  mesh = jax.make_mesh(
    (_S, 2),
    ('stage', 'data'),
    axis_types=(jax.sharding.AxisType.Auto,) * 2,
    devices=jax.devices()[: _S * 2],
  )
  config = _config(
    num_microbatches=6,
    stream_io=True,
    pipeline_broadcast_inputs=True,
    ici_mesh_shape=[_S, 2],
    mesh_axis_names=['stage', 'data'],
  )
  config.weight_split_dims_mapping.stages = ['stage']
  layer, variables = running.build(config, *_inputs())
  x, scale, bias = _inputs()
  spec = jax.sharding.PartitionSpec
  place = lambda a, s: jax.device_put(a, jax.sharding.NamedSharding(mesh, s))
  with jax.set_mesh(mesh):
    placed = jax.tree.map(lambda w: place(w, spec('stage')), variables)
    compiled = (
      running.jit(lambda v, *args: layer.apply(v, *args))
      .lower(placed, place(x, spec('data')), place(scale, spec('data')), bias)
      .compile()
    )
    got = compiled(
      placed, place(x, spec('data')), place(scale, spec('data')), bias
    )
  want = _sequence(variables['params']['body']['w'], x, scale, bias)
  np.testing.assert_allclose(got, want, atol=1e-4)
  assert 'collective-permute' in compiled.as_text()


def test_convolutions_of_stages_have_the_gradients_of_one_device():
  # XLA multiplies the filter gradients that JAX derives by the size of `mdl`.
  axes = ('stage', 'data', 'mdl')
  mesh = jax.make_mesh(
    (2, 2, 2), axes, axis_types=(jax.sharding.AxisType.Auto,) * 3
  )
  stage = pax_fiddle.Config(
    convolutions.Conv2D, filter_shape=(3, 1, 4, 4), filter_stride=(1, 1)
  )
  config = pax_fiddle.Config(
    pipeline.LayerwiseShardablePipelined,
    num_stages=2,
    num_microbatches=2,
    single_stage_body=stage,
    ici_mesh_shape=mesh.devices.shape,
    mesh_axis_names=axes,
  )
  config.weight_split_dims_mapping.stages = ['stage']
  x = running.normal(8, 6, 1, 4)
  layer, variables = running.build(config, x)

  def loss(variables, x):
    return jnp.sum(layer.apply(variables, x) ** 2)

  gradient = running.jit(jax.grad(loss))
  want = gradient(variables, x)
  spec = jax.sharding.PartitionSpec
  place = lambda a, s: jax.device_put(a, jax.sharding.NamedSharding(mesh, s))
  with jax.set_mesh(mesh):
    placed = jax.tree.map(lambda w: place(w, spec('stage')), variables)
    got = gradient(placed, place(x, spec('data')))
  for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(g, w, atol=1e-4)


def test_gradients_of_bfloat16_weights_are_summed_in_float32():
  def gradient(accumulate, count):
    config = _config(
      num_microbatches=count,
      fprop_dtype=jnp.bfloat16,
      bf16_accum_in_fp32=accumulate,
      name='layer',
    )
    layer = config.Instantiate()
    numbers = np.random.default_rng(0)
    x, scale, bias = (
      jnp.asarray(numbers.uniform(0.5, 1, size=s), jnp.bfloat16)
      for s in [(256, _D), (256, 1), (1, _D)]
    )
    w = jnp.asarray(numbers.uniform(size=(_S, _D, _D)) * 0.1, jnp.bfloat16)

    def loss(w):
      params = {'params': {'body': {'w': w}}}
      return jnp.sum(layer.apply(params, x, scale, bias).astype(jnp.float32))

    gradient = running.jit(jax.grad(loss))(w)
    assert gradient.dtype == jnp.bfloat16
    return np.asarray(gradient, np.float32)

  want = gradient(True, 1)
  error = lambda got: np.max(np.abs(got - want) / want)
  assert error(gradient(True, 256)) < 0.01 < error(gradient(False, 256))


def test_schedule():
  plan = schedule.Schedule(num_stages=3, num_microbatches=4, repeats=2)
  assert plan.num_iterations == 10 and plan.num_valid_iterations == 8
  np.testing.assert_array_equal(plan.is_valid(jnp.int32(1)), [1, 1, 0])
  np.testing.assert_array_equal(plan.is_valid(jnp.int32(8)), [0, 1, 1])
  np.testing.assert_array_equal(plan.microbatch(jnp.int32(5)), [1, 0, 3])
  np.testing.assert_array_equal(plan.repeat(jnp.int32(5)), [1, 1, 0])


def test_public_counts_of_iterations():
  layer = _config(2, num_microbatches=4, name='layer').Instantiate()
  assert layer.num_valid_iterations(4) == 8
  assert layer.num_total_iterations(4) == 10
  mask = layer.get_valid_microbatch_mask(jnp.int32(9), 4)
  np.testing.assert_array_equal(mask, [0, 0, 1])


def test_microbatches_of_a_split_batch_are_split_the_same_way():
  x = jnp.arange(12)
  parts = microbatches.split_batch(x, 3)
  np.testing.assert_array_equal(parts[1], [1, 4, 7, 10])
  np.testing.assert_array_equal(microbatches.join_batch(parts), x)


@pytest.mark.parametrize(
  'kwargs, repeats, message',
  [
    (
      {'num_microbatches': 3, 'microbatch_size': 4},
      1,
      'exactly one of num_microbatches',
    ),
    ({'num_microbatches': 5}, 1, 'must divide the batch size 12, got 5'),
    ({'microbatch_size': 7}, 1, 'microbatch_size must divide'),
    ({'num_microbatches': 2}, 2, 'at least num_stages=3 microbatches, got 2'),
    ({'num_microbatches': 4, 'stream_io': True}, 1, 'must be a multiple'),
  ],
)
def test_impossible_pipelines_are_refused(kwargs, repeats, message):
  with pytest.raises(ValueError, match=message):
    running.build(_config(repeats, **kwargs), *_inputs())


@pytest.mark.parametrize(
  'num_streams, want',
  [
    (1, [[0, 4], [1, 5], [2, 6], [3, 7]]),
    (2, [[0, 2], [1, 3], [4, 6], [5, 7]]),
  ],
)
def test_examples_of_the_microbatches(num_streams, want):
  """Streamed inputs of a stage are a contiguous part of the batch."""
  batch = jnp.arange(8)[:, None]
  split = microbatches.split_batch(batch, 4, num_streams)
  np.testing.assert_array_equal(split[..., 0], want)
  joined = microbatches.join_batch(split, num_streams)
  np.testing.assert_array_equal(joined, batch)
