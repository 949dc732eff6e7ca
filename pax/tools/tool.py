# SPDX-License-Identifier: Apache-2.0
"""Runs a tool as a program: one-line errors, exit codes as of `pax`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from pax import exit_codes
from pax.runner import command_line, console


def run_console(main: Callable[[Sequence[str]], int]) -> None:
  """Runs a tool on the words of the command line, and exits."""
  console.use_invocation_dir()
  sys.exit(run(main, sys.argv))


def run(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
  """Returns the exit code of a tool: 1 if words or files are wrong.

  Raises:
    BrokenPipeError: a pipe other than stdout and stderr is closed.
  """
  code = exit_codes.DONE
  try:
    code = main(argv)
  except command_line.HelpRequested as e:
    console.print_text(e)
  except BrokenPipeError:
    if console.flush_streams():
      raise
  except (ValueError, OSError) as e:
    print(f'pax: error: {e}', file=sys.stderr)
    code = exit_codes.ERROR
  console.flush_streams()
  return code
