# SPDX-License-Identifier: Apache-2.0
"""Completion of `pax` and `paxrun` in bash, zsh and fish.

eval "$(pax completion bash)"
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from pax.runner import command_line
from pax.tools import tool
from pax.tools.completing import candidates, scripts

_USAGE = """\
Prints a script that completes commands, flags and experiments.

  eval "$(pax completion bash)"      in ~/.bashrc
  eval "$(pax completion zsh)"       in ~/.zshrc
  pax completion fish | source       in ~/.config/fish/config.fish"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(command_line.CheckedOptions):
  """The flags of this tool."""

  shells: tuple[str, ...] = command_line.words('bash|zsh|fish')
  line: str | None = command_line.flag(
    None,
    'For the scripts',
    'Print the completions of this command line, one per line with a tab and a'
    ' text.',
  )


def main(argv: Sequence[str] = sys.argv) -> int:
  """Prints a script or completions; returns the exit code.

  Raises:
    UsageError: there is no script for the shell.
  """
  options = command_line.parse(Options, argv, _USAGE)
  if options.line is not None:
    found = candidates.candidates(options.line)
    print(''.join(f'{word}\t{text}\n' for word, text in found), end='')
    return 0
  if len(options.shells) != 1 or options.shells[0] not in scripts.SCRIPTS:
    raise command_line.UsageError(
      f'pax completion wants one of {", ".join(scripts.SCRIPTS)}, got'
      f' {command_line.shown(" ".join(options.shells))}'
    )
  print(scripts.SCRIPTS[options.shells[0]], end='')
  return 0


if __name__ == '__main__':
  tool.run_console(main)
