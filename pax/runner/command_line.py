# SPDX-License-Identifier: Apache-2.0
"""A command line as a dataclass: one field for each flag, and one for words."""

from __future__ import annotations

import dataclasses
import difflib
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from absl import flags

OptionsT = TypeVar('OptionsT')

_WIDTH = 78
_HELP = ('--help', '-h', '-help', '--helpfull')
_DEFINE = {
  'str': flags.DEFINE_string,
  'bool': flags.DEFINE_boolean,
  'int': flags.DEFINE_integer,
  'float': flags.DEFINE_float,
  'tuple[str': flags.DEFINE_multi_string,
  'tuple[int': flags.DEFINE_multi_integer,
}


class UsageError(ValueError):
  """A command line that cannot be meant."""


class HelpRequested(Exception):
  """The command line asks for help; the text is the message."""


def flag(
  default: Any, group: str, text: str, *, example: str = 'NAME=VALUE'
) -> Any:
  """A field that is a flag; `group` is the heading it stands under in help.

  `example` shows a value of a flag that may be repeated.
  """
  return dataclasses.field(
    default=default,
    metadata={'group': group, 'help': text, 'example': example},
  )


def words(text: str) -> Any:
  """A field that takes the words which belong to no flag."""
  return dataclasses.field(default=(), metadata={'words': text})


def parse(
  options: type[OptionsT],
  argv: Sequence[str],
  usage: str,
  refused: Mapping[str, str] | None = None,
) -> OptionsT:
  """The `options` of a command line, whose first word is the program.

  `refused` says of flags that others have why they are none here.

  Raises:
    UsageError: an unknown flag, a value of the wrong type, or a word that
      belongs to no flag where there is no field for words.
    HelpRequested: --help is among the words.
  """
  if any(word in _HELP for word in argv):
    raise HelpRequested(help_text(options, usage))
  fields = _flag_fields(options)
  values = flags.FlagValues()
  for field in fields:
    _define(field, values)
  try:
    extra = values(list(argv))[1:]
  except flags.UnrecognizedFlagError as e:
    raise UsageError(_unknown(e.flagname, fields, refused or {})) from e
  except flags.Error as e:
    raise UsageError(str(e)) from e
  found = {f.name: _value(values[f.name].value) for f in fields}
  if named := _words_field(options):
    found[named.name] = tuple(extra)
  elif extra:
    raise UsageError(
      f'{extra[0]!r} belongs to no flag; flags begin with --, as in'
      f' --exp={extra[0]}'
    )
  return options(**found)


def stand_where_it_was_typed() -> None:
  """Relative paths, and experiments in files there, are as one expects."""
  # `bazel run` starts programs elsewhere, and tells here from where.
  if directory := os.environ.get('BUILD_WORKING_DIRECTORY'):
    os.chdir(directory)
  sys.path.append(os.getcwd())


def help_text(options: type, usage: str) -> str:
  """What --help prints."""
  lines, group = [usage], None
  for field in _flag_fields(options):
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


def _flag_fields(options: type) -> list[dataclasses.Field[Any]]:
  return [f for f in dataclasses.fields(options) if 'help' in f.metadata]


def _words_field(options: type) -> dataclasses.Field[Any] | None:
  named = (f for f in dataclasses.fields(options) if 'words' in f.metadata)
  return next(named, None)


def _define(field: dataclasses.Field[Any], values: flags.FlagValues) -> None:
  define = _DEFINE[_kind(field)]
  default = list(field.default) if _repeats(field) else field.default
  define(field.name, default, field.metadata['help'], flag_values=values)


def _value(value: Any) -> Any:
  return tuple(value) if isinstance(value, list) else value


def _kind(field: dataclasses.Field[Any]) -> str:
  return str(field.type).partition(' ')[0].partition(',')[0]


def _repeats(field: dataclasses.Field[Any]) -> bool:
  return _kind(field).startswith('tuple')


def _default_text(field: dataclasses.Field[Any]) -> str:
  if _repeats(field):
    return f' {field.metadata["example"]}'
  if _kind(field) == 'bool' and field.default is not None:
    state = 'on' if field.default else 'off'
    return f'  (--[no]{field.name}; {state})'
  if field.default in (None, ''):
    return ''
  return f'={field.default}'


def _unknown(
  name: str,
  fields: Sequence[dataclasses.Field[Any]],
  refused: Mapping[str, str],
) -> str:
  if reason := refused.get(name) or refused.get(name.removeprefix('no')):
    return f'--{name} is not here: {reason}'
  names = [field.name for field in fields]
  near = difflib.get_close_matches(name.removeprefix('no'), names, n=2)
  hint = f'did you mean --{" or --".join(near)}?' if near else 'see --help'
  return f'there is no flag --{name}; {hint}'
