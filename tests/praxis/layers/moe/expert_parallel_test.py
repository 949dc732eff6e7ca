# SPDX-License-Identifier: Apache-2.0
"""Experts on devices of their own give the same numbers, bit by bit."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from pax.tools import flops
from praxis import base_layer, pax_fiddle
from praxis.layers import transformers
from praxis.layers.moe import (
  dropless,
  expert_exchange,
  expert_parallel,
  gating,
)
from praxis.py_utils import platforms
from tests.praxis.layers import running
from tests.testing import collectives, nightly

_B, _T, _D, _F, _E = 8, 6, 8, 12, 8
_AXES = ('data', 'expert', 'mdl')
_BATCH = ('data', 'expert')
# A program runs once here.
_QUICKLY = {'xla_backend_optimization_level': 0}


# Of every option of experts.
_UNITS = dict(has_bias=True, gated_limit=0.4, gated_offset=1.0)


def _config(**fields):
  config = pax_fiddle.Config(
    transformers.TransformerFeedForwardMoe,
    input_dims=_D,
    hidden_dims=_F,
    num_experts=_E,
    num_groups=_B,
    gating_func='dropless',
    use_gated_activation=True,
    mesh_axis_names=_AXES,
    **fields,
  )
  weights = config.weight_split_dims_mapping
  weights.me = [None, None]
  weights.emh = ['expert', 'data', 'mdl']
  weights.ehm = ['expert', 'mdl', 'data']
  activations = config.activation_split_dims_mapping
  activations.gsm = [_BATCH, None, 'mdl']
  activations.gs = [_BATCH, None]
  return config


def _inputs():
  x = running.normal(_B, _T, _D)
  return x, jnp.zeros((_B, _T)).at[:, _T - 1].set(1.0).at[0, 2:].set(1.0)


def _mesh(shape):
  return jax.make_mesh(
    shape,
    _AXES,
    axis_types=(jax.sharding.AxisType.Auto,) * 3,
    devices=jax.devices()[: int(np.prod(shape))],
  )


def _step(mesh, config, **options):
  """Returns loss, output and gradients, and the text of the program."""
  x, paddings = _inputs()
  layer, variables = running.build(config, x, paddings)
  params = variables['params']

  def loss(params, x):
    y = layer.apply({'params': params}, x, paddings)
    return jnp.sum(jnp.sin(3.0 * y)), y

  mesh = _mesh(mesh)
  put = lambda x, *spec: jax.device_put(
    x, NamedSharding(mesh, PartitionSpec(*spec))
  )
  batch = config.activation_split_dims_mapping.gs[0]
  params = {
    name: put(w, *('expert',) if name[0] in 'wb' else ())
    for name, w in params.items()
  }
  step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
  with jax.set_mesh(mesh):
    compiled = step.lower(params, put(x, batch)).compile(options)
    return compiled(params, put(x, batch)), compiled.as_text()


@pytest.fixture(scope='module')
def one_device():
  return _step((1, 1, 1), _config(), **_QUICKLY)[0]


@functools.cache
def _three_experts_on_one_device(has_units):
  units = _UNITS if has_units else {}
  config = _config(experts_per_token=3, expert_dispatch='all_gather', **units)
  return _step((1, 1, 1), config, **_QUICKLY)[0]


@functools.cache
def _on_eight_devices(shards):
  """Returns loss, output and gradients; devices have the same rows always."""
  config = _config()
  weights = config.weight_split_dims_mapping
  weights.emh = weights.ehm = ['expert', None, None]
  config.activation_split_dims_mapping.gsm = [_BATCH, None, None]
  return _step((8 // shards, shards, 1), config, **_QUICKLY)[0]


@functools.cache
def _rows_are_independent() -> bool:
  """Whether bits of a row of a product do not depend on the other rows.

  With AVX-512 they do not; with AVX2 they do.
  """
  for shape in ((_D, _F), (_F, _D), (_D, _D)):
    rows = running.normal(_B * _T, shape[0])
    weight = running.normal(*shape, seed=1)
    product = jax.jit(jnp.dot)
    if not all(
      np.array_equal(product(rows, weight)[:n], product(rows[:n], weight))
      for n in range(1, _B * _T)
    ):
      return False
  return True


@pytest.mark.parametrize('shards', [4, *nightly.cases(2, 8)])
def test_bits_of_the_layer_are_the_same(shards):
  got, want = (
    jax.tree_util.tree_leaves_with_path(_on_eight_devices(n))
    for n in (shards, 1)
  )
  for (path, a), (_, b) in zip(got, want, strict=True):
    name = jax.tree_util.keystr(path)
    if "['w" in name or not _rows_are_independent():
      # Of tokens that came together there is one product, which sums over the
      # batch; of others one on each device.
      np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * np.abs(b).max())
    else:
      np.testing.assert_array_equal(a, b, err_msg=name)


@functools.cache
def _mixed(shards):
  """Returns outputs and all gradients of experts on so many devices."""
  numbers = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(numbers.normal(size=shape), jnp.float32)
  experts = [numbers.permutation(_E)[:2] for _ in range(_B * _T)]
  expert = jnp.asarray(np.reshape(experts, (_B, _T, 2)), jnp.int32)
  gate = jax.nn.softmax(draw(_B, _T, 2)).at[0, 2:].set(0.0)
  weights = dropless.ExpertWeights(
    [draw(_E, _D, _F), draw(_E, _D, _F)], draw(_E, _F, _D)
  )
  tokens, gradient = draw(_B, _T, _D), draw(_B, _T, _D)
  axes = expert_parallel.ExpertMeshAxes(expert=('expert',), group=('expert',))

  def ffn(weights, rows, counts, product):
    hidden, gated = (product(rows, weight) for weight in weights.inputs)
    return product(jax.nn.relu(hidden) * gated * counts, weights.output)

  def mix(tokens, gate, weights):
    choices = dropless.TopKExperts(expert, gate)
    return expert_parallel.sharded_mixture(tokens, choices, weights, ffn, axes)

  def both(tokens, gate, weights, gradient):
    outputs, pull = jax.vjp(mix, tokens, gate, weights)
    return outputs, pull(gradient)

  with jax.set_mesh(_mesh((1, shards, 1))):
    return jax.jit(both)(tokens, gate, weights, gradient)


@pytest.mark.parametrize('shards', [8, *nightly.cases(2, 4)])
def test_bits_are_the_same_on_any_number_of_devices(shards):
  for got, want in zip(
    jax.tree.leaves(_mixed(shards)), jax.tree.leaves(_mixed(1)), strict=True
  ):
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
  'mesh, buffer_rows, units',
  [
    ((1, 1, 1), 3, _UNITS),
    ((2, 4, 1), 16, _UNITS),
    *nightly.cases(((1, 1, 1), 3, {}), ((1, 8, 1), 3, {})),
  ],
)
def test_grouped_products_are_those_of_each_expert(
  mesh, buffer_rows, units, monkeypatch
):
  # What accelerators compute, beside what CPUs do; with 4 and 8 shards a device
  # has fewer experts than a token. A buffer of 16 rows suffices for most
  # devices only, one of 3 rows for a token.
  config = _config(experts_per_token=3, expert_dispatch='all_gather', **units)
  want = _three_experts_on_one_device(bool(units))
  monkeypatch.setattr(dropless, 'mixture', dropless.grouped_mixture)
  monkeypatch.setattr(dropless, '_MIN_BUFFER_ROWS', buffer_rows)
  monkeypatch.setattr(dropless, 'BUFFER_FACTOR', 0)
  with platforms.tracing_for('gpu'):
    got = _step(mesh, config, **_QUICKLY)[0]
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b, atol=2e-5 * np.abs(b).max())


def _ragged_all_to_all(
  operand, output, input_offsets, send_sizes, output_offsets, recv_sizes,
  *, axis_name,
):  # fmt: skip
  """Does what the documentation of JAX's says, slice by slice.

  XLA's CPU compiler has none.
  """
  me, num_devices = jax.lax.axis_index(axis_name), jax.lax.axis_size(axis_name)
  per_device = len(input_offsets) // num_devices
  everyones = [
    jax.lax.all_gather(x, axis_name)
    for x in (operand, input_offsets, send_sizes, output_offsets)
  ]
  row = jnp.arange(output.shape[0])
  # It is not initialized.
  output = jnp.full_like(output, jnp.nan)

  def receive(i, output):
    source, update = i // per_device, me * per_device + i % per_device
    rows, first, size, at = (
      everyones[0][source],
      *(x[source, update] for x in everyones[1:]),
    )
    is_slice = (row >= at) & (row < at + size)
    slice_of = rows.at[row - at + first].get(mode='fill', fill_value=jnp.nan)
    # Who sends and who receives must agree.
    slice_of = jnp.where(size == recv_sizes[i], slice_of, jnp.nan)
    is_slice = jnp.expand_dims(is_slice, range(1, output.ndim))
    return jnp.where(is_slice, slice_of, output)

  return jax.lax.fori_loop(0, len(input_offsets), receive, output)


@pytest.mark.parametrize(
  'mesh, buffer_rows, units, tile',
  [
    ((2, 4, 1), 24, _UNITS, (2, 4)),
    *nightly.cases(((2, 4, 1), 64, {}, (8, 128)), ((1, 8, 1), 3, {}, (2, 4))),
  ],
)
def test_exchanged_rows_have_the_outputs_of_gathered_tokens(
  mesh, buffer_rows, units, tile, monkeypatch
):
  monkeypatch.setattr(expert_exchange, '_TILE', tile)
  # The first buffer always suffices, the others for few tokens.
  config = _config(experts_per_token=3, **units)
  want = _three_experts_on_one_device(bool(units))
  monkeypatch.setattr(jax.lax, 'ragged_all_to_all', _ragged_all_to_all)
  monkeypatch.setattr(dropless, '_MIN_BUFFER_ROWS', buffer_rows)
  monkeypatch.setattr(dropless, 'BUFFER_FACTOR', 0)
  with platforms.tracing_for('gpu'):
    config.expert_dispatch = 'all_to_all'
    got = _step(mesh, config, **_QUICKLY)[0]
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b, atol=2e-5 * np.abs(b).max())


@pytest.mark.parametrize(
  'dispatch, mesh, experts_per_token, platform, sends_rows',
  [
    ('auto', (1, 8, 1), 1, 'tpu', True),
    ('auto', (1, 8, 1), 2, 'tpu', False),
    ('auto', (1, 8, 1), 1, 'cpu', False),
    ('all_gather', (1, 8, 1), 1, 'tpu', False),
    ('all_to_all', (1, 8, 1), 7, 'gpu', True),
    ('all_to_all', (8, 1, 1), 1, 'gpu', False),
  ],
)
def test_rows_are_sent_where_they_are_fewer(
  dispatch, mesh, experts_per_token, platform, sends_rows
):
  config = _config(
    expert_dispatch=dispatch, experts_per_token=experts_per_token
  )
  x, paddings = _inputs()
  with jax.set_mesh(_mesh(mesh)), platforms.tracing_for(platform):
    layer, variables = running.build(config, x, paddings)
    text = str(jax.make_jaxpr(layer.apply)(variables, x, paddings))
  assert ('ragged_all_to_all' in text) == sends_rows
  if platform == 'tpu':
    # The weights are gathered before what depends on the tokens.
    before = text.partition('optimization_barrier')[0]
    assert 'all_gather' not in before
    assert before.splitlines()[-1].count(f'{_D},{_F}]') == 2


def test_devices_with_the_same_tokens_send_no_rows():
  config = _config(expert_dispatch='all_to_all')
  activations = config.activation_split_dims_mapping
  activations.gsm, activations.gs = ['data', None, None], ['data', None]
  with pytest.raises(ValueError, match=r"the expert axes \['expert'\] shard"):
    _step((2, 4, 1), config)


@pytest.mark.parametrize(
  'mesh, dispatch, fields',
  [
    ((1, 1, 1), 'auto', _UNITS),
    ((1, 4, 1), 'all_to_all', _UNITS),
    ((1, 1, 1), 'auto', {'gates_scale_inputs': True}),
  ],
)
def test_rows_without_a_group_reach_no_gradient(
  mesh, dispatch, fields, monkeypatch
):
  # Kernels leave these rows, and their gradients, undefined.
  @jax.custom_vjp
  def product(rows, weights, group_sizes):
    return forward(rows, weights, group_sizes)[0]

  def forward(*args):
    outputs, pull = jax.vjp(jax.lax.ragged_dot, *args)
    return spoil(outputs, args[2]), (pull, args[2])

  def backward(residuals, gradient):
    pull, group_sizes = residuals
    is_row = jnp.arange(len(gradient)) < jnp.sum(group_sizes)
    rows, *others = pull(jnp.where(is_row[:, None], gradient, 0.0))
    return spoil(rows, group_sizes), *others

  def spoil(rows, group_sizes):
    is_row = jnp.arange(len(rows)) < jnp.sum(group_sizes)
    return jnp.where(is_row[:, None], rows, jnp.nan)

  product.defvjp(forward, backward)
  monkeypatch.setattr(dropless.grouped_matmul, 'grouped_matmul', product)
  monkeypatch.setattr(dropless, 'mixture', dropless.grouped_mixture)
  monkeypatch.setattr(jax.lax, 'ragged_all_to_all', _ragged_all_to_all)
  with platforms.tracing_for('gpu'):
    config = _config(expert_dispatch=dispatch, **fields)
    got = _step(mesh, config, **_QUICKLY)[0]
  assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(got))


def _grouped(num_shards):
  experts = lambda weights, rows, gates, product: product(
    product(rows, weights.inputs[0]) * gates, weights.output
  )

  def mix(tokens, top_k, weights):
    return dropless.grouped_mixture(
      tokens, top_k, weights, experts, num_shards=num_shards
    )

  return mix


def test_stages_of_a_pipeline_share_the_condition(monkeypatch):
  monkeypatch.setattr(dropless, '_MIN_BUFFER_ROWS', 4)
  tokens = running.normal(3, 8, _D)
  weights = dropless.ExpertWeights(
    [running.normal(3, 2, _D, _F)], running.normal(3, 2, _F, _D)
  )
  # One stage routes all tokens to the local experts 0 and 1 of 8, two none.
  indices = (
    jnp.zeros((3, 8, 2), jnp.int32) + jnp.asarray([4, 0, 2])[:, None, None]
  )
  top_k = dropless.TopKExperts(
    indices + jnp.arange(2), jnp.full((3, 8, 2), 0.5)
  )

  def outputs_and_gradients(num_shards):
    mapped = jax.vmap(_grouped(num_shards))

    def run(tokens, weights):
      outputs, pull = jax.vjp(lambda x, w: mapped(x, top_k, w), tokens, weights)
      return outputs, pull(jnp.cos(outputs))

    has_condition = 'cond[' in str(jax.make_jaxpr(run)(tokens, weights))
    assert has_condition == (num_shards > 1)
    with platforms.tracing_for('gpu'):
      return jax.jit(run)(tokens, weights)

  got, want = outputs_and_gradients(4), outputs_and_gradients(1)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)
  outputs = got[0]
  assert np.abs(outputs[1]).max() > 0
  np.testing.assert_array_equal(outputs[::2], 0)


def test_flops_are_those_of_balanced_experts(monkeypatch):
  monkeypatch.setattr(dropless, '_MIN_BUFFER_ROWS', 4)
  args = (
    jnp.ones((64, _D)),
    dropless.TopKExperts(jnp.zeros((64, 2), jnp.int32), jnp.ones((64, 2))),
    dropless.ExpertWeights([jnp.ones((2, _D, _F))], jnp.ones((2, _F, _D))),
  )
  for num_shards in (1, 4):
    found = flops.count(_grouped(num_shards), *args)['ragged_dot_general']
    assert found == 2 * (64 * 2 // num_shards) * 2 * _D * _F


def test_experts_of_a_token_differ_where_gates_underflow():
  logits = jnp.asarray([[[200.0, 0.0, 0.0, 1.0]]])
  assignment = gating.assign_experts(
    logits,
    jnp.ones((1, 1)),
    gating.GatingOptions(experts_per_token=3),
    lambda: jax.random.key(0),
  )
  chosen = np.sum(assignment.masks, axis=0)[0, 0]
  assert chosen.max() == 1 and chosen[0] == 1
  np.testing.assert_array_equal(
    [float(gate[0, 0]) for gate in assignment.gates], [1, 0, 0]
  )


def test_tokens_move_and_weights_stay(one_device):
  got, text = _step((1, 8, 1), _config(), **_QUICKLY)
  _check(got, one_device)
  sent = {
    shape
    for found in collectives.find_collectives(text)
    for shape in found.shapes
    if found.kind != 'all-reduce'
  }
  assert sent
  assert not any(shape[-2:] in {(_D, _F), (_F, _D)} for shape in sent)


# Experts and other axes together; experts on an axis that tokens are not on.
@pytest.mark.parametrize('batch', [_BATCH, 'data'])
def test_with_other_axes(batch, one_device):
  config = _config()
  activations = config.activation_split_dims_mapping
  activations.gsm, activations.gs = [batch, None, 'mdl'], [batch, None]
  got, _ = _step((2, 2, 2), config, **_QUICKLY)
  _check(got, one_device)


def test_biases_of_experts_and_hidden_units_on_other_devices():
  config = _config(experts_per_token=3, **_UNITS)
  got, _ = _step((1, 4, 2), config, **_QUICKLY)
  _check(got, _three_experts_on_one_device(True))


@pytest.mark.parametrize('mesh', [(2, 2, 1), *nightly.cases(((2, 1, 1),))])
def test_an_axis_may_shard_tokens_and_hidden_units(one_device, mesh):
  config = _config()
  config.weight_split_dims_mapping.emh = ['expert', None, 'data']
  config.weight_split_dims_mapping.ehm = ['expert', 'data', None]
  got, _ = _step(mesh, config, **_QUICKLY)
  _check(got, one_device)


def test_axes_are_renamed_by_the_context():
  axes = ['expert', None, 'mdl'], ['data', None, None]
  hparams = base_layer.JaxContext.HParams(
    mesh_axes_transpose={'data': 'mdl', 'mdl': None}
  )
  with (
    jax.set_mesh(_mesh((2, 2, 2))),
    base_layer.JaxContext.new_context(hparams=hparams),
  ):
    got = expert_parallel.ExpertMeshAxes.from_mappings(*axes, _AXES, (8, 8, 8))
  assert (got.expert, got.group, got.hidden) == (('expert',), ('mdl',), ())


def _check(got, want):
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b, atol=2e-6 * max(1.0, np.abs(b).max()))


def test_dropout_within_experts_is_refused_on_several_devices():
  with pytest.raises(ValueError, match='use residual_dropout_prob'):
    _step((1, 2, 1), _config(relu_dropout_prob=0.1))


def test_load_of_experts_is_reported():
  x, paddings = _inputs()
  layer, variables = running.build(_config(), x, paddings)
  _, updates = running.run(
    layer, variables, x, paddings, mutable=[base_layer.SUMMARIES]
  )
  params = jax.device_get(variables['params'])
  tokens = np.asarray(x)[np.asarray(paddings) == 0]
  best = np.argsort(_normed(tokens, params) @ params['gate'], axis=-1)[:, -2:]
  load = np.bincount(best.ravel(), minlength=_E)
  reports = updates[base_layer.SUMMARIES]
  for name, want in (('max', load.max()), ('min', load.min())):
    np.testing.assert_allclose(
      reports[f'expert_load_{name}_scalar'], want / load.mean(), rtol=1e-6
    )


def _normed(x, params):
  """Returns what the layer's own normalization makes of its inputs."""
  if 'layer_norm' not in params:
    return x
  norm = params['layer_norm']
  scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(
    x.var(-1, keepdims=True) + 1e-6
  )
  return scaled * (1 + norm['scale']) + norm['bias']
