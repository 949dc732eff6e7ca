# SPDX-License-Identifier: Apache-2.0
"""The flags of a run: one field each, and nobody else sees flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pax.runner import command_line

_USAGE = """\
Trains a model that an experiment describes.

  pax --exp=tasks.lm.params.quickstart.TinyLm --job_log_dir=/tmp/pax/tiny

Start it again with the same --job_log_dir and it goes on from the newest
checkpoint. Ctrl-C or SIGTERM finishes the step, saves and stops.

Exit codes: 0 done, 1 failed, 75 stopped by a signal and saved, 124 hung."""

UsageError = command_line.UsageError
HelpRequested = command_line.HelpRequested
_flag = command_line.flag


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
  """Everything that the command line says."""

  exp: str | None = _flag(
    None, 'What', 'Experiment, as module.Class or any unique end of it.'
  )
  job_log_dir: str | None = _flag(
    None, 'What', 'Directory of everything the run writes; made if missing.'
  )
  mode: str = _flag(
    'train',
    'What',
    'What to do: train; eval or decode, which follow the checkpoints of a'
    ' training job; decode_once; infer.',
  )
  set: tuple[str, ...] = _flag(
    (),
    'What',
    'Sets a constant of the experiment (--set NUM_LAYERS=4) or a field of the'
    ' configuration (--set task.train.num_train_steps=100). Repeatable.',
  )
  eval_on_test: bool | None = _flag(
    None,
    'What',
    'Evaluate on the test inputs while training. Unset: as the experiment'
    ' says in EVAL_ON_TEST.',
  )
  decode_during_train: bool = _flag(
    False,
    'What',
    'Decode while training, every task.train.decode_interval_steps.',
  )
  eval_during_decode: bool = _flag(
    False, 'What', 'Evaluate too, in a job that decodes.'
  )
  init_from: str | None = _flag(
    None,
    'Checkpoints',
    'Start from the variables of another checkpoint that have the same name and'
    ' shape: DIR for the newest there, DIR@STEP. What is taken is listed. A run'
    ' that has checkpoints of its own goes on from those.',
  )
  restore_checkpoint_dir: str | None = _flag(
    None,
    'Checkpoints',
    'For --mode=decode and decode_once: where checkpoints are, if not in'
    ' --job_log_dir.',
  )
  restore_checkpoint_step: tuple[int, ...] = _flag(
    (),
    'Checkpoints',
    'For --mode=decode_once: which checkpoints, if not the newest. Repeatable.'
    ' For --mode=decode: from which on.',
    example='STEP',
  )
  first_checkpoint_timeout_secs: int = _flag(
    4800,
    'Checkpoints',
    'How long a job that follows another waits for the first checkpoint.',
  )
  next_checkpoint_timeout_secs: int | None = _flag(
    None,
    'Checkpoints',
    'How long it waits for each one after that. Unset: for ever, or until'
    ' training ends.',
  )
  enable_checkpoint_saving: bool = _flag(
    True, 'Checkpoints', 'Save checkpoints.'
  )
  pmap_use_tensorstore: bool = _flag(
    False,
    'Checkpoints',
    'Store the state of an experiment without a mesh by leaf in TensorStore,'
    ' written in parallel, instead of in one file.',
  )
  jax_fully_async_checkpoint: bool = _flag(
    True, 'Checkpoints', 'Write checkpoints while training goes on.'
  )
  async_timeout_secs: int = _flag(
    600,
    'Checkpoints',
    'How long process 0 waits for what the others write to a checkpoint.',
  )
  host_device_count: int | None = _flag(
    None, 'Devices', 'Run on this many simulated CPU devices.'
  )
  compilation_cache_dir: str = _flag(
    '~/.cache/pax/xla',
    'Devices',
    'Where compiled programs are kept for the next start; empty: nowhere.',
  )
  multiprocess_gpu: bool = _flag(
    False,
    'Several processes',
    'Join --num_hosts processes at --server_addr as --host_idx. TPU pods,'
    ' Slurm and Open MPI jobs are joined without it.',
  )
  server_addr: str | None = _flag(
    None, 'Several processes', 'Address of process 0, as host:port.'
  )
  num_hosts: int | None = _flag(
    None, 'Several processes', 'Number of processes.'
  )
  host_idx: int | None = _flag(
    None, 'Several processes', 'Number of this process, from 0.'
  )
  enable_summary_writer: bool = _flag(
    True, 'Output', 'Write TensorBoard events and metrics.jsonl.'
  )
  decode_output_pickle: bool = _flag(
    True, 'Output', 'Write what is decoded as .pickle beside .jsonl.'
  )
  hang_timeout_secs: int | None = _flag(
    None,
    'Output',
    'End with exit code 124 and the stacks of all threads when no step was done'
    ' for so long. Unset: never.',
  )
  traceback: bool = _flag(
    False, 'Output', 'Show the Python traceback of an error.'
  )


def parse(argv: Sequence[str]) -> RunOptions:
  """The options of a command line, whose first word is the program.

  Raises:
    UsageError: an unknown flag, a value of the wrong type, or a word that
      belongs to no flag.
    HelpRequested: --help is among the words.
  """
  return command_line.parse(RunOptions, argv, _USAGE)
