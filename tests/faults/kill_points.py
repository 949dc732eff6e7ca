# SPDX-License-Identifier: Apache-2.0
"""Experiments that are killed at a named point of saving or restoring.

The variable KILL_POINT is a key of `POINTS`; the process gets SIGKILL when it
first reaches the point.
"""

# bazel: deps=//pax/checkpoints,//tests/integration:experiments
from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import Any

from pax import experiment_registry
from pax.checkpoints import (
  checkpoint_reader,
  layouts,
  manifest,
  orbax_format,
  paths,
  writing,
)
from tests.integration import experiments

VARIABLE = 'KILL_POINT'
_LAYOUTS = (layouts.OrbaxLayout, layouts.LeafLayout, layouts.FileLayout)
_READERS = (checkpoint_reader.CheckpointReader,)
_BEFORE, _AFTER = 'before', 'after'
# Moment, name of the function, and the objects that have it.
POINTS: dict[str, tuple[str, str, tuple[Any, ...]]] = {
  # Saving.
  'temporary files are not removed': (_BEFORE, 'clean', (paths,)),
  'nothing is copied to the host': (_BEFORE, 'snapshot', _LAYOUTS),
  'the state is on the host': (_AFTER, 'snapshot', _LAYOUTS),
  'nothing is written': (_BEFORE, 'write', (writing,)),
  'the staging directory is empty': (_BEFORE, 'write', _LAYOUTS),
  'the shards are written': (_AFTER, 'write', _LAYOUTS),
  'the input state is written': (_AFTER, 'write_input', (layouts,)),
  # Committing.
  'shards of processes are not merged': (_BEFORE, 'finish', _LAYOUTS),
  'shards of processes are merged': (_AFTER, 'finish', _LAYOUTS),
  'the manifest is written': (_AFTER, 'write', (manifest,)),
  'the checkpoint is not renamed': (_BEFORE, 'commit', (paths,)),
  'the checkpoint is renamed': (_AFTER, 'commit', (paths,)),
  # Deleting the oldest.
  'no expired checkpoint is deleted': (_BEFORE, 'delete', (paths,)),
  'an expired checkpoint is renamed': (_AFTER, 'rename', (paths.pathlib.Path,)),
  'an expired checkpoint is deleted': (_AFTER, 'delete', (paths,)),
  # Restoring.
  'nothing is read': (_BEFORE, 'read', _READERS),
  'the state is read': (_AFTER, 'read', _READERS),
}
# Of layouts that Orbax writes.
ORBAX_POINTS = {
  'Orbax begins to write': (_BEFORE, '_CreatedDirectory', (orbax_format,)),
  'Orbax has not merged': (
    _BEFORE,
    'finalize',
    (orbax_format.ocp.PyTreeCheckpointHandler,),
  ),
  'Orbax has merged': (
    _AFTER,
    'finalize',
    (orbax_format.ocp.PyTreeCheckpointHandler,),
  ),
}


def _arm(point: str) -> None:
  moment, name, owners = (POINTS | ORBAX_POINTS)[point]
  for owner in owners:
    setattr(owner, name, _killing(getattr(owner, name), moment))


def _killing(function: Callable[..., Any], moment: str) -> Callable[..., Any]:
  @functools.wraps(function)
  def kill(*args: Any, **kwargs: Any) -> Any:
    if moment == _AFTER:
      result = function(*args, **kwargs)
      if function.__name__ == 'rename' and 'delete' not in str(result):
        # Not that of an expired checkpoint.
        return result
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError('SIGKILL takes effect at once')

  return kill


@experiment_registry.register
class KilledSpmd(experiments.TinySpmd):
  """TinySpmd, killed at a point."""


@experiment_registry.register
class KilledPmap(experiments.TinyPmap):
  """TinyPmap, killed at a point."""


if _point := os.environ.get(VARIABLE):
  _arm(_point)
