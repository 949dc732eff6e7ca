# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Fingerprints of data in the states of inputs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from praxis import base_input, py_utils
from praxis.base_input import data_fingerprints


class Counter(base_input.BaseInput):
  """Counts batches of some data."""

  data: str = 'a'
  count: int = 0

  def get_next(self):
    self.count += 1
    return py_utils.NestedMap(count=np.array([self.count]))

  def data_fingerprint(self):
    return {'data': self.data, 'shape': (1, 2)} if self.data else {}

  def _get_state_internal(self):
    return {'count': self.count}

  def _set_state_internal(self, state):
    self.count = state['count']


def make(**kwargs) -> Counter:
  return Counter.config(batch_size=1, **kwargs).Instantiate()


def save(inp: base_input.BaseInput):
  return json.loads(json.dumps(inp.get_state()))


def test_the_state_has_the_fingerprint_and_continues_with_equal_data():
  source = make()
  for _ in range(3):
    source.get_next_padded()
  source.peek_padded()
  state = save(source)
  resumed = make()
  resumed.set_state(state)
  assert resumed.get_next().count == 4
  resumed.set_state(base_input.advance_state(state, 2))
  assert resumed.get_next().count == 6


def test_other_data_are_refused_and_accepted_without_fingerprint():
  state = save(make(count=5))
  changed = make(data='b' * 1000)
  with pytest.raises(ValueError, match='data was a, is b{160}[.]{3}[.] Rest'):
    changed.set_state(state)
  assert changed.count == 0
  changed.set_state(data_fingerprints.detach_all(state))
  assert changed.count == 5


def test_states_and_inputs_without_fingerprint_go_on():
  make().set_state({'count': 5})
  make(data='').set_state(save(make(count=5)))
  assert make(data='', count=5).get_state() == {'count': 5}


def multi(data: str, names: str = 'xy') -> base_input.MultiInput:
  return base_input.MultiInput.config(
    input_to_params={
      name: Counter.config(batch_size=1, data=data) for name in names
    }
  ).Instantiate()


def test_components_have_their_own_fingerprints():
  source = multi('a')
  source.get_next()
  state = save(source)
  with pytest.raises(
    data_fingerprints.ChangedDataError, match='data was a'
  ) as e:
    multi('b').set_state(state)
  assert e.value.changes == "input 'input_x': data was a, is b"
  other = multi('b')
  nested = base_input.advance_state(state, 1)
  other.set_state(data_fingerprints.detach_all(nested))
  assert other.get_next().x.count.tolist() == [[3]]


@pytest.mark.parametrize('is_large', [False, True])
def test_a_component_may_only_be_removed_as_changed_data(is_large, monkeypatch):
  monkeypatch.setattr(Counter, 'has_large_state', is_large)
  source = multi('a')
  source.get_next_padded()
  source.peek_padded()
  text = base_input.state_to_json(source.get_state())
  state = base_input.state_from_json(text)
  fewer = multi('a', names='x')
  message = r'inputs was \["x", "y"\], is \["x"\][.] Restore .*--accept_changed'
  with pytest.raises(data_fingerprints.ChangedDataError, match=message):
    fewer.set_state(state)
  fewer.set_state(data_fingerprints.detach_all(state))
  assert fewer.get_next_padded().x.count.tolist() == [[2]]


def test_a_component_without_state_is_no_changed_data():
  state = save(multi('a', names='x'))
  with pytest.raises(ValueError, match=r"\['y'\] have no state") as e:
    multi('a').set_state(state)
  assert not isinstance(e.value, data_fingerprints.ChangedDataError)
