# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""`praxis.layers` has every layer by name, and imports none before its use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from praxis import layers


@pytest.mark.parametrize('name', layers.__all__)
def test_name_resolves(name):
  assert getattr(layers, name).__name__ == name
  assert name in dir(layers)


def test_unknown_names_are_attribute_errors():
  with pytest.raises(AttributeError, match="no attribute 'Nope'"):
    layers.Nope  # noqa: B018


def test_importing_the_package_imports_no_layer():
  code = (
    'import sys, praxis.layers; '
    'print([m for m in sys.modules if m.startswith("praxis.layers.")])'
  )
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert done.stdout.strip() == '[]'
