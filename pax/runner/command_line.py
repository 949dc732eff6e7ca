# SPDX-License-Identifier: Apache-2.0
"""A command line as a dataclass: a field per flag, and one for other words."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self, TypeVar

from absl import flags

from praxis import value_domains

OptionsT = TypeVar('OptionsT')

_WIDTH = 78
# In the metadata of a flag: whether its value is a path.
_IS_PATH = 'is_path'
_HELP_FLAGS = ('--help', '-h', '-help', '--helpfull')
_ABSL_TYPES = {'bool': 'bool', 'int': 'integer', 'float': 'float'}
_NUMBER_TYPES = {'int': (int, 'an integer'), 'float': (float, 'a number')}
_NOT_BOOLEAN = re.compile(r'flag --(\w+)=(.*): \(', re.DOTALL)
_NO_VALUE = re.compile(r'Missing value for flag --(\w+)')
# Longest text of a value in a message.
_MAX_SHOWN = 120


class UsageError(ValueError):
  """A command line that is not valid; the message is for the user."""


class HelpRequested(Exception):
  """The command line has --help; the message is the help text."""


def flag(
  default: Any,
  group: str,
  text: str,
  *,
  example: str = 'NAME=VALUE',
  domain: value_domains.Domain | None = None,
  is_path: bool = False,
) -> Any:
  """Returns the dataclass field of a flag.

  Args:
    default: the value without the flag.
    group: heading of the flag in the help text.
    text: help text.
    example: value in the help text of a repeatable flag.
    domain: the valid values, of each occurrence if the flag is repeatable; None
      is all of the type.
    is_path: whether the command line may begin it with ~, which shells replace
      only at the start of a word, not in --job_log_dir=~/job.
  """
  metadata: dict[str, Any] = {'group': group, 'help': text, 'example': example}
  metadata[_IS_PATH] = is_path
  if domain is not None:
    metadata[value_domains.KEY] = domain
  return dataclasses.field(default=default, metadata=metadata)


class CheckedOptions:
  """Base of dataclasses of flags: checks the domains of their values."""

  def __post_init__(self) -> None:
    for field, _ in value_domains.domains_of(type(self)):
      value = getattr(self, field.name)
      for item in value if _is_repeatable(field) else (value,):
        if not value_domains.is_valid(field, item):
          raise UsageError(_invalid_value(field, '', item))

  def expand_files(self) -> Self:
    """Returns the options with the content of files that flags name."""
    return self


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
  ignored: Collection[str] = (),
) -> OptionsT:
  """Parses a command line, whose first word is the program.

  Args:
    options: the dataclass to return.
    argv: the command line.
    usage: first part of the help text.
    unsupported: reasons why flags of paxml are not supported, by name.
    ignored: names of boolean flags of paxml that have no effect.

  Raises:
    UsageError: an unknown flag, a value of the wrong type, or a word that
      is no flag where `options` has no field for words.
    HelpRequested: --help is among the words.
  """
  if any(word.partition('=')[0] in _HELP_FLAGS for word in argv):
    raise HelpRequested(help_text(options, usage))
  fields = flag_fields(options)
  values = flags.FlagValues()
  for field in fields:
    _define(field, values)
  for name in ignored:
    flags.DEFINE_boolean(name, None, 'Ignored.', flag_values=values)
  try:
    other_words = values(list(argv))[1:]
  except flags.UnrecognizedFlagError as e:
    message = _unknown_flag(e.flagname, fields, unsupported or {})
    raise UsageError(message) from e
  except (flags.Error, ValueError) as e:
    raise UsageError(_flags_error(str(e))) from e
  arguments = {f.name: _value(f, values[f.name].value) for f in fields}
  if words_field := _words_field(options):
    arguments[words_field.name] = tuple(other_words)
  elif other_words:
    raise UsageError(_no_flag(other_words[0]))
  parsed = options(**arguments)
  if isinstance(parsed, CheckedOptions):
    return parsed.expand_files()
  return parsed


def define_flags(
  options: type, names: Collection[str], flag_values: flags.FlagValues
) -> None:
  """Defines flags of absl with the types and defaults of the fields.

  Args:
    options: the dataclass of the fields.
    names: the fields to define.
    flag_values: receives the flags; one that it has is left as it is.
  """
  for field in flag_fields(options):
    if field.name not in names or field.name in flag_values:
      continue
    kind = _type_name(field)
    prefix = 'DEFINE_multi_' if _is_repeatable(field) else 'DEFINE_'
    define = getattr(flags, prefix + _ABSL_TYPES.get(kind, 'string'))
    default = None if _is_repeatable(field) else field.default
    define(field.name, default, field.metadata['help'], flag_values=flag_values)


def from_flags(
  options: type[OptionsT], flag_values: flags.FlagValues, **changes: Any
) -> OptionsT:
  """Returns options with the values of flags of absl.

  Args:
    options: the dataclass to return.
    flag_values: the flags; a field without a flag has its default.
    **changes: values of fields in place of those of their flags.

  Raises:
    UsageError: a value is not valid.
  """
  values = {
    field.name: _value(field, flag_values[field.name].value)
    for field in flag_fields(options)
    if field.name in flag_values
  }
  return options(**(values | changes))


def words_of(options: Any) -> list[str]:
  """Returns the flags that `parse` reads these options from; no defaults."""
  flag_words = []
  for field in flag_fields(type(options)):
    value = getattr(options, field.name)
    if value != field.default:
      values = value if _is_repeatable(field) else (value,)
      flag_words += [f'--{field.name}={item}' for item in values]
  return flag_words


def flag_fields(options: type) -> list[dataclasses.Field[Any]]:
  """Returns the fields that are flags."""
  return [f for f in dataclasses.fields(options) if 'help' in f.metadata]


def help_text(options: type, usage: str) -> str:
  """Returns the text of --help."""
  lines, group = [usage], None
  for field in flag_fields(options):
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


def _words_field(options: type) -> dataclasses.Field[Any] | None:
  fields = (f for f in dataclasses.fields(options) if 'words' in f.metadata)
  return next(fields, None)


def _define(field: dataclasses.Field[Any], values: flags.FlagValues) -> None:
  """Defines a flag of absl; numbers are texts, which `_value` parses."""
  define: Callable[..., Any] = flags.DEFINE_string
  if _is_repeatable(field):
    define = flags.DEFINE_multi_string
  elif _type_name(field) == 'bool':
    define = flags.DEFINE_boolean
  define(field.name, None, field.metadata['help'], flag_values=values)


def _value(field: dataclasses.Field[Any], value: Any) -> Any:
  """The value of a flag from its text or texts; None is the default."""
  if value is None:
    return field.default
  if isinstance(value, list):
    return tuple(_number(field, text) for text in value)
  if field.metadata[_IS_PATH]:
    return os.path.expanduser(value)
  return _number(field, value)


def _number(field: dataclasses.Field[Any], text: Any) -> Any:
  if _type_name(field) not in _NUMBER_TYPES:
    return text
  parse_number, kind = _NUMBER_TYPES[_type_name(field)]
  try:
    return parse_number(text)
  except ValueError:
    raise UsageError(_invalid_value(field, kind, text)) from None


def _invalid_value(field: dataclasses.Field[Any], kind: str, value: Any) -> str:
  """The message for a value that is not in the domain, or not of the type."""
  domain = field.metadata.get(value_domains.KEY)
  example = domain and domain.example(value)
  if example is not None and field.default not in (None, ()):
    example = field.default
  hint = '' if example is None else f'; e.g. --{field.name}={example}'
  wanted = domain.text if domain else kind
  return f'--{field.name} must be {wanted}, got {shown(value)}{hint}'


def shown(value: Any) -> str:
  """Returns a value for a message: quoted if a text, on one line, not long."""
  text = repr(value)
  if len(text) > _MAX_SHOWN:
    text = f'{text[:_MAX_SHOWN]}... ({len(text)} characters)'
  return text


def _no_flag(word: str) -> str:
  hint = 'see --help'
  if not word.startswith('-'):
    hint = f'flags begin with --, as in --exp={word}'
  return f'{shown(word)} belongs to no flag; {hint}'


def _flags_error(text: str) -> str:
  """The message for an error of absl: only booleans have values to check."""
  if match := _NO_VALUE.fullmatch(text):
    return f'--{match[1]} needs a value, as in --{match[1]}=VALUE'
  if match := _NOT_BOOLEAN.match(text):
    name, value = match.groups()
    return f'--{name} must be true or false, got {shown(value)}'
  return text.removeprefix('ERROR:: ').replace('\n', ' ')


def _type_name(field: dataclasses.Field[Any]) -> str:
  """The type of a value, of each occurrence if the flag is repeatable."""
  name = str(field.type).partition(' ')[0].partition(',')[0]
  return name.removeprefix('tuple[')


def _is_repeatable(field: dataclasses.Field[Any]) -> bool:
  return str(field.type).startswith('tuple')


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
  return f'there is no flag {shown(f"--{name}")[1:-1]}; {hint}'
