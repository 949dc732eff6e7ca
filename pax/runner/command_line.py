# SPDX-License-Identifier: Apache-2.0
"""A command line as a dataclass: a field per flag, and one for other words."""

from __future__ import annotations

import dataclasses
import difflib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from absl import flags

OptionsT = TypeVar('OptionsT')

_WIDTH = 78
_HELP_FLAGS = ('--help', '-h', '-help', '--helpfull')
_DEFINE_BY_TYPE = {
  'str': flags.DEFINE_string,
  'bool': flags.DEFINE_boolean,
  'int': flags.DEFINE_integer,
  'float': flags.DEFINE_float,
  'tuple[str': flags.DEFINE_multi_string,
  'tuple[int': flags.DEFINE_multi_integer,
}


class UsageError(ValueError):
  """A command line that is not valid; the message is for the user."""


class HelpRequested(Exception):
  """The command line has --help; the message is the help text."""


def flag(
  default: Any, group: str, text: str, *, example: str = 'NAME=VALUE'
) -> Any:
  """Returns the dataclass field of a flag.

  Args:
    default: the value without the flag.
    group: heading of the flag in the help text.
    text: help text.
    example: value in the help text of a repeatable flag.
  """
  return dataclasses.field(
    default=default,
    metadata={'group': group, 'help': text, 'example': example},
  )


def words(text: str) -> Any:
  """Returns the dataclass field of the words that are no flags.

  `text` names them in the usage line.
  """
  return dataclasses.field(default=(), metadata={'words': text})


def parse(
  options: type[OptionsT],
  argv: Sequence[str],
  usage: str,
  unsupported: Mapping[str, str] | None = None,
) -> OptionsT:
  """Parses a command line, whose first word is the program.

  Args:
    options: the dataclass to return.
    argv: the command line.
    usage: first part of the help text.
    unsupported: reasons why flags of paxml are not supported, by name.

  Raises:
    UsageError: an unknown flag, a value of the wrong type, or a word that
      is no flag where `options` has no field for words.
    HelpRequested: --help is among the words.
  """
  if any(word in _HELP_FLAGS for word in argv):
    raise HelpRequested(help_text(options, usage))
  fields = _flag_fields(options)
  values = flags.FlagValues()
  for field in fields:
    _define(field, values)
  try:
    other_words = values(list(argv))[1:]
  except flags.UnrecognizedFlagError as e:
    message = _unknown_flag(e.flagname, fields, unsupported or {})
    raise UsageError(message) from e
  except flags.Error as e:
    raise UsageError(str(e)) from e
  arguments = {f.name: _immutable(values[f.name].value) for f in fields}
  if words_field := _words_field(options):
    arguments[words_field.name] = tuple(other_words)
  elif other_words:
    raise UsageError(
      f'{other_words[0]!r} belongs to no flag; flags begin with --, as in'
      f' --exp={other_words[0]}'
    )
  return options(**arguments)


def words_of(options: Any) -> list[str]:
  """Returns the flags that `parse` reads these options from; no defaults."""
  flag_words = []
  for field in _flag_fields(type(options)):
    value = getattr(options, field.name)
    if value != field.default:
      values = value if _is_repeatable(field) else (value,)
      flag_words += [f'--{field.name}={item}' for item in values]
  return flag_words


def help_text(options: type, usage: str) -> str:
  """Returns the text of --help."""
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
  fields = (f for f in dataclasses.fields(options) if 'words' in f.metadata)
  return next(fields, None)


def _define(field: dataclasses.Field[Any], values: flags.FlagValues) -> None:
  define = _DEFINE_BY_TYPE[_type_name(field)]
  default = list(field.default) if _is_repeatable(field) else field.default
  define(field.name, default, field.metadata['help'], flag_values=values)


def _immutable(value: Any) -> Any:
  return tuple(value) if isinstance(value, list) else value


def _type_name(field: dataclasses.Field[Any]) -> str:
  """The type without `| None`, a tuple's up to its first comma."""
  return str(field.type).partition(' ')[0].partition(',')[0]


def _is_repeatable(field: dataclasses.Field[Any]) -> bool:
  return _type_name(field).startswith('tuple')


def _default_text(field: dataclasses.Field[Any]) -> str:
  if _is_repeatable(field):
    return f' {field.metadata["example"]}'
  if _type_name(field) == 'bool' and field.default is not None:
    state = 'on' if field.default else 'off'
    return f'  (--[no]{field.name}; {state})'
  if field.default in (None, ''):
    return ''
  return f'={field.default}'


def _unknown_flag(
  name: str,
  fields: Sequence[dataclasses.Field[Any]],
  unsupported: Mapping[str, str],
) -> str:
  positive = name.removeprefix('no')
  if reason := unsupported.get(name) or unsupported.get(positive):
    return f'--{name} is not supported: {reason}'
  names = [field.name for field in fields]
  matches = difflib.get_close_matches(positive, names, n=2)
  hint = (
    f'did you mean --{" or --".join(matches)}?' if matches else 'see --help'
  )
  return f'there is no flag --{name}; {hint}'
