# SPDX-License-Identifier: Apache-2.0
"""The experiments by name: `module.Class`, or any part of it that is unique."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

ExperimentT = TypeVar('ExperimentT', bound=type)

# Where the experiments that come with Pax live: package, and modules in it.
_HOMES = {
  'pax.tasks': 'params/**/*.py',
  'pax.tasks.test': '*.py',
  'pax.contrib': 'configs.py',
}
_MAX_NEAR_NAMES = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Entry:
  experiment: type
  tags: tuple[str, ...]
  # Spec of the module at the time: a reloaded module has a new one.
  module_spec: Any


_entries: dict[str, _Entry] = {}


def register(
  experiment: ExperimentT | None = None,
  *,
  tags: Sequence[str] = (),
  allow_overwrite: bool = False,
) -> Any:
  """Class decorator, with or without arguments, that names an experiment.

  Raises:
    ValueError: the module already registered another class of that name, and
      neither was it reloaded nor is `allow_overwrite` set.
  """
  if experiment is None:
    return lambda cls: register(cls, tags=tags, allow_overwrite=allow_overwrite)
  name = canonical_name(experiment)
  spec = getattr(sys.modules.get(experiment.__module__), '__spec__', None)
  known = _entries.get(name)
  # A notebook cell or a script has no spec, and may run twice.
  reloaded = known and (spec is None or known.module_spec is not spec)
  if known and not (allow_overwrite or reloaded):
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
  return f'{experiment.__module__}.{experiment.__qualname__}'


def pax_name(name: str) -> str:
  """Returns a dotted name with `paxml` as its first part spelt `pax`."""
  top, dot, path = name.partition('.')
  return f'pax{dot}{path}' if top == 'paxml' else name


def get(name: str) -> type | None:
  """Returns the experiment called `name`, or None.

  The module in `name` is imported if that is needed: `lm_cloud`,
  `tasks.lm.params.lm_cloud` and the same after `paxml.` mean the one in `pax`.

  Raises:
    ValueError: several experiments end in `name`.
  """
  name = pax_name(name)
  found = _lookup(name)
  if found is None:
    for module in _modules_for(name):
      importlib.import_module(module)
      if found := _lookup(name):
        break
  return found


def get_experiment(name: str) -> type:
  """Returns the experiment called `name`.

  Raises:
    ValueError: there is none, or several; the message lists near names.
  """
  found = get(name)
  if found is None:
    raise ValueError(f'no experiment is called {name!r}.{_hint(name)}')
  return found


def get_all() -> dict[str, type]:
  """Returns the experiments registered so far by canonical name."""
  return {name: entry.experiment for name, entry in _entries.items()}


def get_registry_tags(name: str) -> tuple[str, ...]:
  """Returns the tags that the experiment was registered with."""
  return _entries[canonical_name(get_experiment(name))].tags


def import_all_experiments() -> None:
  """Imports every experiment module that comes with Pax."""
  for module in _experiment_modules():
    importlib.import_module(module)


def _lookup(name: str) -> type | None:
  if name in _entries:
    return _entries[name].experiment
  matches = [key for key in _entries if _ends_in(key, name)]
  if len(matches) > 1:
    raise ValueError(
      f'{name!r} may mean any of {", ".join(sorted(matches))}; '
      'write more of the name'
    )
  return _entries[matches[0]].experiment if matches else None


def _ends_in(canonical: str, name: str) -> bool:
  """Whether `name` is a suffix of `canonical`, with or without `params`."""
  short = canonical.replace('.params.', '.')
  return any(key.endswith(f'.{name}') for key in (canonical, short))


def _modules_for(name: str) -> Iterable[str]:
  """Yields the modules that may register `name`, the likeliest first."""
  module = name.rpartition('.')[0]
  if module:
    yield from filter(_exists, (f'pax.{module}', module))
  for known in _experiment_modules():
    if not module or _ends_in(known, module):
      yield known


def _exists(module: str) -> bool:
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError as error:
    # A parent package is missing; anything else missing is a real fault.
    if module == error.name or module.startswith(f'{error.name}.'):
      return False
    raise


def _experiment_modules() -> list[str]:
  """Returns the names of all modules that have experiments of Pax's.

  A binary has not all of them: what it does not hold is left out.
  """
  # A package without __init__.py has several paths, some only for importers.
  found = {
    '.'.join((home, *file.relative_to(folder).with_suffix('').parts))
    for home, pattern in _HOMES.items()
    if _exists(home)
    for folder in map(pathlib.Path, importlib.import_module(home).__path__)
    for file in folder.rglob(pattern)
  }
  return sorted(name for name in found if not name.endswith('.__init__'))


def _hint(name: str) -> str:
  """Returns the sentence that follows `no experiment is called ...`."""
  import_all_experiments()
  by_class: dict[str, str] = {}
  for key in _entries:
    by_class[key.rpartition('.')[2].lower()] = key.removeprefix('pax.')
  wanted = name.rpartition('.')[2].lower()
  near = difflib.get_close_matches(wanted, by_class, n=_MAX_NEAR_NAMES)
  if not near:
    return ' Give --exp as module.Class, e.g. tasks.lm.params.lm_cloud.<Class>'
  return ' Did you mean ' + ' or '.join(by_class[key] for key in near) + '?'
