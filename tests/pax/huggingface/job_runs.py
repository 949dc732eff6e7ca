# SPDX-License-Identifier: Apache-2.0
"""Runs experiments of Hugging Face models by the command line."""

# bazel: deps=//pax:main_lib,//pax/tasks:experiments
from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import io_utils, main
from pax.checkpoints import reading
from pax.checkpoints.checkpoint_reader import CheckpointReader
from pax.files import tf_records
from tests.pax.huggingface import reference_models

PROMPTS = ('ab', 'xyz')
DECODE_SEQ_LEN = 16


def run(exp: str, folder: pathlib.Path, job: pathlib.Path, *words: str) -> int:
  """Runs a decoder from the weights of a folder; returns the exit code.

  Args:
    exp: Name of the experiment in tasks.lm.params.huggingface.
    folder: The model.
    job: Directory of the job.
    *words: Further flags.
  """
  return run_encoder_decoder(exp, folder, job, *decoder_words(folder), *words)


def decoder_words(folder: pathlib.Path) -> list[str]:
  """Returns flags of a small job with a decoder."""
  return [
    '--set=BATCH_SIZE=2',
    '--set=MAX_SEQ_LEN=16',
    f'--set=PROMPTS={PROMPTS}',
    f'--set=DECODE_SEQ_LEN={DECODE_SEQ_LEN}',
    f'--set=TRAIN_FILES={folder}/config.json',
    '--set=HELD_OUT_PERCENT=0',
    '--set=SAMPLE_PROMPT=',
  ]


def run_encoder_decoder(
  exp: str, folder: pathlib.Path, job: pathlib.Path, *words: str
) -> int:
  """As `run`, without the constants of decoders.

  Args:
    exp: Name of the experiment in tasks.lm.params.huggingface.
    folder: The model.
    job: Directory of the job.
    *words: Further flags.
  """
  return main.main(
    [
      'pax',
      f'--exp=tasks.lm.params.huggingface.{exp}',
      f'--job_log_dir={job}',
      f'--set=MODEL_DIR={folder}',
      f'--init_from=hf:{folder}',
      '--set=FPROP_DTYPE=float32',
      *words,
    ]
  )


def read_leaves(job: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns the leaves of the newest checkpoint of a job, on the host.

  Args:
    job: Directory of the job.
  """
  _, path = reading.find_checkpoint(job)
  checkpoint = CheckpointReader(path)
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  abstract = {
    leaf: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)
    for leaf, (shape, dtype) in checkpoint.shapes.items()
  }
  return {x: np.asarray(v) for x, v in checkpoint.read(abstract).items()}


def decoded(
  job: pathlib.Path, mode: str, step: int = 0
) -> dict[str, tuple[np.ndarray, str]]:
  """Returns decoded ids and text by prompt.

  Args:
    job: Directory of the job.
    mode: The value of --mode.
    step: Step of the checkpoint, except for infer.
  """
  if mode != 'infer':
    outputs = io_utils.load_outputs(job, 'prompts', 'decoder', step)
    return {
      prompt: (result['decoded_ids'], result['decoded_substr'])
      for prompt, result in outputs
    }
  results = {}
  for file in (job / 'output/prompts').glob('output.tfrecord-*'):
    with file.open('rb') as f:
      for record in tf_records.read(f):
        features = tf_records.parse_example(record)
        prompt, text = (
          features[name][0].decode() for name in ('prefix', 'decoded_substr')
        )
        results[prompt] = features['decoded_ids'], text
  return results


def first_loss(job: pathlib.Path) -> float:
  """Returns the loss of the first step of a job."""
  lines = (job / 'metrics.jsonl').read_text().splitlines()
  return next(
    row['loss'] for line in lines if 'loss' in (row := json.loads(line))
  )


def check_repeated_layers(
  exp: str,
  reference: str,
  tmp_path: pathlib.Path,
  words: Sequence[str],
  capfd: Any,
) -> None:
  """Checks one step with and without USE_REPEATED_LAYER, and its export.

  Args:
    exp: Name of the experiment.
    reference: Name of its reference.
    tmp_path: An empty folder.
    words: Flags of both runs.
    capfd: The fixture.
  """
  source = reference_models.write_byte_model(
    tmp_path / 'source', reference, num_layers=4
  )
  # Without a learning rate the weights stay equal, and so do the files.
  words = [
    *words,
    '--set=NUM_TRAIN_STEPS=1',
    '--set=EVAL_ON_TEST=False',
    '--set=LEARNING_RATE=0.0',
  ]
  losses = {}
  for is_repeated in (False, True):
    job, output = (tmp_path / f'{x}_{is_repeated}' for x in ('job', 'output'))
    setting = f'--set=USE_REPEATED_LAYER={is_repeated}'
    code = run(exp, source, job, setting, *words)
    assert code == 0, capfd.readouterr().err
    losses[is_repeated] = first_loss(job)
    _, path = reading.find_checkpoint(job)
    leaves = CheckpointReader(path).shapes
    assert any('repeat.sub' in leaf for leaf in leaves) == is_repeated
    convert = ['pax', 'convert', 'pax-to-hf', str(job), str(output)]
    assert main.main(convert) == 0
    name = 'model.safetensors'
    assert (output / name).read_bytes() == (source / name).read_bytes()
  assert losses[True] == pytest.approx(losses[False], abs=1e-5)
