# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Which leaf of another checkpoint becomes which leaf of a fresh state."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pax import checkpoints, tasks_lib, train_states
from pax.checkpoints import init_from, paths, source_checkpoint
from tests.testing import trees

Rules = tasks_lib.CheckpointLoadingRules


def _mesh():
  return Mesh(np.array(jax.devices()[:2]), ('data',))


def _state(offset, step=0, *, split=('a',)):
  """Variables a, b of 2 and c of 3 numbers; their momenta; averages."""
  mesh = _mesh()

  def place(name, value):
    spec = PartitionSpec('data') if name in split else PartitionSpec()
    return jax.device_put(
      jnp.asarray(value, jnp.float32), NamedSharding(mesh, spec)
    )

  def variables(add):
    return {
      'params': {
        'a': place('a', [offset + add, 1]),
        'deep': {'b': place('b', [offset + add, 2])},
        'c': place('c', [offset + add, 3, 3]),
      }
    }

  momenta = [{'m': variables(100)}, {'ema': variables(200)}]
  place_step = jax.device_put(
    jnp.uint32(step), NamedSharding(mesh, PartitionSpec())
  )
  return train_states.TrainState(
    step=place_step, mdl_vars=variables(0), opt_states=[tuple(momenta)]
  )


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """Two jobs: one stopped at step 7, its numbers 10 and more; one 20."""
  found = []
  for offset, step in ((10, 7), (20, 8)):
    job = tmp_path_factory.mktemp('job')
    writer = checkpoints.create_checkpointer(
      checkpoints.CheckpointOptions(), str(job)
    )
    writer.save(step, _state(offset, step), force=True)
    writer.close()
    found.append(str(job))
  return found


def _load(all_rules, *, split=('a',)):
  state = _state(0, split=split)
  shown = []
  loader = init_from.LeafLoader(trees.abstract(state), shown.append)
  loader.select_by_rules(all_rules)
  leaves = loader.read()
  assert leaves.keys() == set(loader.selected)
  made = paths.unflatten(state, paths.flatten(state) | leaves)
  return made, shown, loader.provenance


def _firsts(tree):
  """The first number of each variable."""
  params = tree['params']
  return [float(x[0]) for x in (params['a'], params['deep']['b'], params['c'])]


def _rules(*load, **fields):
  return Rules(task_p=None, load_rules=list(load), **fields)


def test_everything_by_its_own_name(saved):
  made, shown, provenance = _load({saved[0]: _rules(init_from.LOAD_ALL)})
  assert _firsts(made.mdl_vars) == [10, 10, 10]
  assert _firsts(made.opt_states[0][0]['m']) == [100, 100, 100]
  assert int(made.step) == 0
  assert made.mdl_vars['params']['a'].sharding.spec == PartitionSpec('data')
  assert 'mdl_vars.params.deep.b  [2]  <- mdl_vars.params.deep.b' in shown[0]
  assert provenance['mdl_vars.params.c'].checkpoint_step == 7
  assert provenance['step'].checkpoint_path == 'random_init'


def test_rules_in_order_and_from_the_start_of_a_path(saved):
  rules = _rules(
    ('deep', 'no{}'),
    (r'params/(.*)/b$', 'params/{}/b'),
    (r'params/a', 'params/deep/b'),
  )
  made, *_ = _load({saved[0]: rules}, split=())
  assert _firsts(made.mdl_vars) == [10, 10, 0]
  assert float(made.mdl_vars['params']['a'][1]) == 2


def test_ignored_variables_and_those_that_are_done(saved):
  all_rules = {
    saved[0]: _rules(init_from.LOAD_ALL, ignore_rules=['params/deep']),
    saved[1]: _rules(init_from.LOAD_ALL),
  }
  made, (shown,), _ = _load(all_rules)
  assert _firsts(made.mdl_vars) == [10, 20, 10]
  first, second, rest = (
    line for line in shown.splitlines() if not line.startswith('  ')
  )
  num_leaves = len(jax.tree.leaves(made))
  assert first.startswith(f'from {saved[0]}')
  assert first.endswith(f': 2 of {num_leaves} arrays')
  assert second.startswith(f'from {saved[1]}')
  assert second.endswith(f': 1 of {num_leaves} arrays')
  assert rest == f'arrays initialized afresh: {num_leaves - 3}'


def test_parameters_that_are_not_loaded_are_named(saved):
  rules = _rules(init_from.LOAD_ALL, ignore_rules=['params/deep'])
  made, (shown,), _ = _load({saved[0]: rules})
  count = len(jax.tree.leaves(made)) - 2
  assert shown.splitlines()[-2:] == [
    f'arrays initialized afresh: {count}, of them 1 parameters of the model',
    '  mdl_vars.params.deep.b  [2]',
  ]


def test_averages_step_and_optimizer(saved):
  rules = _rules(('(params/a)', 'ema/{}'), load_step=True, load_opt_states=True)
  made, *_ = _load({saved[0]: rules})
  assert _firsts(made.mdl_vars) == [210, 0, 0]
  assert int(made.step) == 7
  assert _firsts(made.opt_states[0][0]['m']) == [110, 110, 110]
  assert _firsts(made.opt_states[0][1]['ema']) == [210, 210, 210]


def test_states_that_flax_made_dicts_of(tmp_path):
  state = _state(10, 7)
  state = state.replace(
    opt_states=serialization.to_state_dict(state.opt_states)
  )
  writer = checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(), str(tmp_path)
  )
  writer.save(7, state, force=True)
  writer.close()
  rules = _rules(('(params/a)', 'ema/{}'), load_opt_states=True)
  made, *_ = _load({str(tmp_path): rules})
  assert _firsts(made.mdl_vars) == [210, 0, 0]
  assert _firsts(made.opt_states[0][0]['m']) == [110, 110, 110]


def test_part_of_the_optimizer(saved):
  rules = _rules(
    ('(params/a)', '{}'),
    ('(0/0/m/params/a)', '{}'),
    ('0/0/m/params/deep/(.*)', '0/1/ema/params/deep/{}'),
    partial_load_opt_states=True,
  )
  made, *_ = _load({saved[0]: rules})
  assert _firsts(made.opt_states[0][0]['m']) == [110, 210, 100]


def test_the_second_of_one_source_is_a_copy(saved):
  made, *_ = _load({saved[0]: _rules(('params/(?!c)', 'params/a'))}, split=())
  params = made.mdl_vars['params']
  assert float(params['deep']['b'][1]) == 1
  params['a'].delete()
  assert float(params['deep']['b'][0]) == 10


@pytest.mark.parametrize(
  ('rules', 'error', 'message'),
  [
    (_rules(('params/a', 'params/x')), KeyError, 'params/x is not in'),
    (_rules(('params/a', 'params/c')), ValueError, 'must have shape [2]'),
    (_rules(('params/(?!c)', 'params/a')), ValueError, 'sharded differently'),
    (
      _rules(init_from.LOAD_ALL, ('para', '{}'), safe_load=True),
      ValueError,
      "load_rules ['para'] match no variable",
    ),
    (
      _rules(('(params/a)', 'ema/{}'), load_ema_states=False),
      RuntimeError,
      'has no averages',
    ),
    (_rules(init_from.LOAD_ALL, step=3), ValueError, 'no checkpoint of step 3'),
    (_rules(('(params', '{}')), ValueError, "regular expression '(params', "),
    (
      _rules(init_from.LOAD_ALL, ignore_rules=['*']),
      ValueError,
      "ignore_rules has the regular expression '*', which has an error",
    ),
    (
      _rules(('(.*)/a', '{}/{}')),
      ValueError,
      "the path '{}/{}' for '(.*)/a'; each of its {} must stand for one of the"
      ' 1 groups',
    ),
  ],
)
def test_mistakes(saved, rules, error, message):
  with pytest.raises(error, match=re.escape(message)):
    _load({saved[0]: rules})


def test_floats_do_not_become_integers(saved):
  state = _state(0)
  params = state.mdl_vars['params']
  params['c'] = params['c'].astype(jnp.int8)
  loader = init_from.LeafLoader(trees.abstract(state), lambda _: None)
  message = 'params.c must be int8, and .* is float32; .*--mode=quantize'
  with pytest.raises(ValueError, match=message):
    loader.select_by_name(saved[0], None)


def test_optax_takes_over_what_our_adam_kept(saved):
  leaves = {'0/0/0/mu/params/a': 'x', '0/0/0/count': 'y'}
  source = source_checkpoint.SourceCheckpoint.open(saved[0])
  found = init_from._all_opt_states(leaves, source)
  assert found == {'x': 'opt_states_0_0.m.params.a'}


def test_all_that_has_the_same_name_and_shape(saved):
  state = _state(0)
  other = state.replace(
    mdl_vars={'params': {**state.mdl_vars['params'], 'c': jnp.zeros(4)}}
  )
  loader = init_from.LeafLoader(trees.abstract(other), lambda _: None)
  loader.select_by_name(*init_from.parse(f'{saved[1]}@8'))
  made = paths.unflatten(other, paths.flatten(other) | loader.read())
  assert _firsts(made.mdl_vars) == [20, 20, 0]
  with pytest.raises(ValueError, match='DIR or DIR@STEP'):
    init_from.parse('dir@newest')
  np.testing.assert_equal(init_from.parse('a/b'), ('a/b', None))
  assert init_from.parse('/a@b/job') == ('/a@b/job', None)
  assert init_from.parse('/a@b/job@7') == ('/a@b/job', 7)


def _apply(all_rules, **kwargs):
  state = _state(0)
  provenance = train_states.build_train_state_provenance(state)
  return init_from.apply_rules(state, provenance, all_rules, **kwargs)


def test_rules_on_a_state_keep_its_other_leaves(saved):
  state, provenance, needs_opt_states = _apply(
    {saved[0]: _rules(('(params/a)', '{}'), load_step=True)}
  )
  assert _firsts(state.mdl_vars) == [10, 0, 0]
  assert _firsts(state.opt_states[0][0]['m']) == [100, 100, 100]
  assert int(state.step) == 7
  assert needs_opt_states
  assert provenance.step == train_states.TensorProvenance(saved[0], 7)
  assert provenance.mdl_vars['params']['c'] == train_states.TensorProvenance()


def test_rules_on_a_state_with_optimizer_states_and_specs(saved):
  state = _state(0)
  specs = jax.tree.map(lambda _: PartitionSpec(), state)
  state, _, needs_opt_states = _apply(
    {saved[1]: _rules(init_from.LOAD_ALL, load_opt_states=True)},
    partition_specs=specs,
    mesh=_mesh(),
  )
  assert _firsts(state.opt_states[0][1]['ema']) == [220, 220, 220]
  assert state.mdl_vars['params']['a'].sharding.spec == PartitionSpec()
  assert not needs_opt_states
