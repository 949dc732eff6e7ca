# SPDX-License-Identifier: Apache-2.0
"""Experiment files: `--exp=FILE.yaml` or `--exp=FILE.toml`.

A file has the key `exp`, the name of an experiment, and the table `set`, whose
entries are those of --set: constants, and fields by their path. Nested tables
are steps of a path. As --exp imports modules and --set calls functions by name,
files that other users can write are refused.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from pax.files import trusted_files
from pax.runner import command_line

_SUFFIXES = ('.toml', '.yaml', '.yml')
_KEYS = {'exp', 'set'}


class _ExperimentFlags(Protocol):
  """A dataclass with the flags that choose an experiment."""

  __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

  @property
  def exp(self) -> str | None: ...

  @property
  def set(self) -> tuple[str, ...]: ...

  @property
  def trust_foreign_files(self) -> bool: ...


_Flags = TypeVar('_Flags', bound=_ExperimentFlags)


def expand(options: _Flags) -> _Flags:
  """Returns flags with the content of an experiment file instead of its name.

  The --set of the command line follow those of the file, so they win.

  Raises:
    UsageError: the file cannot be read, has other keys, or others can write it.
  """
  if not options.exp or not options.exp.endswith(_SUFFIXES):
    return options
  path = pathlib.Path(options.exp)
  content = _load(path, options.trust_foreign_files)
  if not isinstance(content, Mapping) or not isinstance(
    content.get('exp'), str
  ):
    raise command_line.UsageError(
      f'--exp={path}: the file must have the key exp with the name of an'
      ' experiment, and may have the table set'
    )
  if unknown := content.keys() - _KEYS:
    raise command_line.UsageError(
      f'--exp={path}: the keys must be exp and set, got also'
      f' {", ".join(sorted(map(str, unknown)))}; move constants and fields to'
      ' set'
    )
  settings = content.get('set') or {}
  if not isinstance(settings, Mapping):
    raise command_line.UsageError(
      f'--exp={path}: set must be a table, got {settings!r}'
    )
  return dataclasses.replace(
    options, exp=content['exp'], set=(*_settings(settings), *options.set)
  )


def _load(path: pathlib.Path, trust_foreign_files: bool) -> Any:
  try:
    text = trusted_files.read_bytes(
      path, trust_foreign_files=trust_foreign_files
    ).decode()
  except (OSError, UnicodeDecodeError) as e:
    raise command_line.UsageError(
      f'--exp={path}: cannot read the file: {e}'
    ) from e
  except trusted_files.UntrustedFileError as e:
    raise command_line.UsageError(f'--exp={path}: {e}') from e
  parse = _parse_toml if path.suffix == '.toml' else _parse_yaml
  try:
    return parse(text)
  except ValueError as e:
    raise command_line.UsageError(f'--exp={path}: {e}; correct the file') from e


def _parse_toml(text: str) -> Any:
  import tomllib  # Few runs need it, and every command line is parsed.

  try:
    return tomllib.loads(text)
  except tomllib.TOMLDecodeError as e:
    raise ValueError(f'the file must be TOML, got an error: {e}') from e


def _parse_yaml(text: str) -> Any:
  import yaml  # As above.

  class Loader(yaml.SafeLoader):
    """Rejects repeated keys, of which PyYAML takes the last."""

    def construct_mapping(
      self, node: Any, deep: bool = False
    ) -> dict[Any, Any]:
      names = [key.value for key, _ in node.value]
      for i, name in enumerate(names):
        if name in names[:i]:
          line = node.value[i][0].start_mark.line + 1
          raise ValueError(f'line {line} repeats the key {name}')
      return super().construct_mapping(node, deep)

  try:
    return yaml.load(text, Loader)
  except yaml.MarkedYAMLError as e:
    mark = e.problem_mark or e.context_mark
    place = (
      f' in line {mark.line + 1}, column {mark.column + 1}' if mark else ''
    )
    raise ValueError(
      f'the file must be YAML, got an error{place}: {e.problem}'
    ) from e
  except yaml.reader.ReaderError as e:
    raise ValueError(
      f'the file must be YAML, got an error at character {e.position + 1}:'
      f' {e.reason}'
    ) from e


def _settings(table: Mapping[str, Any], prefix: str = '') -> Iterator[str]:
  """Yields the entries of a table as NAME=VALUE."""
  for key, value in table.items():
    name = f'{prefix}{key}'
    if isinstance(value, Mapping) and not name.isupper():
      yield from _settings(value, f'{name}.')
    else:
      yield f'{name}={value if isinstance(value, str) else repr(value)}'
