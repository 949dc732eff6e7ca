# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Stacked layers are updated as if each were alone; how their state lies."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from praxis import base_layer, optimizers
from praxis import optimizer_prefix_vectorization as upstream_path
from praxis.optimizers import prefix_vectorization
from praxis.pytypes import NestedMap
from tests.praxis.optimizers import problem

vectorize = (
  prefix_vectorization.get_transformations_with_vectorized_repeat_prefix
)


def _hparams():
  stacked = dict(repeat_prefix=[4], repeat_prefix_split_dims_mapping=[-1])
  return {
    'params': {
      'emb': problem.weight([3, 5]),
      'layers': {
        'b': problem.weight([6], **stacked),
        'w': problem.weight([5, 6], **stacked),
      },
      'nested': {
        'w': problem.weight(
          [2, 3],
          repeat_prefix=[2, 3],
          repeat_prefix_split_dims_mapping=[-1, -1],
        )
      },
    }
  }


def _variables():
  rng = np.random.default_rng(0)
  # Layers of different size, so that statistics over all would differ.
  return jax.tree.map(
    lambda hp: (
      rng.normal(size=hp.full_shape).astype(np.float32)
      * (1 + np.arange(hp.full_shape[0])).reshape(-1, *[1] * (hp_rank(hp) - 1))
    ),
    _hparams(),
  )


def hp_rank(hp):
  return len(hp.full_shape)


def _optimizer(config):
  return config.set(
    learning_rate=0.1, lr_schedule=problem.SCHEDULE
  ).Instantiate()


def _vectorized(config, **kwargs):
  make_tx = _optimizer(config).get_grad_transformation
  return vectorize(make_tx, _hparams(), **kwargs)


GOLDEN = """\
['no_prefix'][0]['count'] () int32
['no_prefix'][1]['count'] () int32
['no_prefix'][2]['count'] () int32
['no_prefix'][2]['m']['params']['emb'] (3, 5) float32
['no_prefix'][2]['v']['params']['emb'] (3, 5) float32
['no_prefix'][3]['count'] () int32
['p#2.3#i-1.i-1'][0]['count'] (2, 3) int32
['p#2.3#i-1.i-1'][1]['count'] (2, 3) int32
['p#2.3#i-1.i-1'][2]['count'] (2, 3) int32
['p#2.3#i-1.i-1'][2]['m']['params']['nested']['w'] (2, 3, 2, 3) float32
['p#2.3#i-1.i-1'][2]['v']['params']['nested']['w'] (2, 3, 2, 3) float32
['p#2.3#i-1.i-1'][3]['count'] (2, 3) int32
['p#4#i-1'][0]['count'] (4,) int32
['p#4#i-1'][1]['count'] (4,) int32
['p#4#i-1'][2]['count'] (4,) int32
['p#4#i-1'][2]['m']['params']['layers']['b'] (4, 6) float32
['p#4#i-1'][2]['m']['params']['layers']['w'] (4, 5, 6) float32
['p#4#i-1'][2]['v']['params']['layers']['b'] (4, 6) float32
['p#4#i-1'][2]['v']['params']['layers']['w'] (4, 5, 6) float32
['p#4#i-1'][3]['count'] (4,) int32
"""


def test_the_layout_that_checkpoints_depend_on():
  tx = _vectorized(optimizers.Adam.config())
  state = jax.eval_shape(tx.init, _variables())
  lines = [
    f'{jax.tree_util.keystr(path)} {x.shape} {x.dtype}\n'
    for path, x in jax.tree_util.tree_flatten_with_path(state)[0]
  ]
  assert ''.join(lines) == GOLDEN


def test_descriptions_match_the_state():
  for config in (
    optimizers.Adam.config(ema_decay=0.9),
    optimizers.ShardedAdafactor.HParamsAdamB(),
  ):
    tx = _vectorized(config)
    state = jax.eval_shape(tx.init, _variables())
    specs = tx.init_partition_spec(_hparams())
    assert jax.tree.structure(state) == jax.tree.structure(specs)
    for x, spec in zip(
      jax.tree.leaves(state), jax.tree.leaves(specs), strict=True
    ):
      assert (x.shape, x.dtype) == (tuple(spec.full_shape), spec.dtype)


@pytest.mark.parametrize(
  'config',
  [
    optimizers.Adam.config(clip_threshold=0.5, decoupled_weight_decay=0.01),
    optimizers.ShardedAdafactor.HParamsAdamB(),
  ],
)
def test_each_layer_is_updated_alone(config):
  params = _variables()
  got, _ = problem.run(_vectorized(config), params, steps=4)

  def alone(select, hparams):
    """Returns the variables after the steps of one layer by itself."""
    tree = {'params': {'w': select(params['params'])}}
    tx = _optimizer(config).get_grad_transformation({'params': {'w': hparams}})
    return problem.run(tx, tree, steps=4)[0]['params']['w']

  checks = [
    (lambda p: p['emb'], [3, 5]),
    (lambda p: p['layers']['b'][2], [6]),
    (lambda p: p['layers']['w'][3], [5, 6]),
    (lambda p: p['nested']['w'][1, 2], [2, 3]),
  ]
  for select, shape in checks:
    want = alone(select, problem.weight(shape))
    np.testing.assert_allclose(
      select(got['params']), want, rtol=2e-4, atol=1e-5
    )


def test_without_a_prefix_the_state_is_plain_unless_forced():
  adam = _optimizer(optimizers.Adam.config())
  params, hparams = problem.variables(), problem.hparams()
  make_tx = adam.get_grad_transformation
  plain = vectorize(make_tx, hparams).init(params)
  assert isinstance(plain, tuple)
  forced = vectorize(make_tx, hparams, force_prefix_structure=True).init(params)
  assert set(forced) == {'no_prefix'}
  assert upstream_path.has_no_prefix(forced)
  assert not upstream_path.has_no_prefix({**forced, 'p#2#i-1': ()})


def test_state_and_declarations_are_nested_maps_of_groups():
  tx = _vectorized(optimizers.Adam.config())
  state = jax.eval_shape(tx.init, _variables())
  updated = jax.eval_shape(tx.update, _variables(), state, _variables())[1]
  specs = tx.init_partition_spec(_hparams())
  described = upstream_path.partition_params(tx, _hparams(), state)
  for groups in (state, updated, specs, described):
    assert isinstance(groups, NestedMap)
    assert groups.no_prefix is groups['no_prefix']
  # Without a prefix, it is empty instead of None.
  for spec in jax.tree.leaves(specs.no_prefix):
    assert spec.repeat_prefix == spec.repeat_prefix_split_dims_mapping == []


@pytest.mark.parametrize(
  'fields, sep, key',
  [
    (dict(), '#', 'no_prefix'),
    (dict(repeat_prefix=[96]), '#', 'p#96#i-1'),
    (
      dict(repeat_prefix=[96], repeat_prefix_split_dims_mapping=[-1]),
      '_',
      'p_96_i-1',
    ),
    (
      dict(repeat_prefix=[8], repeat_prefix_split_dims_mapping=['stage']),
      '#',
      'p#8#sstage',
    ),
    (
      dict(
        repeat_prefix=[2, 8],
        repeat_prefix_split_dims_mapping=[('data', 'mdl'), None],
      ),
      '#',
      'p#2.8#tsdata,smdl.',
    ),
    (
      dict(repeat_prefix=[8], repeat_optimizer_dims_mapping=['data']),
      '#',
      'p#8#i-1#sdata',
    ),
    (
      dict(repeat_prefix=[8], repeat_optimizer_dims_mapping=[-1]),
      '#',
      'p#8#i-1',
    ),
  ],
)
def test_names_of_groups(fields, sep, key):
  hparams = problem.weight([2], **fields)
  assert prefix_vectorization.group_key(hparams, sep) == key


def test_optimizer_dims_mapping_shards_the_state_only():
  hparams = {
    'w': problem.weight(
      [2, 4],
      repeat_prefix=[8],
      repeat_optimizer_dims_mapping=['data'],
      tensor_split_dims_mapping=[-1, 'mdl'],
    )
  }
  make_tx = _optimizer(optimizers.Adam.config()).get_grad_transformation
  specs = vectorize(make_tx, hparams).init_partition_spec(hparams)
  raw = specs['p#8#i-1#sdata'][2]
  assert raw.m['w'].full_split_dims_mapping == ['data', -1, 'mdl']
  assert raw.count.full_split_dims_mapping == ['data']


def test_a_state_with_other_groups_is_refused():
  tx = _vectorized(optimizers.Adam.config())
  state = _vectorized(optimizers.Adam.config(), repeat_prefix_sep='_').init(
    _variables()
  )
  with pytest.raises(ValueError, match='repeat_prefix_sep'):
    tx.update(_variables(), state, _variables())


def test_updates_without_variables():
  tx = _vectorized(optimizers.Sgd.config())
  ones = jax.tree.map(jnp.ones_like, _variables())
  updates, _ = tx.update(ones, tx.init(ones))
  assert jax.tree.structure(updates) == jax.tree.structure(ones)


def test_a_transformation_made_before_is_taken_as_well():
  adam = _optimizer(optimizers.Adam.config(l2_regularizer_weight=0.1))
  params = _variables()
  states, updates = [], []
  for tx in (
    adam.get_grad_transformation,
    adam.get_grad_transformation(_hparams()),
  ):
    tx = upstream_path.get_transformations_with_vectorized_repeat_prefix(
      tx, _hparams()
    )
    state = tx.init(params)
    states.append(state)
    grads = problem.gradients(params, 0)
    updates.append(problem.jit(tx.update)(grads, state, params)[0])
  problem.assert_close(*updates, rtol=1e-6)
  described = upstream_path.partition_params(tx, _hparams(), states[0])
  m = described['p#4#i-1'][2].m['params']['layers']['w']
  assert (list(m.shape), m.repeat_prefix) == ([5, 6], [4])


@pytest.mark.parametrize('is_stacked', [False, True])
def test_global_summaries_name_the_prefix(is_stacked):
  def init(params):
    return ()

  def update(updates, state, params=None):
    squares = [jnp.sum(jnp.square(x)) for x in jax.tree.leaves(updates)]
    base_layer.add_global_summary('energy', sum(squares))
    return updates, state

  def make_tx(hparams):
    return optax.GradientTransformation(init, update)

  variables, hparams = _variables(), _hparams()
  if not is_stacked:
    variables, hparams = (
      {'params': {'emb': tree['params']['emb']}}
      for tree in (variables, hparams)
    )
  tx = upstream_path.get_transformations_with_vectorized_repeat_prefix(
    make_tx, hparams
  )

  @jax.jit
  def step(variables):
    with base_layer.JaxContext.new_context():
      tx.update(variables, tx.init(variables), variables)
      return base_layer.all_global_summaries()

  summaries = step(variables)
  energy = lambda x, axes: np.sum(np.square(x), axis=axes)
  want = {'energy.[]_scalar': energy(variables['params']['emb'], None)}
  if is_stacked:
    layers = variables['params']['layers']
    want['energy.[4]_scalar'] = energy(layers['w'], (1, 2)) + energy(
      layers['b'], 1
    )
    nested = variables['params']['nested']['w']
    want['energy.[2, 3]_scalar'] = energy(nested, (2, 3))
  assert summaries.keys() == want.keys()
  for name, value in want.items():
    np.testing.assert_allclose(summaries[name], value, rtol=1e-5)


def test_the_state_of_a_bare_variable_is_sharded_like_it():
  hparams = base_layer.WeightHParams(
    shape=[4, 2], mesh_shape=[1, 1], tensor_split_dims_mapping=['data', None]
  )
  adam = optax.adam(0.1)
  state = adam.init(jnp.zeros([4, 2]))
  described = upstream_path.partition_params(adam, hparams, state)
  for moment in (described[0].mu, described[0].nu):
    assert list(moment.tensor_split_dims_mapping) == ['data', None]
  assert list(described[0].count.shape) == []
