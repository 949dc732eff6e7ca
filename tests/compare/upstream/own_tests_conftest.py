# SPDX-License-Identifier: Apache-2.0
"""conftest.py of upstream's unit tests; own_tests.py copies it beside them.

Parses absl's flags, and makes our NestedMap the one of Lingvo, so that the
TensorFlow layers of Lingvo in some tests take variables of our layers.
"""

import importlib.abc
import importlib.util
import sys
import types

from absl import flags


class _NestedMapFinder(importlib.abc.MetaPathFinder):
  """Finds our praxis.nested_map as lingvo.core.nested_map."""

  def find_spec(self, fullname, path=None, target=None):
    del path, target
    if fullname != 'lingvo.core.nested_map':
      return None
    source = importlib.util.find_spec('praxis.nested_map').origin
    return importlib.util.spec_from_file_location(
      fullname, source, loader=_SharedModule()
    )


class _SharedModule(importlib.abc.Loader):
  """Gives a module the names of praxis.nested_map."""

  def create_module(self, spec):
    return None

  def exec_module(self, module):
    names = vars(importlib.import_module('praxis.nested_map'))
    module.__dict__.update(
      {k: v for k, v in names.items() if not k.startswith('__')}
    )


class _MissingOps(types.ModuleType):
  """Stands for Lingvo's compiled operations, which only some systems load.

  Assertions do nothing; other operations raise NotImplementedError.
  """

  def __getattr__(self, name):
    if name.startswith('__'):
      raise AttributeError(name)

    def op(*args, **kwargs):
      if not name.startswith('assert_'):
        raise NotImplementedError(f'compiled operation {name} of Lingvo')
      return importlib.import_module('tensorflow').no_op()

    return op


def pytest_configure(config):
  del config
  operations = 'lingvo.core.ops.gen_x_ops'
  sys.modules[operations] = _MissingOps(operations)
  flags.FLAGS(['own_tests'])
  # Upstream's own py_utils takes the NestedMap of Lingvo.
  if importlib.util.find_spec('praxis.nested_map'):
    sys.meta_path.insert(0, _NestedMapFinder())
