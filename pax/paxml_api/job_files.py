# SPDX-License-Identifier: Apache-2.0
"""Files that describe a job in its directory.

Every run writes them; these functions serve code with a loop of its own.
"""

from __future__ import annotations

import os
import pathlib

import jax

from pax import train_states
from pax.files import side_files
from pax.partitioning import TrainStateMetadata
from pax.summaries import model_text, trees_text
from praxis import base_hyperparams, base_model

to_text = base_hyperparams.nested_struct_to_text

_POST_INIT_FILE = 'post_init_model_params.txt'


def write_post_init_model_hparams_file(
  model: base_model.BaseModel,
  train_state_metadata: TrainStateMetadata,
  job_log_dir: str | os.PathLike[str],
  do_eval: bool = False,
) -> None:
  """Writes the model with inherited fields, then its variables.

  Args:
    model: The model.
    train_state_metadata: Shapes of a batch and the variables.
    job_log_dir: The directory of the job.
    do_eval: Whether the model is described in evaluation mode.
  """
  if jax.process_index() != 0:
    return
  config = model.abstract_init_with_mdl_config(
    train_state_metadata.input_shape_dtype, do_eval=do_eval
  )
  variables = to_text(train_state_metadata.var_weight_hparams)
  write_file(job_log_dir, _POST_INIT_FILE, f'{to_text(config)}\n\n{variables}')


def write_train_provenance_file(
  train_state_provenance: train_states.TrainStateProvenance,
  job_log_dir: str | os.PathLike[str],
) -> None:
  """Writes the origin of each array of a state, unless the file exists."""
  path = pathlib.Path(job_log_dir) / model_text.PROVENANCE_FILE
  if jax.process_index() != 0 or path.exists():
    return
  sections = [
    f'{name.replace("_", " ").capitalize()}\n'
    f'{trees_text.pretty_repr_provenance(tree)}\n\n'
    for name, tree in vars(train_state_provenance).items()
  ]
  write_file(job_log_dir, path.name, ''.join(sections))


def write_file(
  job_log_dir: str | os.PathLike[str], name: str, text: str
) -> None:
  """Writes a file into a directory, created if it is missing."""
  directory = pathlib.Path(job_log_dir)
  directory.mkdir(parents=True, exist_ok=True)
  side_files.write_text(directory / name, text)
