# SPDX-License-Identifier: Apache-2.0
# bazel: data=//docs:all_files
# bazel: deps=//tools/wheel:pax_modules
# bazel: deps=//tools/wheel:praxis_modules
"""Every function that docs/training_step.md names exists."""

from __future__ import annotations

import pathlib
import pkgutil
import re

import pytest

_PAGE = pathlib.Path(__file__).absolute().parents[2] / 'docs/training_step.md'
_NAMES = re.findall(r'^\| `([\w.]+)` \|', _PAGE.read_text(), re.M)


def test_the_page_names_functions():
  assert len(_NAMES) > 20


@pytest.mark.parametrize('name', _NAMES)
def test_the_function_exists(name):
  assert callable(pkgutil.resolve_name(name))
