# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Train states are pytrees with names that checkpoints can rely on."""

from __future__ import annotations

import jax
import numpy as np

from pax import train_states


def _state():
  return train_states.TrainState(
    step=np.uint32(3),
    mdl_vars={'params': {'w': np.zeros(2)}},
    opt_states=[{'m': np.ones(2)}],
  )


def test_leaves_have_named_paths():
  leaves = jax.tree_util.tree_flatten_with_path(_state())[0]
  assert [jax.tree_util.keystr(path) for path, _ in leaves] == [
    '.step',
    ".mdl_vars['params']['w']",
    ".opt_states[0]['m']",
  ]


def test_new_state_is_one_step_later():
  state = _state()
  new = state.new_state({'params': {'w': np.ones(2)}}, state.opt_states)
  assert new.step == 4
  assert state.step == 3
  np.testing.assert_array_equal(new.mdl_vars['params']['w'], np.ones(2))


def test_eval_state_has_no_optimizer():
  state = _state().to_eval_state()
  assert state.opt_states == []
  assert 'params' in state.mdl_vars


def test_provenance_tells_every_leaf():
  provenance = train_states.build_train_state_provenance(_state(), '/old', 7)
  assert repr(provenance.mdl_vars['params']['w']) == '"/old:7"'
  provenance = train_states.build_train_state_provenance(_state())
  assert repr(provenance.opt_states[0]['m']) == '"random_init"'


def test_provenance_type_is_a_class():
  provenance = train_states.build_train_state_provenance(_state())
  assert isinstance(provenance, train_states.TrainStateProvenance)
