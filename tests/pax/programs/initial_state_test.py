# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The state of --init_from: what a job needs, and no more."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from pax import checkpoints, partitioning
from pax.checkpoints import init_from
from pax.programs import initial_state
from tests.pax import tiny

_KEY = jax.random.key(7)


def _partitioner():
  return partitioning.partition_task(
    tiny.task([1, 1, 1]), tiny.spec(tiny.batch()), devices=jax.devices()[:1]
  )


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """The directory of a job, and its state."""
  directory = str(tmp_path_factory.mktemp('job'))
  state = _partitioner().initialize(_KEY)
  writer = checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(), directory
  )
  writer.save(3, state, force=True)
  writer.close()
  return directory, state


@pytest.mark.parametrize('is_trained', [True, False])
def test_only_training_has_optimizer_states(saved, tmp_path, is_trained):
  directory, wanted = saved
  state, provenance = initial_state.initialize(
    _partitioner(), tmp_path, print, directory, is_trained=is_trained
  )
  assert bool(state.opt_states) == is_trained
  assert jax.tree.structure(state) == jax.tree.structure(provenance)
  jax.tree.map(np.testing.assert_array_equal, state.mdl_vars, wanted.mdl_vars)


def test_what_does_not_fit_is_refused_before_anything_is_sampled(
  saved, tmp_path, monkeypatch
):
  made = _partitioner()
  rules = {
    saved[0]: init_from.Rules(task_p=None, load_rules=[('(params.*)', 'no{}')])
  }
  monkeypatch.setattr(made.task.train, 'init_from_checkpoint_rules', rules)
  monkeypatch.setattr(made, 'initialize', None)
  with pytest.raises(KeyError, match='noparams/first/bias/b is not in'):
    initial_state.initialize(made, tmp_path, print)
