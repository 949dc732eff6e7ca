# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Moving averages are extracted from any optimizer state."""

from __future__ import annotations

import optax
import pytest

from pax import tasks_lib, train_states
from praxis.pytypes import NestedMap
from tests.pax import tiny


def _state(opt_states):
  return train_states.TrainState(
    step=3,
    mdl_vars={'params': {'a': 1, 'b': 2}, 'non_trainable': {'n': 3}},
    opt_states=opt_states,
  )


def _ema(**values):
  return NestedMap(count=0, ema={'params': values})


@pytest.mark.parametrize(
  'opt_states',
  [
    [(NestedMap(m={'params': {'a': 7}}), _ema(a=10, b=20))],
    [{'no_prefix': (_ema(a=10),), 'p#2#i-1': (_ema(b=20),)}],
    # Several optimizers: averages of variables first, then of gradients.
    [(_ema(a=10, b=20), optax.EmaState(0, {'params': {'a': 7, 'b': 7}}))],
  ],
)
def test_variables_are_replaced_by_their_averages(opt_states):
  found = tasks_lib.extract_ema(_state(opt_states))
  assert found.mdl_vars == {
    'params': {'a': 10, 'b': 20},
    'non_trainable': {'n': 3},
  }
  assert found.opt_states == [] and found.step == 3


def test_what_has_no_average_may_be_left_out():
  state = _state([(_ema(a=10),)])
  assert tasks_lib.extract_ema(state).mdl_vars['params'] == {'a': 10, 'b': 2}
  left = tasks_lib.extract_ema(state, merge_for_bprop_exclusion=False)
  assert left.mdl_vars['params'] == {'a': 10, 'b': None}


def test_states_stacked_over_repeats():
  assert tasks_lib.is_vectorized(_state([{'no_prefix': (), 'p#2#i-1': ()}]))
  assert not tasks_lib.is_vectorized(_state([(NestedMap(),)]))
  with pytest.raises(ValueError, match='got none'):
    tasks_lib.is_vectorized(_state([]))


def test_no_averages():
  with pytest.raises(ValueError, match='ema_decay'):
    tasks_lib.extract_ema(_state([(NestedMap(m={'params': {'a': 7}}),)]))


def test_a_task_and_its_config():
  config = tiny.task()
  assert not tasks_lib.has_ema(config)
  config.train.learner.optimizer.ema_decay = 0.9
  assert tasks_lib.has_ema(config) and tasks_lib.has_ema(config.Instantiate())
