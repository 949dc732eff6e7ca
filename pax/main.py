# SPDX-License-Identifier: Apache-2.0
"""The command: `python -m pax.main --exp=EXPERIMENT --job_log_dir=DIR`.

Its first word may name a tool instead, as in `python -m pax.main plot DIR`.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from pax.runner import command_line, parent_death
from pax.runner import options as options_lib
from pax.tools import commands

EXIT_ERROR = 1
EXIT_PREEMPTED = 75


def main(argv: Sequence[str]) -> int:
  """Runs what the command line asks for; returns the exit code.

  0: done. 1: failed, the reason is on stderr. 2: of --mode=aot, the step does
  not fit. 75: stopped by a signal, saved.
  A run that hangs ends the process with 124, if --hang_timeout_secs says so.
  """
  if commands.named(argv):
    return commands.run(argv)
  try:
    options = options_lib.parse(argv)
  except options_lib.HelpRequested as e:
    print(e)
    print(f'\nTools, each with --help:\n{commands.help_text()}')
    return 0
  except options_lib.UsageError as e:
    return _fail(e, show_traceback=False)
  parent_death.watch()
  try:
    if options.study:
      from pax import studies

      return studies.run(options)
    if options.mode == 'aot':
      from pax import aot

      return aot.run(options)
    from pax.runner import runner

    return runner.run(options)
  except KeyboardInterrupt as e:
    return _stopped(e)
  except Exception as e:
    return _fail(e, show_traceback=options.traceback)


def console() -> None:
  """The `pax` command."""
  command_line.stand_where_it_was_typed()
  code = main(sys.argv)
  if code == EXIT_ERROR or (code and not _is_one_of_many()):
    # Waits neither for a compilation nor for the processes that go on.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
  sys.exit(code)


def _is_one_of_many() -> bool:
  if 'jax' not in sys.modules:
    return False
  import jax

  return jax.distributed.is_initialized()


def _stopped(stop: KeyboardInterrupt) -> int:
  if type(stop).__name__ == 'PreemptedBeforeFirstStepError':
    print('pax: stopped before the first step', file=sys.stderr)
    return EXIT_PREEMPTED
  print(
    'pax: stopped at once; what came after the last checkpoint is lost',
    file=sys.stderr,
  )
  return EXIT_ERROR


def _fail(error: Exception, *, show_traceback: bool) -> int:
  if show_traceback:
    traceback.print_exception(error)
  text = str(error)
  if not isinstance(error, ValueError):
    text = f'{type(error).__name__}: {text} (--traceback shows where)'
  print(f'pax: error: {text}', file=sys.stderr)
  return EXIT_ERROR


if __name__ == '__main__':
  console()
