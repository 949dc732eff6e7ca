# SPDX-License-Identifier: Apache-2.0
"""Text of generated BUILD files, in the format of buildifier."""

from __future__ import annotations

import dataclasses
import math
import pathlib

from tools import layers, pyimports

_HEAD = '# Written by tools/gen_build.py.\n'
_BEGIN, _END = '# BEGIN BY HAND\n', '# END BY HAND\n'
# Attributes that buildifier puts first and last; others are alphabetical.
_FIRST = ('name', 'size', 'timeout', 'testonly', 'srcs')
_LAST = ('visibility', 'deps')

# Data of the tests that read the tree.
TREE = '//:all_files'
# The repository with TensorFlow: on the path of the tests that name it.
SEQIO_REPOSITORY = '@pypi_seqio//'
# {size of a test that shares a target: size of the target}
SHARED_SIZES = {'small': 'medium', 'medium': 'large', 'large': 'enormous'}
# One process for all large tests of a folder would outlast all other tests.
_LARGE_FILES_PER_SHARD = 4

Value = str | int | bool | list[str] | dict[str, str]


@dataclasses.dataclass(frozen=True)
class Rule:
  """A call in a BUILD file; empty values are omitted."""

  kind: str
  values: dict[str, Value]


def _label_key(label: str) -> tuple[int, list[str]]:
  kinds = (':', '//', '@')
  phase = next((i for i, k in enumerate(kinds) if label.startswith(k)), 9)
  return phase, label.replace(':', '.').split('.')


def _text(value: Value, indent: str = '    ') -> str:
  if isinstance(value, bool | int):
    return str(value)
  if isinstance(value, str):
    return f'"{value}"'
  if isinstance(value, dict):
    rows = [f'"{k}": "{v}"' for k, v in sorted(value.items())]
    if len(rows) == 1:
      return '{' + rows[0] + '}'
    inner = ''.join(f'{indent}    {row},\n' for row in rows)
    return '{\n' + inner + indent + '}'
  rows = sorted(set(value), key=_label_key)
  if len(rows) == 1:
    return f'["{rows[0]}"]'
  return '[\n' + ''.join(f'{indent}    "{r}",\n' for r in rows) + indent + ']'


def _rule_text(rule: Rule) -> str:
  keys = [k for k, v in rule.values.items() if v not in ('', [], {}, 0, False)]
  middle = sorted(k for k in keys if k not in _FIRST + _LAST)
  order = [*(k for k in _FIRST if k in keys), *middle]
  order += [k for k in _LAST if k in keys]
  rows = ''.join(f'    {k} = {_text(rule.values[k])},\n' for k in order)
  return f'{rule.kind}(\n{rows})\n'


def library(
  module: pyimports.Module, name: str, deps: list[str], visibility: list[str]
) -> Rule:
  """Returns the py_library of one file."""
  return Rule(
    'py_library',
    {
      'name': name,
      'testonly': module.path.parts[0] == 'tests',
      'srcs': [module.path.name],
      'data': _listed(module, 'data'),
      'visibility': visibility,
      'deps': _local(module.package, deps),
    },
  )


def binary(module: pyimports.Module, deps: list[str]) -> Rule:
  """Returns the py_binary of a program."""
  return Rule(
    'py_binary',
    {
      'name': module.path.stem,
      'testonly': module.path.parts[0] == 'tests',
      'srcs': [module.path.name],
      'data': _listed(module, 'data'),
      'visibility': ['//visibility:public'],
      'deps': _local(module.package, deps),
    },
  )


def test(module: pyimports.Module, deps: list[str]) -> Rule:
  """Returns the pytest_test of one *_test.py, with its directives."""
  says = {k: v[-1] for k, v in module.directives.items()}
  env = [text.split('=', 1) for text in module.directives.get('env', [])]
  return Rule(
    'pytest_test',
    {
      'name': module.path.stem,
      'size': says.get('size', 'medium'),
      'timeout': says.get('timeout', ''),
      'srcs': [module.path.name],
      'data': _listed(module, 'data'),
      'env': dict(env),
      'flaky': 'flaky' in says,
      'shard_count': int(says.get('shards', 0)),
      'tags': _listed(module, 'tags'),
      'deps': _local(module.package, deps),
    },
  )


def shared_target(module: pyimports.Module, deps: list[str]) -> str:
  """Returns the target that a test shares with others of its folder, or ''.

  Args:
    module: a test.
    deps: labels that it depends on.
  """
  says = dict(module.directives)
  says.pop('deps', None)
  size = says.pop('size', [''])[-1]
  has_tensorflow = any(text.startswith(SEQIO_REPOSITORY) for text in deps)
  if says == {'data': [TREE]} and size != 'large' and not has_tensorflow:
    return 'tree_tests'
  # Others with the whole tree as data run at every change, and so alone.
  if TREE not in says.get('data', []):
    says.pop('data', None)
  if says or size not in SHARED_SIZES:
    return ''
  if has_tensorflow:
    return 'seqio_tests' if size == 'small' else ''
  return f'{size}_tests'


def shared_tests(
  name: str, modules: list[pyimports.Module], deps: list[str]
) -> Rule:
  """Returns one pytest_test for tests of a folder: few processes."""
  sizes = {m.directives.get('size', ['medium'])[-1] for m in modules}
  largest = next(size for size in reversed(SHARED_SIZES) if size in sizes)
  shards = 0
  if largest == 'large':
    shards = math.ceil(len(modules) / _LARGE_FILES_PER_SHARD)
  return Rule(
    'pytest_test',
    {
      'name': name,
      'size': SHARED_SIZES[largest],
      'srcs': sorted(m.path.name for m in modules),
      'data': sorted({x for m in modules for x in _listed(m, 'data')}),
      'shard_count': shards if shards > 1 else 0,
      'deps': _local(modules[0].package, deps),
    },
  )


def experiment(module: pyimports.Module, library: str, name: str) -> Rule:
  """Returns the pax_experiment of one registered class."""
  return Rule(
    'pax_experiment',
    {
      'name': name,
      'exp': f'{module.name.removeprefix("pax.")}.{name}',
      'visibility': ['//visibility:public'],
      'deps': [f':{library}'],
    },
  )


def gathered(name: str, labels: list[str], testonly: bool) -> Rule:
  """Returns a py_library without sources, for its deps."""
  return Rule(
    'py_library',
    {
      'name': name,
      'testonly': testonly,
      'visibility': ['//visibility:public'],
      'deps': labels,
    },
  )


def _listed(module: pyimports.Module, key: str) -> list[str]:
  texts = module.directives.get(key, [])
  return [x for text in texts for x in text.replace(',', ' ').split()]


def _local(package: str, labels: list[str]) -> list[str]:
  """Returns labels relative to `package`."""
  own = f'//{package}'
  default = f'{own}:{package.rpartition("/")[2]}'
  full = [default if text == own else text for text in labels]
  return [
    text.removeprefix(own) if text.startswith(f'{own}:') else text
    for text in full
  ]


def children(package: str, packages: list[str]) -> list[str]:
  """Returns the direct subpackages of a package."""
  below = {p for p in packages if p.startswith(package + '/')}
  return sorted(
    p for p in below if not any(p.startswith(q + '/') for q in below)
  )


def by_hand(old: str) -> str:
  """Returns the hand-written section of a BUILD file, with its markers."""
  if _BEGIN not in old:
    return ''
  return _BEGIN + old.split(_BEGIN, 1)[1].split(_END, 1)[0] + _END


# {rule, macro or constant: file that defines it}, in the order of buildifier.
_LOADED = {
  'cc_binary': '@rules_cc//cc:cc_binary.bzl',
  'cc_library': '@rules_cc//cc:cc_library.bzl',
  'cc_test': '@rules_cc//cc:cc_test.bzl',
  'py_binary': '@rules_python//python:py_binary.bzl',
  'py_library': '@rules_python//python:py_library.bzl',
  'EXTENSION_LINKOPTS': '//csrc:copts.bzl',
  'docs_site': '//tools/docs:site.bzl',
  'pax_experiment': '//tools:experiment.bzl',
  'pytest_test': '//tools:pytest.bzl',
  'py_wheel': '//tools/wheel:wheel.bzl',
}


def _loads(text: str) -> str:
  rows = [
    f'load("{file}", "{name}")\n'
    for name, file in _LOADED.items()
    if f'{name}(' in text or f'= {name},' in text
  ]
  return ''.join(rows) + '\n' if rows else ''


def render(
  package: str, rules: list[Rule], below: list[str], by_hand_text: str
) -> str:
  """Returns the text of one BUILD file."""
  parts = [_rule_text(rule) for rule in rules]
  if by_hand_text:
    parts.append(by_hand_text)
  labels = [f'//{p}:all_files' for p in below]
  files = (
    'glob(\n        ["**"],\n        exclude = ["**/__pycache__/**"],\n    )'
  )
  if labels:
    files += f' + {_text(labels)}'
  parts.append(
    'filegroup(\n    name = "all_files",\n'
    f'    srcs = {files},\n'
    '    visibility = ["//visibility:public"],\n)\n'
  )
  body = '\n'.join(parts)
  return _HEAD + '\n' + _loads(body) + body


def _above(root: pathlib.Path, level: int) -> list[str]:
  """Returns package patterns of the layers from `level` up."""
  names = {n for layer in layers.LAYERS[level:] for n in layer.modules}
  patterns = {'//benchmarks/...', '//docs/...', '//tests/...', '//tools/...'}
  for name in names:
    folder = name.replace('.', '/')
    if any((root / folder).rglob('*.py')):
      patterns.add(f'//{folder}/...')
    else:
      patterns.add(f'//{folder.rpartition("/")[0]}')
  return sorted(patterns)


def visibility(root: pathlib.Path) -> str:
  """Returns the BUILD file of //tools/visibility: one package_group a layer."""
  groups = [
    Rule('package_group', {'name': layer.name, 'packages': _above(root, level)})
    for level, layer in enumerate(layers.LAYERS)
  ]
  return render('tools/visibility', groups, [], '')
