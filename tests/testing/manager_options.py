# SPDX-License-Identifier: Apache-2.0
"""Saves with each option of paxml's checkpoint manager, and lists the folder.

    python tests/testing/manager_options.py RESULTS

Runs with the original paxml and with that of Pax, below the Python of either.
RESULTS is a JSON file: for each case the files, or the name of the error.
"""

from __future__ import annotations

import datetime
import importlib
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import orbax.checkpoint as ocp

from paxml import checkpoint_managers, checkpoints

# By name: a module of upstream, here an alias of pax.train_states.
train_states = importlib.import_module('paxml.train_states')
_DAY = datetime.timedelta(days=1)
_POLICIES = ocp.checkpoint_managers


class _Folder:
  """A directory of checkpoints, and the managers that open it in turn."""

  def __init__(self, path: pathlib.Path):
    self.path = path
    self.saved: list[int] = []

  def save(self, steps: Any, force: bool = False, **options: Any) -> None:
    """Saves steps with a new manager.

    Args:
      steps: The steps.
      force: Whether to save those that are not due.
      **options: Fields of CheckpointManagerOptions.
    """
    manager = checkpoint_managers.OrbaxCheckpointManager(
      self.path,
      checkpoints.get_checkpointer(checkpoints.CheckpointType.GDA),
      options=checkpoint_managers.CheckpointManagerOptions(**options),
      checkpoint_type=checkpoints.CheckpointType.GDA,
      tensorstore_use_ocdbt=False,
    )
    try:
      for step in steps:
        state = train_states.TrainState(
          step=jnp.asarray(step, jnp.uint32),
          mdl_vars={'params': {'w': jnp.arange(4.0) + step}},
          opt_states=[],
        )
        if manager.save(step, state, state, force=force):
          self.saved.append(step)
    finally:
      manager.close()

  def contents(self) -> dict[str, Any]:
    """Returns the saved steps, and the names in the directory."""
    names = {
      str(path.relative_to(self.path))
      for pattern in ('*', '*/checkpoint_*')
      for path in self.path.glob(pattern)
    }
    return {'saved': self.saved, 'names': sorted(names)}


def _restart(folder: _Folder, **options: Any) -> None:
  folder.save(range(4), **options)
  folder.save(range(4, 8), **options)


def _leave_temporary_folder(folder: _Folder, **options: Any) -> None:
  folder.save([1])
  tmp = folder.path / 'checkpoint_00000002.orbax-checkpoint-tmp-7'
  tmp.mkdir()
  folder.save([], **options)


CASES: dict[str, Callable[[_Folder], None]] = {
  'default': lambda f: f.save(range(4)),
  'max_to_keep': lambda f: f.save(range(6), max_to_keep=2),
  'max_to_keep_restart': lambda f: _restart(f, max_to_keep=3),
  'save_interval_steps': lambda f: f.save(range(9), save_interval_steps=4),
  'save_interval_steps_0': lambda f: f.save(range(3), save_interval_steps=0),
  'first_step_off_interval': lambda f: f.save(
    [3, 5, 8, 9], save_interval_steps=4
  ),
  'force': lambda f: f.save([1, 2, 3], force=True, save_interval_steps=4),
  'older_step': lambda f: f.save([5, 3, 6]),
  'forced_older_step': lambda f: f.save([5, 3], force=True),
  'forced_older_step_max_to_keep': lambda f: f.save(
    [5, 6, 3], force=True, max_to_keep=2
  ),
  'keep_period': lambda f: f.save(range(6), keep_period=2),
  'keep_period_max_to_keep': lambda f: f.save(
    range(10), keep_period=4, max_to_keep=2
  ),
  'keep_period_restart': lambda f: _restart(f, keep_period=2, max_to_keep=1),
  'keep_time_interval': lambda f: f.save(
    range(6), keep_time_interval=_DAY, max_to_keep=2
  ),
  'keep_time_interval_all': lambda f: f.save(range(4), keep_time_interval=_DAY),
  'keep_time_interval_keep_period': lambda f: f.save(
    range(1, 10), keep_time_interval=_DAY, keep_period=3, max_to_keep=1
  ),
  'should_keep_fn': lambda f: f.save(
    range(8), should_keep_fn=lambda step: step % 3 == 1, max_to_keep=1
  ),
  'should_keep_fn_keep_period': lambda f: f.save(
    range(8),
    should_keep_fn=lambda step: step % 3 == 1,
    keep_period=2,
    max_to_keep=1,
  ),
  'preservation_policy': lambda f: f.save(
    range(8),
    preservation_policy=_POLICIES.AnyPreservationPolicy(
      [_POLICIES.LatestN(2), _POLICIES.EveryNSteps(3)]
    ),
  ),
  'preservation_policy_max_to_keep': lambda f: f.save(
    range(3), preservation_policy=_POLICIES.LatestN(1), max_to_keep=2
  ),
  'save_on_steps': lambda f: f.save(
    range(6), save_on_steps=[3], save_interval_steps=4
  ),
  'should_save_fn': lambda f: f.save(
    range(4), should_save_fn=lambda step, latest: step == 2
  ),
  'save_decision_policy': lambda f: f.save(
    range(6), save_decision_policy=_POLICIES.FixedIntervalPolicy(3)
  ),
  'best_fn': lambda f: f.save(range(4), best_fn=lambda m: m, max_to_keep=2),
  'best_fn_without_metrics': lambda f: f.save(
    range(4),
    best_fn=lambda m: m,
    max_to_keep=2,
    keep_checkpoints_without_metrics=False,
  ),
  'best_mode': lambda f: f.save([1], best_mode='other'),
  'step_prefix': lambda f: f.save(
    [1], step_prefix='model', step_format_fixed_length=3
  ),
  'create': lambda f: f.save([1], create=False),
  'read_only': lambda f: (f.save([1]), f.save([2], read_only=True)),
  'todelete_subdir': lambda f: f.save(
    range(4), max_to_keep=2, todelete_subdir='archive'
  ),
  'todelete_full_path': lambda f: f.save(
    range(3), max_to_keep=1, todelete_full_path='trash'
  ),
  'cleanup_tmp_directories': lambda f: _leave_temporary_folder(
    f, cleanup_tmp_directories=True
  ),
  'tmp_directories': _leave_temporary_folder,
  'enable_background_delete': lambda f: f.save(
    range(4), max_to_keep=1, enable_background_delete=True
  ),
  'max_to_keep_0': lambda f: f.save(range(3), max_to_keep=0),
  'max_to_keep_negative': lambda f: f.save(range(3), max_to_keep=-1),
}


def run_case(name: str) -> dict[str, Any]:
  """Returns the saved steps and the files of a case, or its error."""
  with tempfile.TemporaryDirectory() as directory:
    folder = _Folder(pathlib.Path(directory) / 'checkpoints')
    try:
      CASES[name](folder)
    except (ValueError, NotImplementedError) as e:
      return {'error': type(e).__name__}
    return folder.contents()


if __name__ == '__main__':
  results = {name: run_case(name) for name in CASES}
  pathlib.Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + '\n')
