# SPDX-License-Identifier: Apache-2.0
"""Pax trains large models on JAX. Import its modules by their full path."""

# bazel: data=py.typed
from __future__ import annotations

import glob
import importlib.util
import os
import pkgutil

__version__ = '0.1.0'

# Folders `pax` on the Python path that have no __init__.py may add modules,
# such as experiments of a project in `pax/tasks/lm/params`.
__path__ += [
  folder
  for folder in pkgutil.extend_path(list[str](), __name__)
  if not os.path.exists(os.path.join(folder, '__init__.py'))
]


def require_own_packages(root: str) -> None:
  """Checks that `praxis` and `paxml` are those of this distribution.

  The distributions praxis and paxml of Google have packages of the same names:
  installed together, they overwrite or hide each other's files.

  Args:
    root: the folder of this package's folder.

  Raises:
    ImportError: another distribution provides one of the two packages.
  """
  for name in ('praxis', 'paxml'):
    pattern = os.path.join(glob.escape(root), f'{name}-*.dist-info')
    others = glob.glob(pattern)
    spec = importlib.util.find_spec(name)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if folders and os.path.join(root, name) not in folders:
      others.append(folders[0])
    if others:
      raise ImportError(
        f'pax-jax contains the package {name}, but {others[0]} is of another'
        f' distribution: run `pip uninstall praxis paxml`, then `pip install'
        ' --force-reinstall --no-deps pax-jax`',
        name=name,
      )


require_own_packages(os.path.dirname(os.path.dirname(__file__)))
