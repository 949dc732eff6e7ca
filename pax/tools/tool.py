# SPDX-License-Identifier: Apache-2.0
"""How a tool is run: its errors are one line, its exit codes those of `pax`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from pax.runner import command_line


def console(main: Callable[[Sequence[str]], int]) -> None:
  """Runs a tool as a program: the words it was started with, its exit code."""
  command_line.stand_where_it_was_typed()
  sys.exit(run(main, sys.argv))


def run(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
  """Returns the exit code of a tool: 1 when words or files are wrong."""
  try:
    return main(argv)
  except command_line.HelpRequested as e:
    print(e)
    return 0
  except BrokenPipeError:
    # Whoever reads has read enough; there is nobody to tell.
    sys.stdout = open(os.devnull, 'w', encoding='utf-8')
    return 0
  except (ValueError, OSError) as e:
    print(f'pax: error: {e}', file=sys.stderr)
    return 1
