# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""What would be ignored is refused by name."""

from __future__ import annotations

import pytest

from pax.runner import overrides, run_config, unsupported
from tests.integration import experiments


def _check(experiment=experiments.TinySpmd, *settings, **rules):
  instance = experiment()
  tree = run_config.from_experiment(instance, overrides.parse(settings))
  if rules:
    tree.task.train.init_from_checkpoint_rules = rules
  unsupported.check(instance, tree)


def test_what_is_supported_passes():
  _check()


def test_a_field():
  with pytest.raises(ValueError, match='task.train.eval_use_ema_states, which'):
    _check(experiments.TinySpmd, 'task.train.eval_use_ema_states=True')


def test_rules():
  with pytest.raises(ValueError, match='init_from_checkpoint_rules'):
    _check(directory=[])


def test_a_method():
  class Executed(experiments.TinySpmd):
    def executor(self):
      return object()

  with pytest.raises(ValueError, match=r'Executed sets executor\(\), which'):
    _check(Executed)
