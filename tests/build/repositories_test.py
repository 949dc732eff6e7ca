# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: data=//:all_files
"""WORKSPACE and MODULE.bazel declare the same repositories and toolchains."""

from __future__ import annotations

import ast
import pathlib

import pax


def _calls(path: str) -> list[tuple[str, list, dict]]:
  """Returns (function, arguments, keywords) of the calls with literals."""
  tree = ast.parse(pathlib.Path(path).read_text())
  found = []
  for node in ast.walk(tree):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
      args = [a.value for a in node.args if isinstance(a, ast.Constant)]
      keywords = {
        k.arg: k.value.value
        for k in node.keywords
        if isinstance(k.value, ast.Constant)
      }
      found.append((node.func.id, args, keywords))
  return found


def test_modules_use_all_repositories():
  declared = [
    keywords['name']
    for function, _, keywords in _calls('third_party/repositories.bzl')
    if 'name' in keywords and function != 'module_extension'
  ]
  used = [a for f, a, _ in _calls('MODULE.bazel') if f == 'use_repo']
  assert sorted(declared) == sorted(used[-1])


def test_toolchains_are_equal():
  workspace, module = (
    [args for function, args, _ in _calls(path) if function == name]
    for path in ('WORKSPACE', 'MODULE.bazel')
    for name in ['register_toolchains']
  )
  assert workspace == module != []


def test_the_module_has_the_version_of_the_package():
  (module,) = (k for f, _, k in _calls('MODULE.bazel') if f == 'module')
  assert module == {'name': 'pax', 'version': pax.__version__}
