# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
# bazel: deps=//pax/contrib:experiments,//pax/tasks:experiments
"""The variables of every experiment, initialized from its batch."""

from __future__ import annotations

import jax
import pytest

from tests.pax.tasks import experiments


@pytest.mark.parametrize('name', experiments.names())
def test_declares_variables_and_state(name):
  with experiments.on_its_devices(name) as (experiment, task_p):
    task = task_p.set(name='task').Instantiate()
    provider = experiment.get_input_specs_provider_params().Instantiate()
    declared = task.model.abstract_init_with_metadata(
      provider.get_input_specs()
    )
    state = task.create_train_state_unpadded_shapes(declared)
    assert jax.tree.leaves(state.mdl_vars)
    assert jax.tree.leaves(state.opt_states)
