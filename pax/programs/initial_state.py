# SPDX-License-Identifier: Apache-2.0
"""The state in which a job begins: initialized, or from other checkpoints."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax

from pax import partitioning, summaries, train_states
from pax.checkpoints import (
  checkpoint_reader,
  init_from,
  reading,
  transformations,
)
from pax.files import side_files
from praxis import pax_fiddle

TrainState = train_states.TrainState


def create(
  partitioner: partitioning.Partitioner,
  job_log_dir: str | os.PathLike[str],
  print_line: Callable[[str], None],
  init_from_checkpoint: str | None = None,
) -> tuple[TrainState, train_states.TrainStateProvenance | None]:
  """Returns the state of a new training job, and the origin of its arrays.

  Args:
    partitioner: The task on its devices.
    job_log_dir: The directory of the job.
    print_line: Prints which variables come from checkpoints.
    init_from_checkpoint: See `initialize`.

  Returns:
    The origin is None for the state of `external_checkpoint_path`.
  """
  if partitioner.task.train.external_checkpoint_path:
    return _restore_external(partitioner), None
  return initialize(partitioner, job_log_dir, print_line, init_from_checkpoint)


def initialize(
  partitioner: partitioning.Partitioner,
  job_log_dir: str | os.PathLike[str],
  print_line: Callable[[str], None],
  init_from_checkpoint: str | None = None,
  *,
  is_trained: bool = True,
) -> tuple[TrainState, train_states.TrainStateProvenance]:
  """Returns an initial state with variables of other checkpoints and folders.

  Args:
    partitioner: The task on its devices.
    job_log_dir: The directory of the job, which receives the provenance.
    print_line: Prints which variables come from checkpoints.
    init_from_checkpoint: The value of --init_from, which takes precedence over
      the rules of the task, but not over its `init_networks` and
      `init_adapter`.
    is_trained: Whether the state is for training; others have no optimizer
      states.

  Returns:
    The state, and the origin of its arrays.
  """
  train = partitioner.task.train
  key = jax.random.key(train.random_seed)
  loader = init_from.LeafLoader(
    partitioner.state_metadata
    if is_trained
    else partitioner.eval_state_metadata,
    print_line,
    is_trained=is_trained,
  )
  if init_from_checkpoint or train.init_networks or train.init_adapter:
    # Most jobs do not need the layers of Hugging Face's models.
    from pax.huggingface import side_folder, warm_start

  for network, folder in train.init_networks.items():
    warm_start.select_network_weights(loader, network, folder)
  if init_from_checkpoint:
    if folder := warm_start.folder_of(init_from_checkpoint):
      warm_start.select_weights(loader, folder, job_log_dir)
    else:
      directory, step = init_from.parse(init_from_checkpoint)
      loader.select_by_name(directory, step)
      if is_trained and jax.process_index() == 0:
        side_folder.copy_of_job(directory, job_log_dir)
  elif rules := instantiate(train.init_from_checkpoint_rules):
    loader.select_by_rules(rules)
  if train.init_adapter:
    adapter, model = train.init_adapter
    warm_start.select_low_rank_updates(
      loader,
      adapter,
      model,
      fresh=functools.partial(partitioner.initialize_leaf, key),
    )
  partitioner.preflight(discard_opt_states=not is_trained)
  state = partitioner.initialize(
    key, discard_opt_states=not is_trained, loaded=loader.read()
  )
  if jax.process_index() == 0:
    lines = [f'{name}: {x!r}' for name, x in loader.provenance.items()]
    file = pathlib.Path(job_log_dir) / summaries.PROVENANCE_FILE
    side_files.write_text(file, '\n'.join([*lines, '']))
  return state, loader.provenance_tree


def restore_target(partitioner: partitioning.Partitioner) -> TrainState:
  """Returns the target of a restore: shapes of the train state.

  Where restore transformations keep leaves of a fresh state, it is that state.
  """
  train = partitioner.task.train
  if transformations.needs_fresh_state(
    instantiate(train.restore_transformations)
  ):
    return partitioner.initialize(jax.random.key(train.random_seed))
  return partitioner.state_metadata


def instantiate(value: Any) -> Any:
  """Returns the object that a Config makes; any other value unchanged."""
  if isinstance(value, pax_fiddle.Config):
    return value.Instantiate()
  return value


def _restore_external(partitioner: partitioning.Partitioner) -> TrainState:
  """The state of `external_checkpoint_path`, restored by the task's handler."""
  train = partitioner.task.train
  target = restore_target(partitioner)
  if handler := instantiate(train.external_checkpoint_handler):
    return handler.restore(train.external_checkpoint_path, item=target)
  _, path = reading.find_checkpoint(train.external_checkpoint_path)
  return reading.read_tree(
    checkpoint_reader.CheckpointReader(path),
    target,
    reading.leaf_names(target),
    instantiate(train.restore_transformations),
    is_own=False,
  )
