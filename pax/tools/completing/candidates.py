# SPDX-License-Identifier: Apache-2.0
"""The words that complete a command line, found without importing JAX."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Sequence

from pax import experiment_registry
from pax.runner import options as options_lib
from pax.tools import catalog
from pax.tools.completing import scripts, tool_flags

# A word and what it means.
Candidate = tuple[str, str]

_PROGRAMS = ('pax', 'paxrun')
_HELP = ('--help', 'lists the flags')


def candidates(line: str) -> list[Candidate]:
  """Returns the completions of the last word of a line; none: file names.

  Args:
    line: the command line up to the cursor.
  """
  *parts, current = line.split() if line[-1:].strip() else [*line.split(), '']
  words = _after_program(parts)
  tool = catalog.tool_name(['pax', *words])
  if '--' in words:
    # `pax launch -- FLAGS OF PAX`.
    tool, words = None, words[words.index('--') + 1 :]
  flags = _flags(tool)
  if current.startswith('--') and '=' in current:
    name, _, value = current.partition('=')
    found = [(f'{name}={w}', t) for w, t in _values(flags, name, value)]
  elif words and _takes_value(flags, words[-1]):
    found = _values(flags, words[-1], current)
  elif current.startswith('-') or (words and not tool):
    found = _flag_words(flags, current)
  else:
    found = _words(tool, words, current)
  return [pair for pair in found if pair[0].startswith(current)]


def _after_program(words: Sequence[str]) -> Sequence[str]:
  """The words after the program; variables may precede it."""
  names = [pathlib.PurePath(word).name for word in words]
  return words[next((i for i, n in enumerate(names, 1) if n in _PROGRAMS), 1) :]


def _flags(tool: str | None) -> list[tool_flags.Flag]:
  if tool is None:
    return tool_flags.of_options(options_lib.RunOptions)
  return tool_flags.of_tool(tool)


def _flag_words(
  flags: Iterable[tool_flags.Flag], current: str
) -> list[Candidate]:
  found = [
    (f'--{f.name}' if f.is_boolean else f'--{f.name}=', _short(f.text))
    for f in flags
  ]
  if current.startswith('--no'):
    found += [(f'--no{f.name}', _short(f.text)) for f in flags if f.is_boolean]
  return [*found, _HELP]


def _takes_value(flags: Iterable[tool_flags.Flag], word: str) -> bool:
  """Whether the next word is the value of a flag, as in `--exp NAME`."""
  return any(word == f'--{f.name}' and not f.is_boolean for f in flags)


def _values(
  flags: Iterable[tool_flags.Flag], name: str, value: str
) -> list[Candidate]:
  if name == '--exp':
    return _experiments(value)
  values = next((f.values for f in flags if name == f'--{f.name}'), ())
  return [(v, '') for v in values]


def _words(
  tool: str | None, words: Sequence[str], current: str
) -> list[Candidate]:
  """The completions of a word that is no flag."""
  if tool is None:
    names: dict[str, str] = catalog.TOOLS | {
      options_lib.TUNE: 'searches constants'
    }
    return list(names.items())
  by_tool: dict[str, Callable[[], list[Candidate]]] = {
    'completion': lambda: [(shell, '') for shell in scripts.SCRIPTS],
    'convert': lambda: [('hf-to-pax', ''), ('pax-to-hf', '')][
      : 2 * (len(words) == 1)
    ],
    'diff_configs': lambda: _experiments(current),
    'list_experiments': lambda: _experiments(current),
  }
  return by_tool.get(tool, list)()


def _experiments(current: str) -> list[Candidate]:
  """The shortest names of experiments that begin with `current`.

  Those of Pax, and those of Python files in the working directory.
  """
  names = experiment_registry.find_names()
  for file in sorted(pathlib.Path().glob('*.py')):
    names += [
      f'{file.stem}.{name}' for name in experiment_registry.names_in(file)
    ]
  endings = [_endings(name) for name in names]
  counts: dict[str, int] = {}
  for ending in (e for own in endings for e in own):
    counts[ending] = counts.get(ending, 0) + 1
  found: list[Candidate] = []
  for own in endings:
    matching = [e for e in own if counts[e] == 1 and e.startswith(current)]
    # `module.Class` says more than `Class`.
    preferred = [e for e in matching if current or '.' in e]
    found += [(e, '') for e in preferred[:1]]
  return found


def _endings(name: str) -> list[str]:
  """The names that --exp takes for an experiment, the shortest first."""
  parts = name.removeprefix('pax.').split('.')
  return ['.'.join(parts[i:]) for i in range(len(parts) - 1, -1, -1)]


def _short(text: str) -> str:
  """The first sentence of a help text."""
  return text.partition('. ')[0].rstrip('.')
