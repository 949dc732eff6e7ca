# SPDX-License-Identifier: Apache-2.0
"""The flags of a run: one field each, and nobody else sees flags."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from pax.runner import command_line, unsupported_flags

_USAGE = """\
Trains a model that an experiment describes.

  pax --exp=tasks.lm.params.quickstart.TinyLm --job_log_dir=/tmp/pax/tiny

Start it again with the same --job_log_dir and it goes on from the newest
checkpoint. Ctrl-C or SIGTERM finishes the step, saves and stops.

Exit codes: 0 done, 1 failed, 2 does not fit (--mode=aot), 75 stopped by a
signal and saved, 124 hung."""

# Older spellings: --fdl.task.train.num_train_steps=10, --fdl_tag.Name=1.
_FDL_PATH = re.compile(r'^--?fdl\.(?=\w)')
_FDL_TAG = re.compile(r'^--?fdl_tag\.(?=\w)')

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
    ' training job; decode_once; infer; aot, which compiles for a machine that'
    ' need not be here and tells what the run will do there.',
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
  study: str | None = _flag(
    None,
    'Study',
    'Search the constants of the experiment, as its search() says, in trials:'
    ' runs of their own under --job_log_dir. --study=local; started again it'
    ' goes on.',
  )
  num_trials: int | None = _flag(
    None, 'Study', 'How many trials at most, if not as search() says.'
  )
  parallel_trials: int = _flag(1, 'Study', 'How many trials run at a time.')
  metrics_from: str = _flag(
    'eval',
    'Study',
    'Where the metrics of the reward are from: train; eval; decode, which'
    ' evaluates too.',
  )
  sub_experiment: str | None = _flag(
    None,
    'Study',
    "One of the experiment's sub_experiments(), by its id. A trial of a study"
    ' runs them all.',
  )
  topology: str | None = _flag(
    None,
    'Ahead of time',
    'For --mode=aot: the machine, as v4-128, v4-128x2 (two slices), v5e-256,'
    ' 8xh100, cpu:8. Unset: the TPU v4 that the mesh of the experiment is.',
  )
  all: bool = _flag(
    False,
    'Ahead of time',
    'For --mode=aot: every experiment, each on its own machine, and a table.'
    ' Started again with the same --job_log_dir it goes on.',
  )
  aot_jobs: int = _flag(
    1, 'Ahead of time', 'For --all: how many experiments at a time.'
  )
  aot_table: str | None = _flag(
    None,
    'Ahead of time',
    'For --all: file of the table, if not aot/table.md in --job_log_dir.',
  )
  check_level: int = _flag(
    10,
    'Ahead of time',
    'For --mode=aot: 6 lays out the state, 7 traces the step too, 10 compiles'
    ' it.',
  )
  aot_full_effort: bool = _flag(
    False,
    'Ahead of time',
    'For --mode=aot: compile as for a run. Without it the compiler takes a'
    ' quarter of the time and memory is some percent off; what fits or misses'
    ' by a tenth is compiled again.',
  )
  aot_save: str | None = _flag(
    None,
    'Ahead of time',
    'For --mode=aot: file for the compiled step, which --aot_load takes.',
  )
  aot_load: str | None = _flag(
    None,
    'Ahead of time',
    'For --mode=train: take the compiled step from this file. Another machine,'
    ' configuration or JAX version is refused.',
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
  fdl: tuple[str, ...] = _flag(
    (),
    'Fiddle',
    'Makes the experiment, instead of --exp: config:module.function(...),'
    ' config_file:PATH, config_str:TEXT; then changes it: set:PATH=VALUE,'
    ' tag:NAME=VALUE, fiddler:module.function(...). Repeatable, in order.',
    example='COMMAND',
  )
  fdl_config: str | None = _flag(
    None, 'Fiddle', 'Older name of --fdl=config:...'
  )
  fdl_config_file: str | None = _flag(
    None, 'Fiddle', 'Older name of --fdl=config_file:...'
  )
  fiddler: tuple[str, ...] = _flag(
    (), 'Fiddle', 'Older name of --fdl=fiddler:...', example='FUNCTION'
  )
  fdl_set: tuple[str, ...] = _flag(
    (), 'Fiddle', 'Older name of --fdl=set:..., also as --fdl.PATH=VALUE.'
  )
  fdl_tags_set: tuple[str, ...] = _flag(
    (), 'Fiddle', 'Older name of --fdl=tag:..., also as --fdl_tag.NAME=VALUE.'
  )
  host_device_count: int | None = _flag(
    None, 'Devices', 'Run on this many simulated CPU devices.'
  )
  compilation_cache_dir: str = _flag(
    '~/.cache/pax/xla',
    'Devices',
    'Where compiled programs are kept for the next start; empty: nowhere.',
  )
  globally_use_hardware_rng: bool = _flag(
    False,
    'Devices',
    'Random numbers by the generator of the hardware: faster on TPUs, but other'
    ' numbers on another mesh. Off: the same everywhere.',
  )
  jax_enable_checks: bool = _flag(
    False, 'Devices', "JAX's own consistency checks; slow."
  )
  jax_traceback_filtering_option: str = _flag(
    'auto',
    'Devices',
    'How much of JAX tracebacks show: off, tracebackhide, remove_frames, auto.',
  )
  jax_profiler_port: int | None = _flag(
    None, 'Devices', 'Serve profiles on this port, for TensorBoard and XProf.'
  )
  startup_random_jitter_max_secs: int = _flag(
    60,
    'Several processes',
    'With more than 128 processes each waits up to so long before it starts,'
    ' so that storage is not asked by all at once.',
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
  pax_only_aggregate_summaries: bool = _flag(
    False,
    'Output',
    'Write of what layers and learners record only what is aggregated over'
    ' hosts.',
  )
  wandb_project: str | None = _flag(
    None, 'Output', 'Also log to this project of Weights & Biases.'
  )
  mlflow_experiment: str | None = _flag(
    None, 'Output', 'Also log to this experiment of MLflow.'
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
  words = [_FDL_PATH.sub('--fdl_set=', word) for word in argv]
  words = [_FDL_TAG.sub('--fdl_tags_set=', word) for word in words]
  return command_line.parse(
    RunOptions, words, _USAGE, unsupported_flags.REFUSED
  )
