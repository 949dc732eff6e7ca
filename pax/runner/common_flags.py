# SPDX-License-Identifier: Apache-2.0
"""Flags by which all processes of a job compute the same programs."""

from __future__ import annotations

import shlex

from absl import logging

from pax import coordination_service
from pax.runner.options import RunOptions, UsageError

# Of the flags that are compared; barriers exchange short texts.
_MAX_CHARS = 4000
# Besides --mode; further ones may name files of one host.
_NAMES = (
  'exp',
  'fdl',
  'set',
  'eval_on_test',
  'decode_during_train',
  'eval_during_decode',
)


def check(
  options: RunOptions,
  barriers: coordination_service.Barriers | None = None,
) -> None:
  """Compares the flags with those of process 0; all processes call it.

  Other flags than --mode are a warning only: they may differ in files of each
  host. `partitioning.program_agreement` compares the programs.

  Args:
    options: the flags of this process.
    barriers: barriers of the processes; None makes those of the job.

  Raises:
    UsageError: --mode differs.
  """
  barriers = barriers or coordination_service.Barriers(
    'flags', options.initialization_timeout_secs
  )
  words = _words(options)[:_MAX_CHARS]
  first = barriers.wait('the flags are read', words)[0]
  mode = words.split()[0]
  if mode != first.split()[0]:
    raise UsageError(
      f'all processes of a job need the same --mode, got {mode} here and'
      f' {first.split()[0]} in process 0'
    )
  if words != first:
    logging.warning(
      'This process has other flags than process 0. Here: %s; process 0: %s',
      words,
      first,
    )


def _words(options: RunOptions) -> str:
  """The flags as on a command line, without those at their default."""
  words = [f'--mode={options.mode}']
  for name in _NAMES:
    value = getattr(options, name)
    if value != getattr(RunOptions, name):
      values = value if isinstance(value, tuple) else (value,)
      words += [f'--{name}={item}' for item in values]
  return shlex.join(words)
