# SPDX-License-Identifier: Apache-2.0
"""Experiments that are killed at a named point of saving or restoring.

The variable KILL_POINT is a key of `POINTS`; the process gets SIGKILL when it
first reaches the point. Without it they are not killed.
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
  metadata_copy,
  paths,
  staging,
  writing,
)
from pax.checkpoints.formats import (
  array_reader,
  database_writer,
  layouts,
  manifest,
)
from pax.files import storage, working_copy
from tests.integration import experiments

VARIABLE = 'KILL_POINT'
_LAYOUTS = (layouts.OrbaxLayout, layouts.LeafLayout, layouts.FileLayout)
_READERS = (checkpoint_reader.CheckpointReader,)
_ARRAY_READERS = (array_reader.ArrayReader,)
_METADATA_COPIES = (metadata_copy.MetadataCopy,)
_COPIES = (working_copy.WorkingCopy,)
_OBJECTS = (storage.BucketPath,)
_DATABASES = (database_writer,)
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
  'an expired checkpoint is deleted': (_AFTER, 'delete', (paths,)),
  # Restoring.
  'nothing is read': (_BEFORE, 'read', _READERS),
  'the state is read': (_AFTER, 'read', _READERS),
}
# Of the layout of Orbax.
ORBAX_POINTS = {
  'Orbax begins to write': (_BEFORE, 'write', _DATABASES),
  'the database of the process is written': (_AFTER, 'write', _DATABASES),
  'the databases are not merged': (_BEFORE, 'merge', _DATABASES),
  'the databases are merged': (_AFTER, 'merge', _DATABASES),
}
# Of local directories.
LOCAL_POINTS = {
  'an expired checkpoint is renamed': (_AFTER, 'rename', (paths.pathlib.Path,)),
}
_BUCKET_STAGING = (staging.BucketStaging,)
BUCKET_POINTS = {
  'the files of the job are uploaded': (_AFTER, 'upload', _COPIES),
  'nothing is uploaded': (_BEFORE, 'share', _BUCKET_STAGING),
  'the data are uploaded': (_AFTER, 'share', _BUCKET_STAGING),
  'the checkpoint is not published': (_BEFORE, 'publish', (paths,)),
  'the checkpoint is published': (_AFTER, 'publish', (paths,)),
}
# Of checkpoints in a bucket that are folders.
BUCKET_FOLDER_POINTS = {
  'the marker is not written': (_BEFORE, 'write_text', _OBJECTS),
  'the marker is removed': (
    _AFTER,
    'unlink',
    _OBJECTS,
  ),
  'the metadata are downloaded': (_AFTER, '__init__', _METADATA_COPIES),
  'the data are read': (_AFTER, 'read', _ARRAY_READERS),
}


def points(layout: str, *, is_bucket: bool) -> list[str]:
  """Returns the points that a job reaches.

  Args:
    layout: A key of `kill_matrix.LAYOUTS`.
    is_bucket: Whether its directory is in a bucket.
  """
  names = [*POINTS, *(BUCKET_POINTS if is_bucket else LOCAL_POINTS)]
  if is_bucket and layout != 'pmap_one_file':
    names += BUCKET_FOLDER_POINTS
  return names + list(ORBAX_POINTS if layout == 'spmd' else ())


def _arm(point: str) -> None:
  of_storage = LOCAL_POINTS | BUCKET_POINTS | BUCKET_FOLDER_POINTS
  moment, name, owners = (POINTS | ORBAX_POINTS | of_storage)[point]
  for owner in owners:
    setattr(owner, name, _killing(getattr(owner, name), moment))


def _killing(function: Callable[..., Any], moment: str) -> Callable[..., Any]:
  @functools.wraps(function)
  def kill(*args: Any, **kwargs: Any) -> Any:
    if not _is_point(function.__name__, args):
      return function(*args, **kwargs)
    if moment == _AFTER:
      function(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError('SIGKILL takes effect at once')

  return kill


def _is_point(name: str, args: tuple[Any, ...]) -> bool:
  """Returns whether a call of a function with other uses is the point."""
  if name == 'rename':
    return 'delete' in str(args[1])
  if name in ('unlink', 'write_text'):
    return args[0].name == storage.MARKER
  return True


@experiment_registry.register
class WideSpmd(experiments.TinySpmd):
  """TinySpmd with a weight of 1 MiB.

  Its database has a file for it, whose checksum is that of the memory; smaller
  ones are parts of the index.
  """

  HIDDEN = 2**15
  # A larger one diverges.
  LEARNING_RATE = 1e-6

  def task(self) -> Any:
    config = super().task()
    config.train.learner.optimizer.learning_rate = self.LEARNING_RATE
    return config


@experiment_registry.register
class FrozenSpmd(WideSpmd):
  """The same with a layer that does not learn, which is saved once."""

  def task(self) -> Any:
    config = super().task()
    config.train.learner.bprop_variable_exclusion = ['params/first/.*']
    config.train.save_frozen_variables_once = True
    return config


@experiment_registry.register
class WidePmap(WideSpmd):
  """The same on replicas."""

  ICI_MESH_SHAPE = None


if _point := os.environ.get(VARIABLE):
  _arm(_point)
