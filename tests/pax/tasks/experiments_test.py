# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=//pax/contrib:experiments,//pax/tasks:experiments
"""Every experiment declares its task, its learner and its batches."""

from __future__ import annotations

import jax
import pytest

from tests.pax.tasks import experiments
from tests.testing import nightly

_NAMES = experiments.names()
# Reads the text of another one, which is tokenized.
_BY_NIGHT = 'pax.tasks.lm.params.quickstart.TinyLmPmap'


def test_there_are_as_many_as_upstream_has():
  # 109, less BaseLLaMA, which has no data; and others of our own.
  assert len(_NAMES) >= 108


@pytest.mark.parametrize('name', nightly.marked(_NAMES, [_BY_NIGHT]))
def test_is_whole(name):
  with experiments.on_its_devices(name) as (experiment, task_p):
    task = task_p.set(name='task').Instantiate()
    assert task.learners
    rows = {config.batch_size for config in experiment.train_datasets()}
    provider = experiment.get_input_specs_provider_params().Instantiate()
    specs = jax.tree.leaves(provider.get_input_specs())
    assert specs
    assert {spec.shape[0] for spec in specs} == rows or not rows
