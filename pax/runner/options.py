# SPDX-License-Identifier: Apache-2.0
"""The flags of a run, as fields of one dataclass."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Self

from pax.runner import command_line, experiment_files, unsupported_flags
from praxis import value_domains

_USAGE = """\
Trains the model of an experiment.

  pax --exp=tasks.lm.params.quickstart.TinyLm --job_log_dir=/tmp/pax/tiny

The same command continues from the newest checkpoint in --job_log_dir. Ctrl-C,
SIGTERM and SIGHUP finish the step, save and stop; again, they stop at once.
`pax tune` is `pax --study=local`. `pax --version` prints the version. `paxrun`
is the same command.

Exit codes: 0 done, 1 failed, 2 does not fit (--mode=aot), 3 diverged, 75
stopped by a signal and saved, 76 another process of the job is lost, 124 hung,
128 + N stopped at once by signal N."""

# Deprecated: --fdl.task.train.num_train_steps=10, --fdl_tag.Name=1.
_FDL_PATH = re.compile(r'^--?fdl\.(?=\w)')
_FDL_TAG = re.compile(r'^--?fdl_tag\.(?=\w)')

# `pax tune` searches constants.
TUNE = 'tune'

UsageError = command_line.UsageError
HelpRequested = command_line.HelpRequested
_flag = command_line.flag
_path = functools.partial(_flag, is_path=True)
_interval = value_domains.interval
_OneOf = value_domains.OneOf
_AT_LEAST_1 = _interval(ge=1)
# More overflows the timers of the operating system.
_MAX_SECS = 10**9
_ADDRESS = value_domains.Matching(
  r'(\[[\da-fA-F:.]+\]|[^\s:/]+):'
  r'(6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[1-5]\d{4}|[1-9]\d{0,3})',
  'HOST:PORT with a port from 1 to 65535',
  '10.0.0.1:1234',
)
_MODES = ('train', 'eval', 'decode', 'decode_once', 'infer', 'quantize', 'aot')
_RESTORE_MODES = ('eval', 'decode', 'decode_once', 'quantize')
_TRAINING_FLAGS = ('aot_load', 'emergency_dir', 'pgle', 'profile_steps')


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(command_line.CheckedOptions):
  """The values of all flags."""

  exp: str | None = _path(
    None,
    'What',
    'Experiment: module.Class, or any unique suffix of it; or a file,'
    ' NAME.yaml or NAME.toml, with the keys exp and set.',
  )
  job_log_dir: str | None = _path(
    None,
    'What',
    'Directory for all outputs of the run; created if missing. A path, or'
    ' gs://BUCKET/DIR or s3://BUCKET/DIR.',
  )
  mode: str = _flag(
    'train',
    'What',
    'train; eval or decode, which follow the checkpoints of a training job;'
    ' decode_once; infer; quantize, which writes a checkpoint with integer'
    ' weights; aot, which predicts memory and speed on another machine.',
    domain=_OneOf(_MODES),
  )
  set: tuple[str, ...] = _flag(
    (),
    'What',
    'Set a constant of the experiment (--set NUM_LAYERS=4) or a field of the'
    ' configuration (--set task.train.num_train_steps=100). Repeatable.',
  )
  eval_on_test: bool | None = _flag(
    None,
    'What',
    'Evaluate the test inputs during training. Default: EVAL_ON_TEST of the'
    ' experiment.',
  )
  tfds_data_dir: str | None = _path(
    None,
    'What',
    'Folder of the data sets of TFDS that SeqIO tasks read, instead of that of'
    ' the task or TFDS_DATA_DIR.',
    example='DIRECTORY',
  )
  decode_during_train: bool = _flag(
    False,
    'What',
    'Decode during training, every task.train.decode_interval_steps.',
  )
  eval_during_decode: bool = _flag(
    False, 'What', 'For --mode=decode: evaluate each checkpoint too.'
  )
  study: str | None = _flag(
    None,
    'Study',
    'Search constants of the experiment by its search(). Each trial is a run'
    ' below --job_log_dir; the same command continues the study. Use'
    ' --study=local.',
  )
  num_trials: int | None = _flag(
    None,
    'Study',
    'Maximum number of trials, in place of that of search().',
    domain=_AT_LEAST_1,
  )
  parallel_trials: int = _flag(
    1, 'Study', 'Number of trials at a time.', domain=_AT_LEAST_1
  )
  sampler: str | None = _flag(
    None,
    'Study',
    'Sampler of Optuna in place of the algorithm of search(): tpe, cmaes or'
    ' random (docs/tuning.md).',
    domain=_OneOf(('tpe', 'cmaes', 'random')),
  )
  pruner: str | None = _flag(
    None,
    'Study',
    'Pruner of Optuna that stops trials early, by the reward: median, halving'
    ' or hyperband. It needs a sampler of Optuna.',
    domain=_OneOf(('median', 'halving', 'hyperband')),
  )
  metrics_from: str = _flag(
    'eval',
    'Study',
    'Source of the metrics of the reward: train, eval, or decode with eval.',
    domain=_OneOf(('train', 'eval', 'decode')),
  )
  sub_experiment: str | None = _flag(
    None,
    'Study',
    "Id of one of the experiment's sub_experiments(). A trial of a study runs"
    ' all of them.',
  )
  topology: str | None = _flag(
    None,
    'Ahead of time',
    'For --mode=aot: the machine, such as v4-128, v4-128x2 (two slices),'
    ' v5e-256, 8xh100, cpu:8. Default: a TPU v4 of the size of the mesh.',
  )
  all: bool = _flag(
    False,
    'Ahead of time',
    'For --mode=aot: every experiment, each on its own machine, and a table.'
    ' The same command continues.',
  )
  aot_jobs: int = _flag(
    1,
    'Ahead of time',
    'For --all: number of experiments at a time.',
    domain=_AT_LEAST_1,
  )
  aot_table: str | None = _path(
    None,
    'Ahead of time',
    'For --all: file of the table. Default: aot/table.md in --job_log_dir.',
  )
  check_level: int = _flag(
    10,
    'Ahead of time',
    'For --mode=aot: 6 shards the state, 7 also traces the step, 10 also'
    ' compiles it.',
    domain=_interval(ge=0, le=10),
  )
  aot_full_effort: bool = _flag(
    False,
    'Ahead of time',
    'For --mode=aot: compile with full optimization. Otherwise compiling takes'
    ' a quarter of the time, memory is off by some percent, and steps within'
    ' 10 % of the limit are compiled again.',
  )
  aot_remat: bool = _flag(
    False,
    'Ahead of time',
    'For --mode=aot: trace the step with each remat policy and recommend the'
    ' fitting one that recomputes least. The experiment needs the constant'
    ' CHECKPOINT_POLICY.',
  )
  aot_save: str | None = _path(
    None,
    'Ahead of time',
    'For --mode=aot: file for the compiled step, to --aot_load.',
  )
  aot_load: str | None = _path(
    None,
    'Ahead of time',
    'For --mode=train: file of the compiled step. It must be of the same'
    ' machine, configuration and JAX version. The file is code'
    ' (docs/security.md).',
  )
  init_from: str | None = _path(
    None,
    'Checkpoints',
    'Initialize variables from those of another checkpoint with the same name'
    ' and shape, and list them: DIR for the newest checkpoint, or DIR@STEP;'
    ' hf:DIR for a folder of Hugging Face.'
    ' Checkpoints of the run itself take precedence.',
  )
  restore_checkpoint_dir: str | None = _path(
    None,
    'Checkpoints',
    'For --mode=eval, decode, decode_once and quantize: directory of the'
    ' checkpoints. Default, but not for quantize: that of --job_log_dir.',
  )
  restore_checkpoint_step: tuple[int, ...] = _flag(
    (),
    'Checkpoints',
    'For --mode=decode_once (repeatable) and quantize: step of a checkpoint;'
    ' default: the newest. For --mode=eval and decode: the first step.',
    example='STEP',
    domain=_interval(ge=0),
  )
  first_checkpoint_timeout_secs: int = _flag(
    4800,
    'Checkpoints',
    'For --mode=eval and decode: how long to wait for the first checkpoint.',
    domain=_interval(ge=0, le=_MAX_SECS),
  )
  next_checkpoint_timeout_secs: int | None = _flag(
    None,
    'Checkpoints',
    'For --mode=eval and decode: how long to wait for each further checkpoint.'
    ' Default: until training ends.',
    domain=_interval(ge=0, le=_MAX_SECS),
  )
  emergency_dir: str | None = _path(
    None,
    'Checkpoints',
    'For --mode=train: directory on another file system that receives a last'
    ' checkpoint if --job_log_dir is deleted, moved or unmounted, or cannot be'
    ' written to (docs/job_directory.md).',
  )
  job_dir_wait_secs: int = _flag(
    60,
    'Checkpoints',
    'How long a job waits for --job_log_dir to return after it was moved or'
    ' unmounted.',
    domain=_interval(ge=0, le=_MAX_SECS),
  )
  enable_checkpoint_saving: bool = _flag(
    True, 'Checkpoints', 'Save checkpoints.'
  )
  checkpoint_todelete_subdir: str | None = _flag(
    None,
    'Checkpoints',
    'Rename expired checkpoints into this folder of checkpoints/, instead of'
    ' deleting them.',
  )
  on_corrupt_checkpoint: str = _flag(
    'fail',
    'Checkpoints',
    'For --mode=train, what to do if the newest checkpoint is corrupt: fail,'
    ' and print the command to move it aside; fallback, which renames it to'
    ' corrupt_... and continues from the newest that is intact. pax launch'
    ' --print sets fallback for jobs that restart by themselves.',
    domain=_OneOf(('fail', 'fallback')),
  )
  pmap_use_tensorstore: bool = _flag(
    False,
    'Checkpoints',
    'Write the state of an experiment without a mesh to TensorStore, one array'
    ' per leaf and in parallel, instead of one file.',
  )
  tensorstore_use_ocdbt: bool = _flag(
    True,
    'Checkpoints',
    'Write the state of an experiment with a mesh by Orbax, as one OCDBT'
    ' database; otherwise as one TensorStore array per leaf.',
  )
  jax_fully_async_checkpoint: bool = _flag(
    True, 'Checkpoints', 'Write checkpoints in the background.'
  )
  single_replica_restore: bool = _flag(
    False,
    'Checkpoints',
    'Where the mesh has replicas of the state in several processes, only those'
    ' of the first read the checkpoint of the job and send it to the others.',
  )
  exit_after_ondemand_checkpoint: bool = _flag(
    True,
    'Checkpoints',
    'Exit when SIGTERM has saved a checkpoint; otherwise training continues'
    ' until Ctrl-C, SIGHUP or SIGKILL.',
  )
  accept_changed_data: bool = _flag(
    False,
    'Checkpoints',
    'Continue at the saved position of the training data although files,'
    ' tokenizer, seed or layout changed since.',
  )
  async_timeout_secs: int = _flag(
    600,
    'Checkpoints',
    'How long a process waits for the others at each barrier of saving and'
    ' restoring a checkpoint, and how long no file of a save may change and a'
    ' restore may read nothing.',
    domain=_interval(ge=1, le=_MAX_SECS),
  )
  fdl: tuple[str, ...] = _flag(
    (),
    'Fiddle',
    'Instead of --exp: make the experiment by config:module.function(...),'
    ' config_file:PATH or config_str:TEXT; change it by set:PATH=VALUE,'
    ' tag:NAME=VALUE or fiddler:module.function(...). Repeatable, in order. A'
    ' configuration can call any function: it is code (docs/security.md).',
    example='COMMAND',
  )
  fdl_config: str | None = _flag(
    None, 'Fiddle', 'Deprecated; use --fdl=config:...'
  )
  fdl_config_file: str | None = _flag(
    None, 'Fiddle', 'Deprecated; use --fdl=config_file:...'
  )
  fiddler: tuple[str, ...] = _flag(
    (), 'Fiddle', 'Deprecated; use --fdl=fiddler:...', example='FUNCTION'
  )
  fdl_set: tuple[str, ...] = _flag(
    (), 'Fiddle', 'Deprecated; use --fdl=set:... Also --fdl.PATH=VALUE.'
  )
  fdl_tags_set: tuple[str, ...] = _flag(
    (), 'Fiddle', 'Deprecated; use --fdl=tag:... Also --fdl_tag.NAME=VALUE.'
  )
  trust_foreign_files: bool = _flag(
    False,
    'Fiddle',
    'Read files that run code (--exp=FILE, --fdl=config_file:, --aot_load, the'
    ' compilation cache) even if other users own or can write them.',
  )
  host_device_count: int | None = _flag(
    None,
    'Devices',
    'Number of CPU devices to simulate and run on.',
    domain=_interval(ge=1, le=2**16),
  )
  compilation_cache_dir: str = _flag(
    '~/.cache/pax/xla',
    'Devices',
    'Cache of compiled programs for the next start; empty: no cache. Not used'
    ' if other users can write it, without --trust_foreign_files.',
  )
  globally_use_hardware_rng: bool = _flag(
    False,
    'Devices',
    "The hardware's random number generator: faster on TPUs, but the numbers"
    ' depend on the mesh.',
  )
  pgle: str | None = _flag(
    None,
    'Devices',
    'For --mode=train on GPUs: profile the first steps, and compile again with'
    ' the measured durations (profile-guided latency estimation). auto: by JAX,'
    ' at each start unless cached; manual: stores profile.pb in --job_log_dir,'
    ' which later starts use, and prints step times (docs/profiling.md).',
    domain=_OneOf(('auto', 'manual')),
  )
  jax_enable_checks: bool = _flag(
    False, 'Devices', "JAX's own consistency checks; slow."
  )
  jax_traceback_filtering_option: str = _flag(
    'auto',
    'Devices',
    'Frames of JAX in tracebacks: off, tracebackhide, remove_frames, auto.',
    domain=_OneOf(('off', 'tracebackhide', 'remove_frames', 'auto')),
  )
  profile_steps: str | None = _flag(
    None,
    'Devices',
    'For --mode=train: trace the steps FIRST:END, END excluded, and summarize'
    ' them in profile_summary.md (docs/profiling.md).',
    domain=value_domains.Matching(
      r'\d{1,18}:\d{1,18}', 'two step numbers FIRST:END', '10:15'
    ),
  )
  jax_profiler_port: int | None = _flag(
    None,
    'Devices',
    'Serve profiles on this port, for TensorBoard and XProf.',
    domain=_interval(ge=1, le=65535),
  )
  startup_random_jitter_max_secs: int = _flag(
    60,
    'Several processes',
    'With more than 128 processes, each waits for a random time up to this one'
    ' before it starts, to spread the load on storage.',
    domain=_interval(ge=0, le=_MAX_SECS),
  )
  multiprocess_gpu: bool = _flag(
    False,
    'Several processes',
    'Join --num_hosts processes at --server_addr as --host_idx. TPU pods, Slurm'
    ' and Open MPI do not need it.',
  )
  server_addr: str | None = _flag(
    None,
    'Several processes',
    'Address of process 0, as host:port.',
    domain=_ADDRESS,
  )
  num_hosts: int | None = _flag(
    None, 'Several processes', 'Number of processes.', domain=_AT_LEAST_1
  )
  host_idx: int | None = _flag(
    None,
    'Several processes',
    'Index of this process, from 0.',
    domain=_interval(ge=0),
  )
  initialization_timeout_secs: int = _flag(
    300,
    'Several processes',
    'Longest wait for all processes at the start; then each exits with 76.',
    domain=_interval(ge=1, le=_MAX_SECS),
  )
  peer_timeout_secs: int = _flag(
    10,
    'Several processes',
    'A process whose host is silent for this time is lost, as one that died:'
    ' the others exit with 76.',
    domain=_interval(ge=5, le=3600),
  )
  enable_summary_writer: bool = _flag(
    True, 'Output', 'Write TensorBoard events and metrics.jsonl.'
  )
  pax_only_aggregate_summaries: bool = _flag(
    False,
    'Output',
    'Of the summaries of layers and learners, write only those aggregated over'
    ' hosts.',
  )
  wandb_project: str | None = _flag(
    None, 'Output', 'Also log to this project of Weights & Biases.'
  )
  mlflow_experiment: str | None = _flag(
    None, 'Output', 'Also log to this experiment of MLflow.'
  )
  decode_output_pickle: bool = _flag(
    True,
    'Output',
    'Write decoded outputs with their dtypes as .npz in addition to .jsonl.',
  )
  hang_timeout_secs: int | None = _flag(
    None,
    'Output',
    'Print the stacks of all threads, save if the input caused the wait, and'
    ' exit with code 124 if no step is done within this time; 0: never.'
    ' Default: 1800 for jobs of several processes, otherwise never.',
    domain=_interval(ge=0, le=_MAX_SECS),
  )
  traceback: bool = _flag(
    False, 'Output', 'Show the Python traceback of an error.'
  )

  def __post_init__(self) -> None:
    if reason := unsupported_flags.MODES.get(self.mode):
      raise UsageError(f'--mode={self.mode} is not supported: {reason}')
    super().__post_init__()
    self._check_processes()
    self._check_training_flags()
    self._check_restore()

  def _check_restore(self) -> None:
    source = self.restore_checkpoint_dir or self.init_from
    if self.mode == 'quantize' and not source:
      raise UsageError(
        '--mode=quantize needs --restore_checkpoint_dir, the directory of the'
        ' job whose checkpoint it converts, or --init_from'
      )
    if not (self.restore_checkpoint_dir or self.restore_checkpoint_step):
      return
    if self.mode not in _RESTORE_MODES:
      raise UsageError(
        '--restore_checkpoint_dir and --restore_checkpoint_step are for'
        ' --mode=eval, decode, decode_once and quantize, got'
        f' --mode={self.mode}; to start from another checkpoint use --init_from'
      )
    if self.init_from:
      raise UsageError(
        '--init_from chooses the only state that is evaluated, so that'
        ' --restore_checkpoint_dir and --restore_checkpoint_step have no'
        ' effect; leave them out, or --init_from (it takes DIR@STEP)'
      )
    if len(self.restore_checkpoint_step) > 1 and self.mode != 'decode_once':
      raise UsageError(
        f'--mode={self.mode} takes one --restore_checkpoint_step, got'
        f' {list(self.restore_checkpoint_step)}; decode_once takes several'
      )

  def _check_training_flags(self) -> None:
    for name in _TRAINING_FLAGS:
      if getattr(self, name) and self.mode != 'train':
        raise UsageError(
          f'--{name} is for --mode=train, got --mode={self.mode}'
        )
    if self.emergency_dir and self.study:
      raise UsageError('--emergency_dir is for --mode=train, got --study')
    if self.pgle and self.aot_load:
      raise UsageError(
        '--pgle compiles the step, but --aot_load has it compiled; leave one of'
        ' them out'
      )
    if self.profile_steps:
      first, end = map(int, self.profile_steps.split(':'))
      if first >= end:
        raise UsageError(
          f'--profile_steps={self.profile_steps} has no step: FIRST must be'
          f' below END; e.g. --profile_steps={first}:{first + 5}'
        )

  def _check_processes(self) -> None:
    names = ('server_addr', 'num_hosts', 'host_idx')
    missing = [f'--{name}' for name in names if getattr(self, name) is None]
    if missing and (self.multiprocess_gpu or self.server_addr):
      raise UsageError(
        f'several processes need {" and ".join(missing)} too, as in'
        ' --multiprocess_gpu --server_addr=10.0.0.1:1234 --num_hosts=2'
        ' --host_idx=0'
      )
    if missing or self.host_idx is None or self.num_hosts is None:
      return
    if self.host_idx >= self.num_hosts:
      raise UsageError(
        f'--host_idx must be below --num_hosts={self.num_hosts}, got'
        f' {self.host_idx}; the processes are numbered from 0'
      )

  @property
  def job_dir(self) -> str:
    """`job_log_dir` of a job.

    Raises:
      UsageError: it is not set.
    """
    if not self.job_log_dir:
      raise UsageError(
        'where to? e.g. --job_log_dir=/tmp/pax/tiny; a run that is started'
        ' again with the same directory continues'
      )
    return self.job_log_dir

  def expand_files(self) -> Self:
    """Returns the flags with the content of an experiment file."""
    return experiment_files.expand(self)


class _FlagsOnly(RunOptions):
  """The values of all flags; the files that they name are not read."""

  def expand_files(self) -> Self:
    """Returns the flags."""
    return self


def parse(argv: Sequence[str]) -> RunOptions:
  """Parses a command line, whose first word is the program.

  Raises:
    UsageError: an unknown flag, an invalid value, or a word that belongs to no
      flag.
    HelpRequested: --help is among the words.
  """
  return _parse(RunOptions, argv)


def check(argv: Sequence[str]) -> None:
  """Checks a command line of another machine, whose files are not read.

  Raises:
    UsageError: as of `parse`.
    HelpRequested: --help is among the words.
  """
  _parse(_FlagsOnly, argv)


def _parse(options: type[RunOptions], argv: Sequence[str]) -> RunOptions:
  words = [_FDL_PATH.sub('--fdl_set=', word) for word in argv]
  if words[1:2] == [TUNE]:
    words[1] = '--study=local'
  words = [_FDL_TAG.sub('--fdl_tags_set=', word) for word in words]
  return command_line.parse(
    options,
    words,
    _USAGE,
    unsupported_flags.FLAGS,
    unsupported_flags.IGNORED,
  )
