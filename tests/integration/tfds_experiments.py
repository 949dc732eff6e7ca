# SPDX-License-Identifier: Apache-2.0
"""Runs of experiments that read TFDS, in this process, made small."""

# bazel: deps=//pax:main_lib,//pax/tasks:experiments
from __future__ import annotations

import pathlib

from pax import main
from tests.integration import binary

VOCAB_SIZE, SEQ_LEN, STEPS = 128, 96, 4
_SMALL = {
  'NUM_LAYERS': 1,
  'MODEL_DIMS': 16,
  'HIDDEN_DIMS': 32,
  'NUM_HEADS': 2,
  'DIMS_PER_HEAD': 8,
  'VOCAB_SIZE': VOCAB_SIZE,
  'MAX_SEQ_LEN': SEQ_LEN,
  'PERCORE_BATCH_SIZE': 4,
  'ICI_MESH_SHAPE': [1, 1, 1],
  'DCN_MESH_SHAPE': [1, 1, 1],
  'task.train.num_train_steps': STEPS,
  'task.train.eval_interval_steps': STEPS,
  'task.train.summary_interval_steps': 1,
}


def run(
  name: str,
  job: pathlib.Path,
  folder: pathlib.Path,
  *words: str,
  **settings: object,
) -> int:
  """Runs an experiment on the data of `tfds_data.write`; returns the exit code.

  Args:
    name: Of the experiment.
    job: Its directory.
    folder: That of the data.
    *words: Further flags.
    **settings: Constants and fields; None leaves one of the experiment.
  """
  settings = {**_SMALL, 'TOKENIZER': folder / 'words.model', **settings}
  return main.main(
    [
      'pax',
      f'--exp={name}',
      f'--job_log_dir={job}',
      f'--tfds_data_dir={folder}',
      binary.compilation_cache(),
      *words,
      *(f'--set={k}={v}' for k, v in settings.items() if v is not None),
    ]
  )
