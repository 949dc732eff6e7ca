# SPDX-License-Identifier: Apache-2.0
"""`--fdl`: an experiment made by Fiddle, from functions, files and changes.

A configuration names functions that are called with its values, so its file or
text is trusted as code is. Commands apply in the order of the command line:

    config:my_module.experiment(layers=4)   a function that returns a Config,
                                            or a class of experiments
    config_file:job/config.json             a Config in JSON
    config_str:eJx...                       JSON, compressed, in base64
    set:task.train.num_train_steps=10       one field, or a constant of a class
    fiddler:my_module.make_small()          a function that changes the Config
    tag:ActivationDType=jnp.bfloat16        all fields with this tag
"""

from __future__ import annotations

import ast
import base64
import binascii
import functools
import pathlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import fiddle as fdl
from fiddle import tagging

from pax import base_experiment
from pax.files import trusted_files
from pax.parameterized_experiment import ParameterizedExperiment
from pax.runner import artifacts, overrides, value_parsing
from pax.runner.command_line import UsageError
from praxis import lazy_loader, pax_fiddle

Config = pax_fiddle.Config


def experiment(
  commands: Sequence[str], *, trust_foreign_files: bool = False
) -> base_experiment.BaseExperiment:
  """Returns the experiment that the commands make.

  Args:
    commands: as on the command line, without `--fdl=`.
    trust_foreign_files: whether to read files that other users can write.

  Raises:
    UsageError: an unknown command, or not exactly one Config.
    UntrustedFileError: other users can write a file.
    ValueError: a function, a file or a field does not exist.
  """
  functions = _COMMANDS | {
    'config_file': functools.partial(
      _config_file, trust_foreign_files=trust_foreign_files
    )
  }
  config = None
  for command in commands:
    kind, colon, value = command.partition(':')
    if not colon or kind not in functions:
      raise UsageError(
        f'--fdl={command} must begin with one of'
        f' {", ".join(f"{name}:" for name in functions)}'
      )
    if kind.startswith('config') != (config is None):
      raise UsageError(
        '--fdl wants one config:, config_file: or config_str:, before all'
        f' set: and fiddler:; got {" ".join(commands)}'
      )
    config = functions[kind](value, config)
  return _build(config)


def _build(config: Any) -> base_experiment.BaseExperiment:
  if isinstance(config, fdl.Buildable):
    if hasattr(config, 'train_input'):
      config = _from_run_config(config)
    config = pax_fiddle.build(config)
  if not isinstance(config, base_experiment.BaseExperiment):
    raise ValueError(
      f'--fdl must make the Config of an experiment, got {config!r}; try a'
      ' Config of pax.parameterized_experiment.ParameterizedExperiment'
    )
  return config


def _from_run_config(tree: Any) -> Config[ParameterizedExperiment]:
  """The experiment of the `config.json` of a run."""
  return Config(
    ParameterizedExperiment,
    task=tree.task,
    train_datasets=[tree.train_input] if tree.train_input else [],
    eval_datasets=tree.eval_inputs or [],
    decode_datasets=tree.decode_inputs or [],
  )


def _config(text: str, unused: Any) -> Any:
  function, args, kwargs = _parse_call(text)
  return function(*args, **kwargs)


def _config_file(
  path: str, unused: Any, *, trust_foreign_files: bool = False
) -> Any:
  file = pathlib.Path(path).expanduser()
  if not file.exists():
    raise ValueError(f'--fdl=config_file:{path}: no such file')
  try:
    content = trusted_files.read_bytes(
      file, trust_foreign_files=trust_foreign_files
    )
  except trusted_files.UntrustedFileError as e:
    raise trusted_files.UntrustedFileError(f'--fdl=config_file: {e}') from None
  return artifacts.load_config(content.decode())


def _config_str(text: str, unused: Any) -> Any:
  try:
    return artifacts.load_config(
      zlib.decompress(base64.urlsafe_b64decode(text)).decode()
    )
  except (binascii.Error, zlib.error) as e:
    raise ValueError(f'--fdl=config_str: cannot be unpacked: {e}') from e


def _set(text: str, config: Any) -> Any:
  [change] = overrides.parse([text])
  if not isinstance(config, base_experiment.BaseExperiment):
    overrides.set_fields(config, [change])
  elif change.is_constant:
    # The experiment keeps its attributes.
    config.__class__ = overrides.set_constants(type(config), [change])
  else:
    raise change.error(
      f'{type(config).__name__} makes its configuration later; set its'
      ' constants here, and fields of the configuration with --set'
    )
  return config


def _tag(text: str, config: Any) -> Any:
  """Sets the fields with a tag, named `Class` or `module.Class`."""
  name, equals, value = text.partition('=')
  tags = tagging.list_tags(config)
  matches = [tag for tag in tags if _has_name(tag, name)]
  if not equals or len(matches) != 1:
    names = ', '.join(sorted(tag.__name__ for tag in tags))
    raise ValueError(f'--fdl=tag:{text} wants NAME=VALUE; tags are {names}')
  pax_fiddle.set_tagged(
    config, tag=matches[0], value=value_parsing.parse_value(value, None)
  )
  return config


def _has_name(tag: Any, name: str) -> bool:
  return name in (tag.__name__, f'{tag.__module__}.{tag.__qualname__}')


def _fiddler(text: str, config: Any) -> Any:
  function, args, kwargs = _parse_call(text)
  changed = function(config, *args, **kwargs)
  return config if changed is None else changed


_COMMANDS: dict[str, Callable[[str, Any], Any]] = {
  'config': _config,
  'config_file': _config_file,
  'config_str': _config_str,
  'set': _set,
  'fiddler': _fiddler,
  'tag': _tag,
}


def _parse_call(
  text: str,
) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
  """The function and the literals of `module.function(1, name='x')`."""
  try:
    node = ast.parse(text, mode='eval').body
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    args = [ast.literal_eval(arg) for arg in call.args]
    kwargs = dict(map(_literal_argument, call.keywords))
  except (SyntaxError, ValueError) as e:
    raise UsageError(
      f'--fdl: {text!r} must be module.function, or that with literals in'
      f' parentheses: {e}'
    ) from e
  return _import_function(ast.unparse(call.func)), args, kwargs


def _literal_argument(keyword: ast.keyword) -> tuple[str, Any]:
  if keyword.arg is None:
    raise ValueError('** has no literals by name; write name=value')
  return keyword.arg, ast.literal_eval(keyword.value)


def _import_function(name: str) -> Callable[..., Any]:
  module, _, attribute = name.rpartition('.')
  if not module:
    raise UsageError(f'--fdl: {name!r} must be module.function')
  owner = lazy_loader.import_if_exists(module)
  if owner is None:
    raise ValueError(
      f'--fdl: there is no {name}, as no module is called {module!r}; is its'
      ' folder in PYTHONPATH?'
    )
  try:
    return getattr(owner, attribute)
  except AttributeError as e:
    raise ValueError(f'--fdl: there is no {name}: {e}') from e
