# SPDX-License-Identifier: Apache-2.0
"""The flags of a run: one field each, and nobody else sees flags."""

from __future__ import annotations

import dataclasses
import difflib
import textwrap
from collections.abc import Sequence
from typing import Any

from absl import flags

_USAGE = """\
Trains a model that an experiment describes.

  pax --exp=tasks.lm.params.quickstart.TinyLm --job_log_dir=/tmp/pax/tiny

Start it again with the same --job_log_dir and it goes on from the newest
checkpoint. Ctrl-C or SIGTERM finishes the step, saves and stops.

Exit codes: 0 done, 1 failed, 75 stopped by a signal and saved."""

_WIDTH = 78


class UsageError(ValueError):
  """A command line that cannot be meant."""


class HelpRequested(Exception):
  """The command line asks for help; the text is the message."""


def _flag(default: Any, group: str, text: str) -> Any:
  return dataclasses.field(
    default=default, metadata={'group': group, 'help': text}
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
  """Everything that the command line says."""

  exp: str | None = _flag(
    None, 'What', 'Experiment, as module.Class or any unique end of it.'
  )
  job_log_dir: str | None = _flag(
    None, 'What', 'Directory of everything the run writes; made if missing.'
  )
  mode: str = _flag('train', 'What', "What to do; 'train' is all there is.")
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
  if any(word in ('--help', '-h', '-help', '--helpfull') for word in argv):
    raise HelpRequested(help_text())
  values = flags.FlagValues()
  for field in dataclasses.fields(RunOptions):
    _define(field, values)
  try:
    extra = values(list(argv))[1:]
  except flags.UnrecognizedFlagError as e:
    raise UsageError(_unknown(e.flagname)) from e
  except flags.Error as e:
    raise UsageError(str(e)) from e
  if extra:
    raise UsageError(
      f'{extra[0]!r} belongs to no flag; flags begin with --, as in'
      f' --exp={extra[0]}'
    )
  found = {f.name: values[f.name].value for f in dataclasses.fields(RunOptions)}
  return RunOptions(**found | {'set': tuple(found['set'])})


def help_text() -> str:
  """What --help prints."""
  lines, group = [_USAGE], None
  for field in dataclasses.fields(RunOptions):
    if field.metadata['group'] != group:
      group = field.metadata['group']
      lines += ['', f'{group}:']
    lines += [f'  --{field.name}{_default_text(field)}']
    lines += textwrap.wrap(
      field.metadata['help'],
      _WIDTH,
      initial_indent=' ' * 6,
      subsequent_indent=' ' * 6,
    )
  return '\n'.join(lines)


def _define(field: dataclasses.Field[Any], values: flags.FlagValues) -> None:
  define = {
    'str': flags.DEFINE_string,
    'bool': flags.DEFINE_boolean,
    'int': flags.DEFINE_integer,
    'tuple': flags.DEFINE_multi_string,
  }[_kind(field)]
  default = list(field.default) if _kind(field) == 'tuple' else field.default
  define(field.name, default, field.metadata['help'], flag_values=values)


def _kind(field: dataclasses.Field[Any]) -> str:
  return str(field.type).partition(' ')[0].partition('[')[0]


def _default_text(field: dataclasses.Field[Any]) -> str:
  if _kind(field) == 'tuple':
    return ' NAME=VALUE'
  if _kind(field) == 'bool' and field.default is not None:
    state = 'on' if field.default else 'off'
    return f'  (--[no]{field.name}; {state})'
  if field.default in (None, ''):
    return ''
  return f'={field.default}'


def _unknown(name: str) -> str:
  names = [field.name for field in dataclasses.fields(RunOptions)]
  near = difflib.get_close_matches(name.removeprefix('no'), names, n=2)
  hint = f'did you mean --{" or --".join(near)}?' if near else 'see pax --help'
  return f'there is no flag --{name}; {hint}'
