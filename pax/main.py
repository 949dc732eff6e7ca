# SPDX-License-Identifier: Apache-2.0
"""The command `pax`, also `python -m pax.main`.

pax --exp=EXPERIMENT --job_log_dir=DIR
pax TOOL ...
"""

# Experiments name programs: `base_experiment.program_class`.
# bazel: deps=//pax/programs

# ruff: noqa: E402
from __future__ import annotations

from pax import stop_signals

if __name__ == '__main__':
  # Before the other imports: a signal may come at once.
  stop_signals.install()

import atexit
import os
import sys
from collections.abc import Sequence

from pax import __version__, exit_codes, garbage_collection
from pax.files import storage
from pax.runner import (
  command_line,
  error_report,
  parent_death,
  peer_monitor,
)
from pax.runner import console as console_lib
from pax.runner import options as options_lib
from pax.tools import catalog, commands


def main(argv: Sequence[str]) -> int:
  """Runs a command line, whose first word is the program.

  Returns one of `exit_codes`. A signal may end the process at once, and so may
  a run that hangs (`stop_signals`, `programs.watchdog`).

  Raises:
    BrokenPipeError: the reader of stdout or stderr has exited.
  """
  if list(argv[1:]) == ['--version']:
    console_lib.print_text(f'pax-jax {__version__}')
    return exit_codes.DONE
  if len(argv) == 1:
    console_lib.print_text(commands.welcome_text())
    return exit_codes.DONE
  if catalog.tool_name(argv):
    stop_signals.handle(stop_signals.stop_tool)
    return commands.run(argv)
  try:
    options = options_lib.parse(argv)
  except command_line.HelpRequested as e:
    tools_text = commands.help_text()
    console_lib.print_text(f'{e}\n\nTools, each with --help:\n\n{tools_text}')
    return exit_codes.DONE
  except command_line.UsageError as e:
    return _report_error(e, show_traceback=False)
  parent_death.watch()
  try:
    return _run(options)
  except BrokenPipeError:
    raise
  except Exception as e:
    return _report_error(e, show_traceback=options.traceback)


def console(argv: Sequence[str] | None = None) -> None:
  """Runs a command line, by default that of the process, and exits."""
  stop_signals.install()
  # After the hooks of JAX, which may wait for other processes.
  atexit.register(stop_signals.ignore_signals)
  console_lib.use_invocation_dir()
  try:
    code = main(sys.argv if argv is None else argv)
  except BrokenPipeError as e:
    code = exit_codes.ERROR
    if console_lib.flush_streams():
      code = _report_error(e, show_traceback=True)
  console_lib.flush_streams()
  stop_signals.wait_if_ending()
  peer_monitor.announce_exit(code)
  if code == exit_codes.ERROR or (code and not _is_distributed()):
    # Waits neither for a compilation nor for other processes.
    os._exit(code)
  sys.exit(code)


def _run(options: options_lib.RunOptions) -> int:
  if options.job_log_dir and (options.study or options.mode == 'aot'):
    storage.require_local(options.job_log_dir, '--job_log_dir')
  # Each imports JAX, which --help and wrong flags do not need.
  if options.study:
    from pax import studies

    return studies.run(options)
  if options.mode == 'aot':
    from pax import aot

    stop_signals.handle(stop_signals.stop_tool)
    return aot.run(options)
  garbage_collection.defer()
  try:
    from pax.runner import runner

    return runner.run(options)
  finally:
    garbage_collection.resume()


def _is_distributed() -> bool:
  if 'jax' not in sys.modules:
    return False
  import jax

  return jax.distributed.is_initialized()


def _report_error(error: Exception, *, show_traceback: bool) -> int:
  # The error may be a consequence of the end of another process.
  stop_signals.wait_if_ending()
  error_report.print_error(error, show_traceback=show_traceback)
  peer_monitor.announce_exit(exit_codes.ERROR, error_report.text(error))
  return exit_codes.ERROR


if __name__ == '__main__':
  console()
