# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Names of Lingvo, which is not installed."""

from __future__ import annotations

import importlib.util

import pytest

from praxis import base_hyperparams, lingvo_lib, py_utils, pytypes

pytestmark = pytest.mark.skipif(
  importlib.util.find_spec('lingvo') is not None, reason='Lingvo is installed'
)


def test_classes_serve_in_annotations_and_isinstance():
  assert py_utils.HParams is pytypes.HParamsT is base_hyperparams.HParams
  assert issubclass(lingvo_lib.InstantiableParams, lingvo_lib.HParams)
  assert not isinstance(3, pytypes.InstantiableParams)


@pytest.mark.parametrize(
  'call',
  [
    lambda: lingvo_lib.HParams(),
    lambda: py_utils.InstantiableParams(int),
    lambda: py_utils.current_cluster(),
    lambda: py_utils.infeed_context_scope(0, 1),
  ],
)
def test_use_names_the_package(call):
  with pytest.raises(ImportError, match='pip install --no-deps lingvo'):
    call()


def test_a_submodule_is_imported_at_its_first_use():
  with pytest.raises(ImportError, match='lingvo'):
    _ = lingvo_lib.datasource.SimpleDataSource
