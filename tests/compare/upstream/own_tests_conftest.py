# SPDX-License-Identifier: Apache-2.0
"""conftest.py of upstream's unit tests; own_tests.py copies it beside them.

Parses absl's flags, seeds numpy, and makes our NestedMap the one of Lingvo, so
that the TensorFlow layers of Lingvo in some tests take variables of our layers.
Finds the helpers of upstream's tests that are in a package of their own.
"""

import importlib.abc
import importlib.util
import os
import sys
import types
import zlib

import numpy as np
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


def _upstream_test_helper(name):
  """Returns the helper `name` of upstream's praxis.test_utils.

  The helpers rename variables for layers of Lingvo, which our praxis.test_utils
  does not (docs/paxml_names.md).

  Raises:
    AttributeError: if `name` is not one of these helpers.
  """
  if not name.startswith('replace_jax_'):
    raise AttributeError(
      f"module 'praxis.test_utils' has no attribute {name!r}"
    )
  module = sys.modules.get('upstream_test_utils')
  if module is None:
    path = os.path.join(
      os.environ['PAX_UPSTREAM_SOURCE'], 'praxis/test_utils.py'
    )
    spec = importlib.util.spec_from_file_location('upstream_test_utils', path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
  return getattr(module, name)


# The package with test_util.py, which our packages lack.
_TEST_HELPERS = 'praxis.layers.quantization.tests'


def pytest_configure(config):
  del config
  operations = 'lingvo.core.ops.gen_x_ops'
  sys.modules[operations] = _MissingOps(operations)
  flags.FLAGS(['own_tests'])
  # Upstream's own py_utils takes the NestedMap of Lingvo.
  if importlib.util.find_spec('praxis.nested_map'):
    sys.meta_path.insert(0, _NestedMapFinder())
    test_utils = importlib.import_module('praxis.test_utils')
    test_utils.__getattr__ = _upstream_test_helper
  if not importlib.util.find_spec(_TEST_HELPERS):
    package = types.ModuleType(_TEST_HELPERS)
    path = _TEST_HELPERS.replace('.', '/')
    package.__path__ = [os.path.join(os.environ['PAX_UPSTREAM_SOURCE'], path)]
    sys.modules[_TEST_HELPERS] = package


def pytest_runtest_setup(item):
  # Some tests draw inputs that let them fail.
  np.random.seed(zlib.adler32(item.name.encode()))
