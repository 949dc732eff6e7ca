# SPDX-License-Identifier: Apache-2.0
"""The registry of experiments by name: `module.Class`, or a unique suffix."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import pathlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from praxis import lazy_loader

ExperimentT = TypeVar('ExperimentT', bound=type)

# The experiments that come with Pax: {package: pattern of modules in it}.
_PACKAGES = {
  'pax.tasks': 'params/**/*.py',
  'pax.tasks.test': '*.py',
  'pax.contrib': 'configs.py',
}
_MAX_SUGGESTIONS = 5
# A class with a decorator `register` or `experiment_registry.register`.
_REGISTERED = re.compile(
  r'^@(?:\w+\.)?register\b.*?^class (\w+)', re.DOTALL | re.MULTILINE
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Entry:
  experiment: type
  tags: tuple[str, ...]
  # Spec of the module at registration: a reloaded module has another one.
  module_spec: Any


_entries: dict[str, _Entry] = {}


def register(
  experiment: ExperimentT | None = None,
  *,
  tags: Sequence[str] = (),
  allow_overwrite: bool = False,
) -> Any:
  """Class decorator, with or without arguments, that registers an experiment.

  Args:
    experiment: the class, if the decorator has no arguments.
    tags: tags for `get_registry_tags`.
    allow_overwrite: whether to replace a class of the same name.

  Raises:
    ValueError: the module has registered another class of that name, was not
      reloaded since, and `allow_overwrite` is not set.
  """
  if experiment is None:
    return lambda cls: register(cls, tags=tags, allow_overwrite=allow_overwrite)
  name = canonical_name(experiment)
  spec = getattr(sys.modules.get(experiment.__module__), '__spec__', None)
  previous = _entries.get(name)
  # A notebook cell or a script has no spec, and may run twice.
  reloaded = previous and (spec is None or previous.module_spec is not spec)
  if previous and not (allow_overwrite or reloaded):
    raise ValueError(
      f'experiment {name} is registered already; rename the class or use '
      '@register(allow_overwrite=True)'
    )
  _entries[name] = _Entry(
    experiment=experiment, tags=tuple(tags), module_spec=spec
  )
  return experiment


def canonical_name(experiment: type) -> str:
  """Returns `module.Class`."""
  return f'{experiment.__module__}.{experiment.__name__}'


def pax_name(name: str) -> str:
  """Returns a dotted name with `paxml` as its first part spelt `pax`."""
  top, dot, path = name.partition('.')
  return f'pax{dot}{path}' if top == 'paxml' else name


def get(name: str) -> type | None:
  """Returns the experiment called `name`, or None.

  Imports the module in `name` if needed: `lm_cloud`, `tasks.lm.params.lm_cloud`
  and the same after `paxml.` are modules of `pax`.

  Raises:
    ValueError: several experiments end in `name`.
  """
  name = pax_name(name)
  experiment = _lookup(name)
  if experiment is None:
    for module in _modules_for(name):
      importlib.import_module(module)
      if experiment := _lookup(name):
        break
  return experiment


def get_experiment(name: str) -> type:
  """Returns the experiment called `name`.

  Raises:
    ValueError: there is none, or several; the message has near names.
  """
  experiment = get(name)
  if experiment is None and _is_class(pax_name(name)):
    raise ValueError(
      f'no experiment is called {name!r}, as that class is not registered;'
      ' write @experiment_registry.register above it'
    )
  if experiment is None:
    raise ValueError(f'no experiment is called {name!r}.{_suggestions(name)}')
  return experiment


def get_all() -> dict[str, type]:
  """Returns the experiments registered so far, by canonical name."""
  return {name: entry.experiment for name, entry in _entries.items()}


def get_registry_tags(name: str) -> tuple[str, ...]:
  """Returns the tags that the experiment was registered with."""
  return _entries[canonical_name(get_experiment(name))].tags


def find_names() -> list[str]:
  """Returns the names of the experiments that come with Pax; imports none.

  They are found in the sources, in a hundredth of the time of imports.
  """
  return [
    f'{module}.{name}'
    for module, file in sorted(_experiment_files().items())
    for name in names_in(file)
  ]


def names_in(file: pathlib.Path) -> list[str]:
  """Returns the classes that a Python file registers by the decorator."""
  return _REGISTERED.findall(file.read_text(encoding='utf-8', errors='replace'))


def import_all_experiments() -> None:
  """Imports every experiment module that comes with Pax."""
  for module in sorted(_experiment_files()):
    importlib.import_module(module)


def _lookup(name: str) -> type | None:
  if name in _entries:
    return _entries[name].experiment
  matches = [key for key in _entries if _ends_in(key, name)]
  if len(matches) > 1:
    raise ValueError(
      f'{name!r} may mean any of {", ".join(sorted(matches))}; '
      'give more of the name'
    )
  return _entries[matches[0]].experiment if matches else None


def _ends_in(canonical: str, name: str) -> bool:
  """Whether `name` is a suffix of `canonical`, with or without `params`."""
  short = canonical.replace('.params.', '.')
  return any(key.endswith(f'.{name}') for key in (canonical, short))


def _is_class(name: str) -> bool:
  """Whether one of the imported modules of `name` has a class called so."""
  module, _, cls = name.rpartition('.')
  owners = map(sys.modules.get, _modules_for(name) if module else ())
  return any(isinstance(getattr(owner, cls, None), type) for owner in owners)


def _modules_for(name: str) -> Iterable[str]:
  """Yields the modules that may register `name`, the most likely first."""
  module = name.rpartition('.')[0]
  if module:
    yield from filter(_exists, (f'pax.{module}', module))
  for candidate in sorted(_experiment_files()):
    if not module or _ends_in(candidate, module):
      yield candidate


def _exists(module: str) -> bool:
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError as error:
    if lazy_loader.is_absent(module, error):
      return False
    raise


def _experiment_files() -> dict[str, pathlib.Path]:
  """Returns the files with experiments of Pax, by module.

  A binary may hold some of them only.
  """
  # A namespace package may have several paths, not all of them directories.
  files = {
    '.'.join((package, *file.relative_to(folder).with_suffix('').parts)): file
    for package, pattern in _PACKAGES.items()
    if _exists(package)
    for folder in map(pathlib.Path, importlib.import_module(package).__path__)
    for file in folder.rglob(pattern)
  }
  return {
    name: file for name, file in files.items() if not name.endswith('.__init__')
  }


def _suggestions(name: str) -> str:
  """The end of the message `no experiment is called ...`: near names."""
  import_all_experiments()
  names = [key.removeprefix('pax.') for key in _entries]
  candidates: dict[str, str] = {}
  for full_name in names:
    parts = full_name.lower().split('.')
    # Every suffix that --exp takes, from the class name to the full name.
    for start in range(len(parts)):
      candidates.setdefault('.'.join(parts[start:]), full_name)
  # The class name counts on its own: the module may be misspelt.
  keys = [name.lower(), name.lower().rpartition('.')[2]]
  matches = (
    _close_matches(keys, candidates, cutoff=0.6)
    or [full_name for full_name in names if keys[1] in full_name.lower()]
    or _close_matches(keys, candidates, cutoff=0.4)
  )
  if not matches:
    return ' `pax list_experiments` lists all of them.'
  return f' Did you mean {" or ".join(matches[:_MAX_SUGGESTIONS])}?'


def _close_matches(
  keys: Iterable[str], candidates: Mapping[str, str], cutoff: float
) -> list[str]:
  """The values of near candidates, the nearest to the first key first."""
  return list(
    dict.fromkeys(
      candidates[match]
      for key in keys
      for match in difflib.get_close_matches(
        key, candidates, n=_MAX_SUGGESTIONS, cutoff=cutoff
      )
    )
  )
