# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Linear and feed-forward layers against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from jax.test_util import check_grads

from praxis import base_layer, pax_fiddle
from praxis.layers import activations, base_ops, linears
from tests.praxis.layers import running


def _run(cfg, *args, **kwargs):
  layer, variables = running.build(cfg, *args, **kwargs)
  return running.run(layer, variables, *args, **kwargs), variables


def _x(*shape, dtype=jnp.float32):
  return running.normal(*shape).astype(dtype)


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize('shape', [(2, 3, 4), (2, 4), (4,)])
def test_linear_is_a_matrix_product(dtype, shape):
  cfg = linears.Linear.config(input_dims=4, output_dims=5, fprop_dtype=dtype)
  x = _x(*shape, dtype=dtype)
  y, variables = _run(cfg, x)
  w = variables['params']['w']
  assert w.shape == (4, 5) and w.dtype == jnp.float32
  assert y.dtype == dtype
  want = np.asarray(x, np.float32) @ np.asarray(w)
  tolerance = 1e-6 if dtype == jnp.float32 else 3e-2
  np.testing.assert_allclose(y.astype(np.float32), want, atol=tolerance)


def test_few_rows_stay_on_their_devices():
  # XLA exchanged rows of the batch (docs/known_issues.md).
  axes = ('replica', 'data', 'mdl')
  cfg = linears.Linear.config(
    input_dims=64,
    output_dims=32,
    ici_mesh_shape=[2, 2, 2],
    mesh_axis_names=axes,
  )
  cfg.weight_split_dims_mapping.wt = ['mdl', 'data']
  cfg.activation_split_dims_mapping.out = [['replica', 'data'], None, 'mdl']
  x = _x(16, 1, 64)
  layer, variables = running.build(cfg, x)
  mesh = jax.make_mesh(
    (2, 2, 2), axes, axis_types=(jax.sharding.AxisType.Auto,) * 3
  )
  w = variables['params']['w']
  with jax.set_mesh(mesh):
    y = running.run(
      layer,
      {'params': {'w': jax.device_put(w, PartitionSpec('mdl', 'data'))}},
      jax.device_put(x, PartitionSpec(('replica', 'data'), None, 'mdl')),
    )
  np.testing.assert_allclose(y, np.asarray(x) @ np.asarray(w), atol=1e-5)


def test_linear_product_goes_through_its_einsum_child():
  class Doubled(base_ops.EinsumOp):
    def __call__(self, equation, *args):
      return 2 * jnp.einsum(equation, *args)

  cfg = linears.Linear.config(input_dims=4, output_dims=5)
  x = _x(2, 4)
  plain, _ = _run(cfg, x)
  doubled, _ = _run(cfg.set(einsum_tpl=pax_fiddle.Config(Doubled)), x)
  np.testing.assert_allclose(doubled, 2 * plain)


def test_linear_weight_init_and_sharding_are_declared():
  cfg = linears.Linear.config(
    input_dims=4,
    output_dims=5,
    weight_init=base_layer.WeightInit.Constant(3.0),
    ici_mesh_shape=[1, 2, 2],
    mesh_axis_names=['replica', 'data', 'mdl'],
  )
  cfg.weight_split_dims_mapping.wt = ['data', 'mdl']
  layer = cfg.Instantiate()
  w = layer.abstract_init_with_metadata(_x(2, 4))['params']['w']
  assert list(w.tensor_split_dims_mapping) == ['data', 'mdl']
  assert list(w.mesh_shape) == [1, 2, 2]
  variables = layer.init(jax.random.key(0), _x(2, 4))
  np.testing.assert_array_equal(variables['params']['w'], 3.0)


def test_linear_output_is_split_with_and_without_time():
  mesh = jax.make_mesh(
    (2, 2),
    ('data', 'mdl'),
    axis_types=(jax.sharding.AxisType.Auto,) * 2,
    devices=jax.devices()[:4],
  )
  cfg = linears.Linear.config(
    input_dims=4,
    output_dims=6,
    ici_mesh_shape=[2, 2],
    mesh_axis_names=['data', 'mdl'],
  )
  cfg.activation_split_dims_mapping.out = ['data', None, 'mdl']
  spec = jax.sharding.PartitionSpec
  layer, variables = running.build(cfg, _x(2, 4))
  with jax.set_mesh(mesh):
    whole = running.run(layer, variables, _x(2, 3, 4))
    step = running.run(layer, variables, _x(2, 4))
  assert whole.sharding.spec == spec('data', None, 'mdl')
  assert step.sharding.spec == spec('data', 'mdl')


@pytest.mark.parametrize(
  'cls, fields, name',
  [
    (linears.Linear, {'output_dims': 2}, 'input_dims'),
    (linears.Linear, {'input_dims': 2}, 'output_dims'),
    (linears.Bias, {}, 'dims'),
    (linears.StackingOverTime, {}, 'stride'),
  ],
)
def test_missing_sizes_are_named(cls, fields, name):
  with pytest.raises(ValueError, match=f'needs {name} > 0'):
    _run(cls.config(**fields), _x(2, 3, 4))


def test_feed_forward_is_linear_bias_activation():
  cfg = linears.FeedForward.config(input_dims=4, output_dims=5, bias_init=0.5)
  x = _x(2, 3, 4)
  y, variables = _run(cfg, x)
  params = variables['params']
  assert jax.tree.map(jnp.shape, params) == {
    'linear': {'w': (4, 5)},
    'bias': {'b': (5,)},
  }
  declared = cfg.Instantiate().abstract_init_with_metadata(x)['params']
  assert declared['bias']['b'].init == base_layer.WeightInit.Constant(0.5)
  p = jax.tree.map(np.asarray, params)
  want = np.maximum(np.asarray(x) @ p['linear']['w'] + p['bias']['b'], 0)
  np.testing.assert_allclose(y, want, atol=1e-6)


def test_feed_forward_without_bias_and_with_another_activation():
  cfg = linears.FeedForward.config(
    input_dims=4,
    output_dims=5,
    has_bias=False,
    activation_tpl=activations.Tanh.config(),
  )
  x = _x(2, 4)
  y, variables = _run(cfg, x)
  assert set(variables['params']) == {'linear'}
  w = np.asarray(variables['params']['linear']['w'])
  np.testing.assert_allclose(y, np.tanh(np.asarray(x) @ w), atol=1e-6)


def test_feed_forward_gradients():
  cfg = linears.FeedForward.config(
    input_dims=3, output_dims=2, activation_tpl=activations.GELU.config()
  )
  x = _x(2, 3)
  layer, variables = running.build(cfg, x)
  check_grads(jax.jit(layer.apply), (variables, x), order=1, modes=['rev'])


def test_feed_forward_bias_takes_the_last_activation_axis():
  cfg = linears.FeedForward.config(
    input_dims=4,
    output_dims=5,
    ici_mesh_shape=[2, 2],
    mesh_axis_names=['data', 'mdl'],
  )
  cfg.weight_split_dims_mapping.wt = ['data', 'mdl']
  cfg.activation_split_dims_mapping.out = ['data', None, 'mdl']
  tree = cfg.Instantiate().abstract_init_with_metadata(_x(2, 3, 4))['params']
  assert list(tree['linear']['w'].tensor_split_dims_mapping) == ['data', 'mdl']
  assert list(tree['bias']['b'].tensor_split_dims_mapping) == ['mdl']


def test_feed_forward_names_what_remat_may_save():
  cfg = linears.FeedForward.config(
    input_dims=4, output_dims=5, checkpoint_str='ffn1'
  )
  x = _x(2, 4)
  layer, variables = running.build(cfg, x)
  assert 'name=ffn1' in str(jax.make_jaxpr(layer.apply)(variables, x))


@pytest.mark.parametrize('num_layers', [1, 3])
@pytest.mark.parametrize('activate_final', [True, False])
def test_mlp_block_chains_its_layers(num_layers, activate_final):
  cfg = linears.MLPBlock.config(
    num_layers=num_layers,
    hidden_dims=6,
    activate_final=activate_final,
    ff_tpl=linears.FeedForward.config(input_dims=4, output_dims=5),
  )
  x = _x(2, 4)
  y, variables = _run(cfg, x)
  want = np.asarray(x)
  for i in range(num_layers):
    layer = variables['params'][f'mlp_layers_{i}']
    want = want @ np.asarray(layer['linear']['w']) + layer['bias']['b']
    if i < num_layers - 1 or activate_final:
      want = np.maximum(want, 0)
  np.testing.assert_allclose(y, want, atol=1e-5)
  assert y.shape == (2, 5)


def _stacked_by_hand(x, left, right, stride):
  frames = []
  for t in range(0, x.shape[1], stride):
    window = [
      x[:, i] if 0 <= i < x.shape[1] else np.zeros_like(x[:, 0])
      for i in range(t - left, t + right + 1)
    ]
    frames.append(np.concatenate(window, axis=-1))
  return np.stack(frames, axis=1)


@pytest.mark.parametrize(
  'left, right, stride', [(0, 0, 1), (2, 0, 3), (1, 2, 2), (0, 1, 1)]
)
def test_stacking_over_time(left, right, stride):
  cfg = linears.StackingOverTime.config(
    left_context=left, right_context=right, stride=stride
  )
  x = _x(2, 7, 3)
  (stacked, paddings), _ = _run(cfg, x)
  np.testing.assert_array_equal(
    stacked, _stacked_by_hand(np.asarray(x), left, right, stride)
  )
  np.testing.assert_array_equal(paddings, np.zeros((2, -(-7 // stride), 1)))


@pytest.mark.parametrize(
  'option, want', [('reduce_min', [0, 0, 1]), ('reduce_max', [1, 1, 1])]
)
def test_stacking_reduces_paddings(option, want):
  cfg = linears.StackingOverTime.config(
    left_context=1, stride=2, padding_reduce_option=option
  )
  padding = jnp.asarray([[0.0, 0, 1, 1, 1]])[..., None]
  (_, paddings), _ = _run(cfg, _x(1, 5, 2), padding)
  np.testing.assert_array_equal(paddings[0, :, 0], want)


@pytest.mark.parametrize('name', ['left_context', 'right_context'])
def test_stacking_refuses_negative_contexts(name):
  cfg = linears.StackingOverTime.config(left_context=1, right_context=1)
  cfg.set(stride=1, **{name: -1})
  with pytest.raises(ValueError, match=f'{name} .* must not be negative'):
    _run(cfg, _x(1, 5, 2))


def test_edge_frames_are_outside_of_a_sharded_sequence():
  cfg = linears.StackingOverTime.config(
    left_context=1,
    right_context=1,
    stride=1,
    pad_with_left_frame=True,
    pad_with_right_frame=True,
  )
  x = _x(2, 8, 3)
  (want, _), _ = _run(cfg, x)
  layer, variables = running.build(cfg, x)
  auto = (jax.sharding.AxisType.Auto,)
  mesh = jax.make_mesh(
    (4,), ('seq',), devices=jax.devices()[:4], axis_types=auto
  )
  with jax.set_mesh(mesh):
    sharded = jax.device_put(x, PartitionSpec(None, 'seq'))
    got, _ = running.run(layer, variables, sharded)
  np.testing.assert_array_equal(got, want)


def test_stacking_pads_with_edge_frames_and_unstacks():
  cfg = linears.StackingOverTime.config(
    left_context=1,
    right_context=1,
    stride=3,
    pad_with_left_frame=True,
    pad_with_right_frame=True,
  )
  x = _x(2, 6, 2)
  layer = cfg.Instantiate()
  (stacked, _), _ = _run(cfg, x)
  np.testing.assert_array_equal(stacked[:, 0, :2], x[:, 0])
  back = running.run(layer, {}, stacked, method='unstack')
  np.testing.assert_array_equal(back[:, :5], x[:, :5])
  with pytest.raises(ValueError, match='unstack needs a stride of at most 3'):
    cfg.clone().set(stride=4).Instantiate().apply({}, x, method='unstack')


@pytest.mark.parametrize(
  'left, right, stride', [(1, 1, 2), (2, 0, 1), (0, 2, 1), (1, 2, 3), (0, 0, 1)]
)
def test_overlapping_windows_are_unstacked(left, right, stride):
  cfg = linears.StackingOverTime.config(
    left_context=left, right_context=right, stride=stride
  )
  x = _x(2, 7, 2)
  layer = cfg.Instantiate()
  (stacked, _), _ = _run(cfg, x)
  back = running.run(layer, {}, stacked, method='unstack')
  num_frames = (stacked.shape[1] - 1) * stride + right + 1
  assert back.shape == (2, num_frames, 2)
  length = min(7, num_frames)
  np.testing.assert_array_equal(back[:, :length], x[:, :length])


def test_project_last_dim():
  x, w = _x(2, 3, 4), _x(4, 5)
  np.testing.assert_allclose(linears.project_last_dim(x, w), x @ w, atol=1e-6)
