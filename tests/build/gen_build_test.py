# SPDX-License-Identifier: Apache-2.0
"""Tests of the BUILD generator."""

# bazel: data=//:all_files
from __future__ import annotations

import pathlib

import pytest

from tools import build_text, gen_build, pyimports

_LOCK = 'third_party/pip/requirements_lock.txt'


def _tree(root: pathlib.Path, files: dict[str, str]) -> pathlib.Path:
  for name, text in {_LOCK: 'jax==1 \\\n', **files}.items():
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  return root


def _build(root: pathlib.Path, package: str) -> str:
  texts = gen_build.generate(root, pyimports.modules(root))
  return texts[root / package / 'BUILD']


def test_build_files_of_the_tree_are_up_to_date():
  assert gen_build.main(['--check']) == 0


def test_imports_become_deps(tmp_path):
  files = {
    'praxis/py_utils.py': 'import jax\n',
    'praxis/base_input.py': 'def f():\n  from praxis import py_utils\n',
  }
  text = _build(_tree(tmp_path, files), 'praxis')
  assert 'deps = ["@pypi//jax"]' in text
  assert 'deps = [":py_utils"]' in text
  assert 'visibility = ["//tools/visibility:base"]' in text
  assert 'load("@rules_python//python:py_library.bzl", "py_library")' in text


def test_tests_of_a_folder_share_a_target_by_size(tmp_path):
  files = {
    'praxis/a.py': '',
    'praxis/b.py': '',
    'tests/a_test.py': '# bazel: size=small\nfrom praxis import a\n',
    'tests/b_test.py': '# bazel: size=small\nfrom praxis import b\n',
    'tests/c_test.py': '# bazel: size=small\n# bazel: tags=nightly\n',
    'tests/d_test.py': '# bazel: size=medium\n',
    'tests/e_test.py': '# bazel: size=medium\nfrom praxis import b\n',
    'tests/f_test.py': '# bazel: size=large\n',
    'tests/g_test.py': '# bazel: size=medium\n# bazel: env=A=b\n',
    'tests/h_test.py': '',
  }
  text = _build(_tree(tmp_path, files), 'tests')
  rules = text.split('pytest_test(')[1:]
  names = [rule.split('"')[1] for rule in rules]
  own = ['c_test', 'g_test', 'h_test']
  assert names == [*own, 'large_tests', 'medium_tests', 'small_tests']
  large, medium, small = rules[3:]
  assert 'size = "enormous"' in large and 'shard_count' not in large
  assert '"a_test.py",\n        "b_test.py",' in small
  assert '"//praxis:a",\n        "//praxis:b",' in small
  assert 'size = "medium"' in small
  assert '"d_test.py",\n        "e_test.py",' in medium
  assert 'deps = ["//praxis:b"]' in medium and 'size = "large"' in medium


def test_large_tests_of_a_folder_have_a_shard_for_each_four(tmp_path):
  files = {f'tests/{x}_test.py': '# bazel: size=large\n' for x in 'abcde'}
  (rule,) = _build(_tree(tmp_path, files), 'tests').split('pytest_test(')[1:]
  assert all(f'"{x}_test.py",\n' in rule for x in 'abcde')
  assert 'shard_count = 2' in rule


def test_tests_that_read_the_tree_are_another_target(tmp_path):
  files = {
    'tests/a_test.py': '# bazel: size=small\n# bazel: data=//:all_files\n',
    'tests/b_test.py': '# bazel: data=//:all_files\n',
    'tests/c_test.py': '# bazel: size=small\n',
    'tests/d_test.py': '# bazel: data=//:other\n',
    'tests/e_test.py': '# bazel: size=small\n# bazel: data=//:other\n',
  }
  text = _build(_tree(tmp_path, files), 'tests')
  own, small, tree = text.split('pytest_test(')[1:]
  assert 'name = "d_test"' in own
  assert 'name = "small_tests"' in small and 'data = ["//:other"]' in small
  assert '"c_test.py",\n        "e_test.py",' in small
  assert 'name = "tree_tests"' in tree and 'size = "large"' in tree
  assert '"a_test.py",\n        "b_test.py",' in tree
  assert 'data = ["//:all_files"]' in tree


def test_small_tests_import_each_other(tmp_path):
  files = {
    'tests/a_test.py': '# bazel: size=small\n',
    'tests/b_test.py': '# bazel: size=small\nfrom tests import a_test\n',
  }
  text = _build(_tree(tmp_path, files), 'tests')
  assert '"a_test.py",\n        "b_test.py",' in text
  assert ':a_test' not in text


def test_small_tests_with_tensorflow_are_another_target(tmp_path):
  small = '# bazel: size=small\n'
  files = {
    'tests/a_test.py': small,
    'tests/b_test.py': small + '# bazel: deps=@pypi_seqio//seqio\n',
    'tests/c_test.py': small + '# bazel: deps=@pypi_seqio//lingvo\n',
  }
  text = _build(_tree(tmp_path, files), 'tests')
  seqio, shared = text.split('pytest_test(')[1:3]
  assert 'name = "seqio_tests"' not in shared and 'pypi_seqio' not in shared
  assert '"b_test.py",\n        "c_test.py",' in seqio
  assert 'pypi_seqio//lingvo' in seqio and 'pypi_seqio//seqio' in seqio


def test_a_type_checkers_imports_are_no_deps(tmp_path):
  source = 'if typing.TYPE_CHECKING:\n  import jax\n'
  text = _build(_tree(tmp_path, {'praxis/a.py': source}), 'praxis')
  assert 'deps' not in text


def test_a_lazy_package_depends_on_what_is_right_below_it(tmp_path):
  files = {
    'praxis/layers/__init__.py': 'def __getattr__(name):\n  pass\n',
    'praxis/layers/linears.py': '',
    'praxis/layers/rooms/__init__.py': '',
    'praxis/layers/rooms/deep.py': '',
  }
  text = _build(_tree(tmp_path, files), 'praxis/layers')
  assert ':linears' in text and '//praxis/layers/rooms"' in text
  assert 'deep' not in text


def test_directives_reach_the_test_rule(tmp_path):
  source = '# bazel: size=large\n# bazel: tags=nightly\n# bazel: env=A=b=c\n'
  text = _build(_tree(tmp_path, {'tests/a_test.py': source}), 'tests')
  assert 'load("//tools:pytest.bzl", "pytest_test")' in text
  for part in ('size = "large"', 'tags = ["nightly"]', 'env = {"A": "b=c"}'):
    assert part in text


def test_what_needs_more_than_the_lock_is_left_out(tmp_path):
  source = 'import transformers\n'
  root = _tree(tmp_path, {'tests/compare/a_test.py': source})
  texts = gen_build.generate(root, pyimports.modules(root))
  assert root / 'tests/compare/BUILD' not in texts


def test_a_program_gets_a_binary_and_a_library(tmp_path):
  source = "if __name__ == '__main__':\n  pass\n"
  text = _build(_tree(tmp_path, {'benchmarks/run.py': source}), 'benchmarks')
  assert 'name = "run_lib"' in text
  assert 'py_binary(\n    name = "run"' in text


def test_what_people_wrote_is_kept(tmp_path):
  mine = '# BEGIN BY HAND\nfilegroup(name = "x")\n# END BY HAND\n'
  files = {'praxis/a.py': '', 'praxis/BUILD': f'old\n{mine}old\n'}
  text = _build(_tree(tmp_path, files), 'praxis')
  assert mine in text and 'old' not in text


@pytest.mark.parametrize(
  'files, complaint',
  [
    ({'pax/a.py': 'from pax import b', 'pax/b.py': 'import pax.a'}, 'cycle'),
    (
      {'praxis/layers/a.py': 'import pax.learners', 'pax/learners.py': ''},
      'higher layer',
    ),
    ({'pax/a.py': '# bazel: deps=@pypi_seqio//seqio\n'}, 'TensorFlow'),
    (
      {
        'tests/a/x_test.py': 'from tests.b import y_test',
        'tests/b/y_test.py': '',
      },
      'a test of another folder',
    ),
  ],
)
def test_faults_are_named(tmp_path, files, complaint):
  index = pyimports.modules(_tree(tmp_path, files))
  assert any(complaint in text for text in gen_build.faults(index))


def test_an_import_that_is_not_locked_is_named(tmp_path):
  files = {'praxis/layers/a.py': 'import unheard_of'}
  with pytest.raises(gen_build.UnknownImportError, match='no lock has'):
    _build(_tree(tmp_path, files), 'praxis/layers')


def test_labels_are_sorted_as_buildifier_does():
  labels = ['@pypi//jax', '//a/b', '//a:c', ':z', '//a/b:d', '@pypi//absl_py']
  rule = build_text.gathered('y', labels, testonly=False)
  text = build_text.render('x', [rule], [], '')
  listed = text.split('deps = [')[1].split(']')[0]
  assert [row.strip(' ",') for row in listed.strip().splitlines()] == [
    ':z',
    '//a:c',
    '//a/b',
    '//a/b:d',
    '@pypi//absl_py',
    '@pypi//jax',
  ]


def test_cycles_are_the_strong_components():
  edges = {'a': ['b'], 'b': ['c'], 'c': ['b', 'd'], 'd': []}
  assert pyimports.cycles(edges) == [['b', 'c']]
