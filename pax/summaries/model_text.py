# SPDX-License-Identifier: Apache-2.0
"""What TensorBoard tells of a model in words: its variables, its size."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import jax

from pax.summaries import tags, writer
from praxis import base_layer, py_utils

# In the job directory: `variable: where it is from`, a line each.
PROVENANCE_FILE = 'train_state_provenance.txt'


def write_description(
  out: writer.Writer, var_weight_hparams: Any, global_batch_size: int
) -> None:
  """Writes `Model`, `Total Num Params` and `Global batch size` at step 0."""
  params = var_weight_hparams.get(base_layer.PARAMS, {})
  sizes = [math.prod(leaf.full_shape) for leaf in jax.tree.leaves(params)]
  out.text(0, tags.MODEL, model_text(var_weight_hparams))
  out.text(0, tags.TOTAL_NUM_PARAMS, spaced(sum(sizes)))
  out.text(0, tags.GLOBAL_BATCH_SIZE, spaced(global_batch_size))


def write_provenance(out: writer.Writer, job_log_dir: str) -> None:
  """Writes where the variables of a fresh state came from, if that is known."""
  file = pathlib.Path(job_log_dir) / PROVENANCE_FILE
  if not file.exists():
    return
  lines = file.read_text(encoding='utf-8').splitlines()
  for tag, prefix in (
    (tags.MODEL_PROVENANCE, 'mdl_vars.'),
    (tags.OPT_PROVENANCE, 'opt_states'),
  ):
    found = [line for line in lines if line.startswith(prefix)]
    # Two line ends begin a paragraph, two spaces before one only a line.
    out.text(0, tag, '  \n'.join(found))


def model_text(var_weight_hparams: Any) -> str:
  """Path, shape and number of scalars of every variable, as a table."""
  rows = ['| variable | shape | size |', '| --- | --- | --- |']
  for path, weight in py_utils.tree_paths(var_weight_hparams):
    shape = 'x'.join(map(str, weight.full_shape))
    size = spaced(math.prod(weight.full_shape))
    rows.append(f'| {path} | {shape} | {size} |')
  return '\n'.join(rows)


def spaced(number: int) -> str:
  """As 1 234 567."""
  return f'{number:,}'.replace(',', ' ')
