# SPDX-License-Identifier: Apache-2.0
"""Runs a tool as a program: one-line errors, exit codes as of `pax`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence

from pax import exit_codes
from pax.runner import command_line, console, error_report

_TRACEBACK = '--traceback'


def run_console(main: Callable[[Sequence[str]], int]) -> None:
  """Runs a tool on the words of the command line, and exits."""
  console.use_invocation_dir()
  sys.exit(run(main, sys.argv))


def run(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
  """Returns the exit code of a tool: 1 if it fails.

  --traceback, a flag of all tools, shows the traceback of the error.

  Raises:
    BrokenPipeError: a pipe other than stdout and stderr is closed.
  """
  # Warnings look like errors; has no effect on a program that logs already.
  logging.basicConfig(format='pax: %(message)s', level=logging.WARNING)
  code = exit_codes.DONE
  words = list(argv)
  # The words after -- are those of another program.
  own_words = words[: words.index('--')] if '--' in words else words
  show_traceback = _TRACEBACK in own_words
  if show_traceback:
    words.remove(_TRACEBACK)
  try:
    code = main(words)
  except command_line.HelpRequested as e:
    console.print_text(e)
  except BrokenPipeError:
    if console.flush_streams():
      raise
  except Exception as e:
    error_report.print_error(e, show_traceback=show_traceback)
    code = exit_codes.ERROR
  console.flush_streams()
  return code
