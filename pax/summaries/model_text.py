# SPDX-License-Identifier: Apache-2.0
"""Text summaries of a model: variables, number of parameters, provenance."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import jax

from pax.files import side_files
from pax.summaries import tags, writer
from praxis import base_layer, py_utils

# In the job directory: a line `leaf name: origin` per array.
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
  """Writes the provenance file of the initial state as text summaries."""
  file = pathlib.Path(job_log_dir) / PROVENANCE_FILE
  lines = side_files.read(file, str.splitlines)
  if lines is None:
    return
  for tag, prefix in (
    (tags.MODEL_PROVENANCE, 'mdl_vars.'),
    (tags.OPT_PROVENANCE, 'opt_states'),
  ):
    selected = [line for line in lines if line.startswith(prefix)]
    # Two spaces before a newline are a line break in Markdown.
    out.text(0, tag, '  \n'.join(selected))


def model_text(var_weight_hparams: Any) -> str:
  """Returns a Markdown table of path, shape and size of every variable."""
  rows = ['| variable | shape | size |', '| --- | --- | --- |']
  for path, weight in py_utils.tree_paths(var_weight_hparams):
    shape = 'x'.join(map(str, weight.full_shape))
    size = spaced(math.prod(weight.full_shape))
    rows.append(f'| {path} | {shape} | {size} |')
  return '\n'.join(rows)


def spaced(number: int) -> str:
  """Returns a number with thousands separated, `1 234 567`."""
  return f'{number:,}'.replace(',', ' ')
