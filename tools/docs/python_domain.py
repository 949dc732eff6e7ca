# SPDX-License-Identifier: Apache-2.0
"""A Sphinx extension that resolves names in annotations faster.

Sphinx compares every name that an annotation contains with the names of all
documented objects. Most are names of other packages (`int`, `jax.Array`).
"""

# bazel: deps=@pypi_docs//all
from __future__ import annotations

import functools
from typing import Any

from sphinx import application
from sphinx.domains import python


class PythonDomain(python.PythonDomain):
  """Sphinx's domain, which looks only for names that an object has."""

  @functools.cached_property
  def _last_names(self) -> set[str]:
    return {name.rpartition('.')[2] for name in self.objects}

  def find_obj(
    self, env: Any, modname: str, classname: str, name: str, *args: Any
  ) -> list[tuple[str, python.ObjectEntry]]:
    last_name = name.removesuffix('()').rpartition('.')[2]
    if last_name not in self._last_names:
      return []
    return super().find_obj(env, modname, classname, name, *args)


def setup(app: application.Sphinx) -> dict[str, bool]:
  """Replaces the domain of Python; Sphinx calls this.

  Returns:
    that processes may read and write pages in parallel.
  """
  app.add_domain(PythonDomain, override=True)
  return {'parallel_read_safe': True, 'parallel_write_safe': True}
