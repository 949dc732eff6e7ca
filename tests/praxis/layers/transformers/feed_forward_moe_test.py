# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Mixtures of experts against a loop over tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import activations
from praxis.layers.moe import gating, segment_means
from praxis.nested_map import NestedMap
from tests.praxis.layers import running
from tests.praxis.layers.moe import mixtures
from tests.testing import nightly, numpy_layers

_B, _T, _D, _F, _E = 2, 8, mixtures.D, mixtures.F, mixtures.E
_UNITS = {'use_gated_activation': True, 'gated_limit': 0.3, 'gated_offset': 1.0}


def _top_k(gates, k, normalize=True):
  """Returns the weight of each expert for each token: k are not 0."""
  weights = np.zeros_like(gates)
  for index in np.ndindex(gates.shape[:-1]):
    best = np.argsort(gates[index])[-k:]
    total = gates[index][best].sum() if normalize else 1.0
    weights[index][best] = gates[index][best] / total
  return weights


def _top2(gates):
  return _top_k(gates, 2)


@pytest.mark.parametrize(
  'kwargs',
  [
    {'gating_func': 'dense_top2', 'gating_logit_cap': 0.5},
    {'gating_func': 'dropless', 'has_bias': True, **_UNITS},
    {'apply_padding_first': True, **_UNITS},
    {'norm_policy': 'post_skip'},
    *nightly.cases(
      {},
      {'use_gated_activation': True},
      {'gating_func': 'dropless'},
      {'gating_func': 'dropless', 'use_gated_activation': True},
      {'gating_func': 'dropless', 'has_bias': True},
    ),
  ],
)
def test_two_experts_of_choice(kwargs):
  x = running.normal(_B, _T, _D)
  paddings = jnp.zeros((_B, _T)).at[1, 6:].set(1.0)
  layer, variables = running.build(mixtures.config(**kwargs), x, paddings)
  p = mixtures.numbers(variables)
  logits = np.asarray(x) @ p['gate'] + p.get('gate_bias', 0)
  if cap := kwargs.get('gating_logit_cap'):
    logits = cap * np.tanh(logits / cap)
  outputs = mixtures.experts(
    p,
    x,
    kwargs.get('use_gated_activation'),
    limit=kwargs.get('gated_limit', np.inf),
    offset=kwargs.get('gated_offset', 0.0),
  )
  mixed = np.einsum(
    'bted,bte->btd', outputs, _top2(numpy_layers.softmax(logits))
  )
  visible = 1 - np.asarray(paddings)[..., None]
  skip = x * visible if kwargs.get('apply_padding_first') else x
  got = running.run(layer, variables, x, paddings)
  np.testing.assert_allclose(got, skip + mixed * visible, atol=1e-4)


def test_derivatives_of_experts_keep_products_and_no_units():
  # No other dimension is 17.
  x = running.normal(1, 17, _D)
  config = mixtures.config(
    num_groups=1,
    gating_func='dropless',
    use_gated_activation=True,
    activation_tpl=pax_fiddle.Config(activations.SiLU),
  )
  layer, variables = running.build(config, x)
  pull = jax.vjp(lambda v: layer.apply(v, x), variables)[1]
  kept = [a for a in jax.tree.leaves(pull) if a.shape[-2:] == (17, mixtures.F)]
  # Two projections and the operand of the output projection of each expert.
  assert sum(a.size for a in kept) == 3 * mixtures.E * 17 * mixtures.F


@pytest.mark.parametrize(
  'k, normalize',
  [(1, False), (3, True), *nightly.cases((1, True), (3, False))],
)
def test_dropless_experts_of_a_token_are_k(k, normalize):
  x = running.normal(_B, _T, _D)
  paddings = jnp.zeros((_B, _T)).at[1, 3:].set(1.0)
  config = mixtures.config(
    gating_func='dropless',
    num_experts=5,
    experts_per_token=k,
    normalize_gates=normalize,
    use_gated_activation=True,
    moe_load_balance_loss_weight=0.5,
  )
  layer, variables = running.build(config, x, paddings)
  p = mixtures.numbers(variables)
  gates = numpy_layers.softmax(np.asarray(x, np.float64) @ p['gate'])
  chosen = _top_k(gates, k, normalize)
  mixed = np.einsum('bted,bte->btd', mixtures.experts(p, x, gated=True), chosen)
  visible = 1 - np.asarray(paddings)[..., None]
  got, updates = running.run(
    layer, variables, x, paddings, mutable=['aux_loss']
  )
  np.testing.assert_allclose(got, x + mixed * visible, atol=1e-4)
  # Of Switch Transformer, over the tokens of the whole batch.
  tokens = np.asarray(paddings) == 0
  density = (chosen[tokens] > 0).mean(0) / k
  want = 5 * np.sum(density * gates[tokens].mean(0))
  loss = updates['aux_loss']['aux_moe_load_balance_loss'].value
  np.testing.assert_allclose(loss, 0.5 * want, rtol=1e-5)


def test_load_balance_loss():
  x = running.normal(_B, _T, _D)
  config = mixtures.config(moe_load_balance_loss_weight=0.5)
  layer, variables = running.build(config, x)
  _, updates = running.run(layer, variables, x, mutable=['aux_loss'])
  gates = numpy_layers.softmax(
    np.asarray(x) @ mixtures.numbers(variables)['gate']
  )
  share = np.mean(np.eye(_E)[gates.argmax(-1)], axis=1)
  want = np.mean(share * gates.mean(1)) * _E**2
  loss = updates['aux_loss']['aux_moe_load_balance_loss']
  np.testing.assert_allclose(loss.value, 0.5 * want, rtol=1e-5)


def _route(logits, paddings=None, **kwargs):
  paddings = jnp.zeros(logits.shape[:2]) if paddings is None else paddings
  options = gating.GatingOptions(**{'capacity_factor': 1.0, **kwargs})

  @running.jit
  def route(logits, paddings):
    assignment = gating.assign_experts(
      logits, 1 - paddings, options, lambda: jax.random.key(0)
    )
    routing = gating.apply_capacity(assignment, options)
    return {
      'combine': routing.combine,
      'over_capacity': routing.over_capacity,
    }

  return NestedMap(route(jnp.asarray(logits, jnp.float32), paddings))


def test_experts_that_are_full_drop_tokens_second_choices_first():
  # Eight tokens; all want expert 0 first and expert 1 second; 4 places each.
  logits = np.tile([3.0, 2.0, -9.0, -9.0], (1, 8, 1))
  routing = _route(logits, capacity_factor=2.0)
  combine = np.asarray(routing.combine)
  assert combine.shape == (1, 8, 4, 4)
  kept = combine.sum(-1)
  gates = np.exp([3.0, 2.0]) / np.exp([3.0, 2.0]).sum()
  np.testing.assert_allclose(kept[0, :4, :2], np.tile(gates, (4, 1)), rtol=1e-5)
  np.testing.assert_array_equal(kept[0, 4:], 0)
  np.testing.assert_allclose(routing.over_capacity, [0.5, 0.5])
  # No two tokens share a place.
  assert np.all((combine > 0).sum(1) <= 1)


def test_gates_add_up_after_drops_without_legacy_behavior():
  logits = np.tile([3.0, 2.0, -9.0, -9.0], (1, 8, 1))
  logits[0, 6] = [3.0, -9.0, 2.0, -9.0]
  kept = _route(logits, capacity_factor=2.0, legacy_mtf_behavior=False).combine
  # The seventh has its second choice alone.
  want = [1, 1, 1, 1, 0, 0, 1, 0]
  np.testing.assert_allclose(kept.sum((-1, -2))[0], want, atol=1e-6)


@pytest.mark.parametrize(
  'tokens, factor, at_least, want',
  [(32, 2.0, 0, 16), (36, 1.0, 0, 12), (36, 1.0, 10, 10), (2, 1.0, 0, 4)],
)
def test_places_of_an_expert(tokens, factor, at_least, want):
  """The factor's share of 4 experts, rounded up to 4s where it is more."""
  options = gating.GatingOptions(
    capacity_factor=factor, expert_capacity_dim=at_least
  )
  assert gating.expert_capacity((1, tokens, 4), options) == want


def test_padding_takes_no_place():
  logits = np.tile([3.0, 2.0], (1, 8, 1))
  paddings = jnp.array([[1, 1, 1, 1, 1, 0, 0, 0]], jnp.float32)
  kept = _route(logits, paddings, capacity_factor=0.5).combine.sum((-1, -2))
  np.testing.assert_allclose(kept, 1 - paddings, atol=1e-6)


@pytest.mark.parametrize('policy', ['sampling', 'random'])
def test_second_experts_by_chance(policy):
  logits = np.tile([2.0, 0.0, 0.0, -2.0], (1, 512, 1))
  routing = _route(
    logits,
    second_expert_policy=policy,
    second_expert_threshold=0.3,
    capacity_factor=99.0,
  )
  chosen = np.asarray(routing.combine.sum(-1) > 0)[0]
  assert chosen[:, 0].all()
  shares = chosen[:, 1:].mean(0)
  if policy == 'sampling':
    want = np.exp([0.0, 0.0, -2.0]) / np.exp([0.0, 0.0, -2.0]).sum()
  else:
    # The best of the others, as often as its gate allows.
    gate = np.exp(0.0) / (np.exp(2.0) + np.exp(0.0))
    want = [gate / 0.3, 0, 0]
  np.testing.assert_allclose(shares, want, atol=0.08)


@pytest.mark.parametrize('version', ['expert_choice', 'expert_choice_v2'])
def test_experts_choose_tokens(version):
  """Each takes its share of the eight tokens: 2 * 1.5, or 4 of version 2."""
  x = running.normal(1, 8, _D)
  paddings = jnp.array([[0, 0, 0, 0, 0, 0, 1, 1]], jnp.float32)
  config = mixtures.config(
    gating_func=version,
    num_experts=4,
    num_groups=1,
    unadjusted_expert_capacity_factor=1.5,
  )
  layer, variables = running.build(config, x, paddings)
  p = mixtures.numbers(variables)
  gates = numpy_layers.softmax(np.asarray(x, np.float64) @ p['gate'])
  if version == 'expert_choice_v2':
    gates = gates * (1 - np.asarray(paddings))[..., None]
  counts = np.zeros((1, 8, 4))
  for e in range(4):
    places = 3 if version == 'expert_choice' else 4
    best = np.argsort(gates[0, :, e])[-places:]
    counts[0, best, e] = gates[0, best, e]
  mixed = np.einsum('bted,bte->btd', mixtures.experts(p, x), counts)
  visible = 1 - np.asarray(paddings)[..., None]
  got = running.run(layer, variables, x, paddings)
  np.testing.assert_allclose(got, x + mixed * visible, atol=1e-4)


@pytest.mark.parametrize('gated', [True, *nightly.cases(False)])
def test_gradients(gated):
  """Without drops, by finite differences of the loop in numpy."""
  x = running.normal(_B, _T, _D)
  layer, variables = running.build(
    mixtures.config(use_gated_activation=gated), x
  )
  dropless = mixtures.config(
    use_gated_activation=gated, gating_func='dropless', name='dropless'
  ).Instantiate()
  params = variables['params']
  target = np.asarray(running.normal(_B, _T, _D, seed=1), np.float64)

  def loss(layer, params):
    return jnp.sum(layer.apply({'params': params}, x) * target)

  def twin(p):
    weights = _top2(numpy_layers.softmax(np.asarray(x, np.float64) @ p['gate']))
    outputs = mixtures.experts(p, np.asarray(x, np.float64), gated)
    return np.sum(np.einsum('bted,bte->btd', outputs, weights) * target)

  rng = np.random.default_rng(2)
  way = jax.tree.map(lambda w: rng.standard_normal(w.shape), params)
  at = lambda step: twin(
    jax.tree.map(lambda w, v: np.float64(w) + step * v, params, way)
  )
  want = (at(1e-6) - at(-1e-6)) / 2e-6
  for kind in (layer, dropless):
    gradient = running.jit(jax.grad(lambda p, kind=kind: loss(kind, p)))(params)
    slopes = jax.tree.map(lambda g, v: np.sum(np.float64(g) * v), gradient, way)
    np.testing.assert_allclose(sum(jax.tree.leaves(slopes)), want, rtol=1e-3)


def _summaries(layer, variables, *args):
  _, updates = running.run(layer, variables, *args, mutable=['summaries'])
  return updates['summaries']


def test_summaries():
  """Of where tokens went, and of neurons that no token activates."""
  x = jnp.abs(running.normal(_B, _T, _D))
  paddings = jnp.zeros((_B, _T)).at[:, 6:].set(1.0)
  config = mixtures.config(num_groups=1, unadjusted_expert_capacity_factor=0.75)
  layer, variables = running.build(config, x, paddings)
  params = dict(variables['params'])
  # All of the 12 want expert 0 and then 1, of 4 places each.
  params['gate'] = jnp.zeros((_D, _E)).at[:, 0].set(2.0).at[:, 1].set(1.0)
  # The first neuron of all experts is dead; others sleep where no token is.
  params['wi_0'] = jnp.ones((_E, _D, _F)).at[:, :, 0].set(-1.0)
  got = _summaries(layer, {'params': params}, x, paddings)
  for name, want in {
    'over_capacity_1_ratio': 8 / 12,
    'over_capacity_2_ratio': 8 / 12,
    'dispatch_0': 8 / 12,
    'dispatch_1': 0,
    'dispatch_2': 4 / 12,
    # And all neurons of expert 2.
    'dead_ReLU_count': 2 + _F,
  }.items():
    np.testing.assert_allclose(got[f'{name}_scalar'], want, rtol=1e-6)
  gelu = mixtures.config(
    num_groups=1,
    unadjusted_expert_capacity_factor=0.75,
    activation_tpl=pax_fiddle.Config(activations.GELU),
    name='gelu',
  ).Instantiate()
  params['wi_0'] = params['wi_0'].at[:, :, 0].set(-1e-3)
  got = _summaries(gelu, {'params': params}, x, paddings)
  np.testing.assert_allclose(got['dead_GELU_count_scalar'], _F)


def test_weights_in_shards_are_one_weight():
  x = running.normal(_B, _T, _D)
  config = mixtures.config(gating_func='dropless', has_bias=True)
  layer, variables = running.build(config, x)
  p = variables['params']
  shards = {name: p[name] for name in ('gate', 'gate_bias', 'bo')}
  for i in range(2):
    part = slice(3 * i, 3 * i + 3)
    shards[f'wi_{i}'] = p['wi_0'][:, :, part]
    shards[f'bi_{i}'] = p['bi_0'][:, part]
    shards[f'wo_{i}'] = p['wo_0'][:, part]
  sharded = config.set(expert_weight_shards=2, name='sharded').Instantiate()
  np.testing.assert_allclose(
    running.run(sharded, {'params': shards}, x),
    running.run(layer, variables, x),
    atol=1e-5,
  )


def test_routing_of_whole_sentences():
  x = running.normal(_B, _T, _D)
  config = mixtures.config(moe_gating_embedding_level='sentence')
  layer, variables = running.build(config, x)
  p = mixtures.numbers(variables)
  gates = numpy_layers.softmax(np.asarray(x).mean(1) @ p['gate'])
  weights = np.repeat(_top2(gates)[:, None], _T, axis=1)
  mixed = np.einsum('bted,bte->btd', mixtures.experts(p, x), weights)
  got = running.run(layer, variables, x)
  np.testing.assert_allclose(got, x + mixed, atol=1e-4)


def test_means_of_segments():
  x = np.asarray(running.normal(1, 5, 2))
  ids = jnp.asarray([[1, 1, 2, 0, 2]])
  want = np.zeros((1, 5, 2))
  want[0, :2] = x[0, :2].mean(0)
  want[0, [2, 4]] = x[0, [2, 4]].mean(0)
  means = running.jit(segment_means.segment_means)
  got = means(jnp.asarray(x), None, ids)
  np.testing.assert_allclose(got, want, rtol=1e-6)
  # As many segments as positions.
  alone = means(jnp.asarray(x), None, jnp.arange(1, 6)[None])
  np.testing.assert_allclose(alone, x)
  paddings = jnp.asarray([[0.0, 0, 0, 1, 1]])
  padded = means(jnp.asarray(x), paddings, None)
  np.testing.assert_allclose(padded[0, 0], x[0, :3].mean(0), rtol=1e-6)
  np.testing.assert_array_equal(padded[0, 3:], 0)


def test_steps_are_routed_among_the_batch():
  """Few tokens have places too: each expert has four at least."""
  x = running.normal(_B, _D)
  config = mixtures.config(unadjusted_expert_capacity_factor=1.0, num_groups=1)
  layer, variables = running.build(config, x[:, None])
  got = running.run(layer, variables, x, method='extend_step')
  want = running.run(layer, variables, x[:, None])[:, 0]
  np.testing.assert_allclose(got, want, atol=1e-6)
  assert (got != x).any(-1).all()


def test_groups_are_not_smaller_than_asked_for():
  x = running.normal(_B, _T, _D)
  layer = mixtures.config(
    num_groups=8, min_group_size=8, name='layer'
  ).Instantiate()
  assert layer._num_groups(16) == 2
  assert layer._num_groups(64) == 8
  with pytest.raises(ValueError, match='must divide the number of tokens 16'):
    running.build(mixtures.config(num_groups=3), x)


def test_declared_weights():
  config = mixtures.config(
    use_gated_activation=True,
    gating_func='dropless',
    has_bias=True,
    name='layer',
    mesh_axis_names=['data', 'mdl'],
    ici_mesh_shape=[1, 1],
  )
  config.weight_split_dims_mapping.emh = ['data', None, 'mdl']
  config.weight_split_dims_mapping.ehm = ['data', 'mdl', None]
  declared = config.Instantiate().abstract_init_with_metadata(
    jnp.zeros((_B, _T, _D))
  )['params']
  uniform = lambda fan: base_layer.WeightInit.Uniform((3 / fan) ** 0.5)
  for name, shape, fan in [
    ('gate', (_D, _E), _D),
    ('wi_0', (_E, _D, _F), _D),
    ('wi_gate_0', (_E, _D, _F), _D),
    ('wo_0', (_E, _F, _D), _F),
  ]:
    assert declared[name].full_shape == shape
    assert declared[name].init == uniform(fan)
    fraction = 1 if name == 'gate' else 2 / _E
    assert declared[name].active_fraction == fraction
  for name, shape, split in [
    ('wo_0', (_E, _F, _D), ['data', 'mdl', None]),
    ('gate_bias', (_E,), [-1]),
    ('bi_0', (_E, _F), ['data', 'mdl']),
    ('bi_gate_0', (_E, _F), ['data', 'mdl']),
    ('bo', (_E, _D), ['data', None]),
  ]:
    assert declared[name].full_shape == shape
    assert list(declared[name].tensor_split_dims_mapping) == split


@pytest.mark.parametrize(
  'kwargs, message',
  [
    ({'norm_policy': 'none'}, 'norm_policy must be one of pre, post'),
    (
      {'unadjusted_expert_capacity_factor': 0.0},
      'or expert_capacity_dim must be positive',
    ),
    ({'gating_func': 'top3'}, 'gating_func must be one of top2'),
    ({'second_expert_policy': 'none'}, 'second_expert_policy must be'),
    ({'moe_load_balance_loss_weight': 0.0}, 'must not be 0'),
    ({'num_experts': 0}, 'needs num_experts > 0'),
    (
      {'gating_func': 'dense_top2', 'use_gated_activation': True},
      'use_gated_activation must be False',
    ),
    ({'experts_per_token': 3}, "set gating_func='dropless'"),
    ({'has_bias': True}, "set gating_func='dropless'"),
    (
      {'gating_func': 'dropless', 'has_bias': True, 'gates_scale_inputs': True},
      'has_bias must be False with gates_scale_inputs=True',
    ),
    ({'gates_scale_inputs': True}, 'gates_scale_inputs must have the default'),
    ({'gated_limit': 7.0}, 'use_gated_activation must be True'),
    ({'normalize_gates': False}, "set gating_func='dropless'"),
    (
      {'gating_func': 'dropless', 'experts_per_token': 4},
      'from 1 to num_experts=3, got 4',
    ),
    (
      {
        'gating_func': 'dropless',
        'experts_per_token': 1,
        'second_expert_policy': 'random',
      },
      "second_expert_policy must be 'all' with experts_per_token=1",
    ),
    ({'use_choice_bias': True}, 'use_choice_bias must have the default'),
    ({'groups_per_token': 2}, 'groups_per_token must have the default'),
    ({'gate_function': 'tanh'}, 'must be one of softmax, sigmoid; got'),
    (
      {'gating_func': 'dropless', 'num_expert_groups': 2},
      'num_expert_groups must divide num_experts=3',
    ),
    (
      {
        'gating_func': 'dropless',
        'num_expert_groups': 3,
        'experts_per_group_score': 2,
      },
      'experts_per_token=2 must be in groups_per_token=1 groups',
    ),
  ],
)
def test_impossible_mixtures_are_refused(kwargs, message):
  with pytest.raises(ValueError, match=message):
    running.build(mixtures.config(**kwargs), running.normal(_B, _T, _D))


def test_activation_is_that_of_the_template():
  x = running.normal(_B, _T, _D)
  layer, variables = running.build(
    mixtures.config(activation_tpl=pax_fiddle.Config(activations.Identity)), x
  )
  doubled = jax.tree.map(lambda w: w, variables)
  doubled['params']['wi_0'] = 2 * variables['params']['wi_0']
  got = running.run(layer, doubled, x) - x
  want = 2 * (running.run(layer, variables, x) - x)
  np.testing.assert_allclose(got, want, atol=1e-4)
