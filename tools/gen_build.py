# SPDX-License-Identifier: Apache-2.0
"""Generates the BUILD files of the Python folders from the imports.

    python3 tools/gen_build.py            # writes changed files
    python3 tools/gen_build.py --check    # fails if a file would change

Targets: one py_library per file (the target of an `__init__.py` has the name of
its folder), one py_binary per program, one pytest_test per *_test.py. Tests of
a folder that name their size share a process and its start: `small_tests`,
`medium_tests`, `large_tests` (a process for each four files), small
`seqio_tests`, and `tree_tests`, which read the whole tree. Those with other
directives than `size`, `deps` and `data` have their own targets. The lines
between `# BEGIN BY HAND` and `# END BY HAND` of a BUILD file are kept.
Comments in the first lines of a Python file add what imports do not contain:

    # bazel: deps=//pax/tasks:experiments
    # bazel: data=//:all_files
    # bazel: size=large      (also: timeout, tags, env, shards, flaky)
"""

from __future__ import annotations

import pathlib
import sys

_ROOT = pathlib.Path(__file__).absolute().parent.parent
if __name__ == '__main__':
  sys.path.insert(0, str(_ROOT))

from tools import build_text, layers, pyimports  # noqa: E402

Index = dict[str, pyimports.Module]

# Modules that a program, or those of a package, import by name only.
_BY_NAME = [
  '//pax/contrib:experiments',
  '//pax/tasks:experiments',
  '//paxml:modules',
]
PROGRAM_DEPS = {
  'pax.main': [*_BY_NAME, '//third_party/pip:accelerator'],
  'pax.tools': _BY_NAME,
  # Starts pax.main in other processes.
  'pax.tools.launch': [
    '//pax:main_lib',
    *_BY_NAME,
    '//third_party/pip:accelerator',
  ],
}
# {package: {target: folder}}: targets with all modules of a folder.
GATHERED = {
  'pax/contrib': {'experiments': 'pax/contrib'},
  'pax/tasks': {'experiments': 'pax/tasks'},
  'paxml': {'modules': 'paxml'},
  'tests/golden': {'layer_cases': 'tests/golden/layer_cases'},
  'tools/wheel': {'pax_modules': 'pax', 'praxis_modules': 'praxis'},
}
# {imported name: distribution}, if they differ.
DISTRIBUTIONS = {
  'PIL': 'pillow',
  'absl': 'absl_py',
  'backports': 'backports_zstd',
  'cyclonedx': 'cyclonedx_python_lib',
  'elftools': 'pyelftools',
  'google': 'protobuf',
  'orbax': 'orbax_checkpoint',
  'packageurl': 'packageurl_python',
  'tensorboardX': 'tensorboardx',
  'yaml': 'pyyaml',
}
# Modules of the standard library that the oldest supported Python lacks.
NEWER = {'compression'}
# Imported if installed, never required.
OPTIONAL = {
  'IPython',
  'array_record',
  'datasets',
  'dp_accounting',
  'grain',
  'ipykernel',
  'jinja2',
  'lingvo',
  'lm_eval',
  'nbclient',
  'nbformat',
  'optuna',
  'peft',
  'pyarrow',
  'seqio',
  'sphinx',
  'tensorflow',
  'tokenizers',
  'torch',
}


class UnknownImportError(Exception):
  """A file imports a module that is neither ours nor in the lock."""


def _package(module: pyimports.Module) -> str:
  """Returns the package of a module."""
  return module.name.rpartition('.')[0]


def library_name(module: pyimports.Module, index: Index) -> str:
  """Returns the name of the py_library of a module."""
  folder = module.path.parent
  if module.is_init:
    return folder.name
  stem = module.path.stem
  if module.is_program:
    return f'{stem}_lib'
  if stem == folder.name and '.'.join(folder.parts) in index:
    return f'{stem}_module'
  return stem


def label(module: pyimports.Module, index: Index) -> str:
  name = library_name(module, index)
  if name == module.path.parent.name:
    return f'//{module.package}'
  return f'//{module.package}:{name}'


def locked(root: pathlib.Path) -> set[str]:
  """Returns the rule names of the distributions in the lock."""
  text = (root / 'third_party/pip/requirements_lock.txt').read_text()
  lines = [line for line in text.splitlines() if '==' in line]
  names = {line.split('==')[0].strip() for line in lines}
  return {n.lower().replace('-', '_').replace('.', '_') for n in names}


def _siblings(module: pyimports.Module, index: Index) -> list[str]:
  """Returns the modules that a lazy __init__ may import: its direct ones."""
  depth = module.name.count('.') + 1
  return [
    m.name
    for m in index.values()
    if m.name.startswith(module.name + '.') and m.name.count('.') == depth
  ]


def own_imports(module: pyimports.Module, index: Index) -> list[str]:
  """Returns the names of our modules that `module` imports."""
  imports = set()
  for imported in (*module.imports, *module.mentions):
    names = [imported]
    if imported.startswith('paxml.'):
      # A module of paxml, or the module of pax that its package resolves.
      names.append(imported.replace('paxml.', 'pax.', 1))
    for name in names:
      if target := pyimports.resolve(name, index):
        imports.add(target.name)
  if module.is_init and module.is_lazy:
    imports.update(_siblings(module, index))
  return sorted((imports & set(index)) - {module.name})


def _enclosing_inits(module: pyimports.Module, index: Index) -> list[str]:
  """Returns the enclosing packages whose __init__.py is a dependency.

  These import nothing of ours, so that they make no cycle; and `paxml`, whose
  __init__.py is the import system of the modules below it.
  """
  parents = ['.'.join(p.parts) for p in module.path.parents if p.parts]
  inits = [index[p] for p in parents if p in index and p != module.name]
  return [
    m.name
    for m in inits
    if m.name == 'paxml' or not (m.is_lazy or own_imports(m, index))
  ]


def _conftests(module: pyimports.Module, index: Index) -> list[str]:
  parents = ['.'.join((*p.parts, 'conftest')) for p in module.path.parents]
  conftests = [p for p in parents if p in index and p != module.name]
  # Pytest imports the conftest first.
  return [
    p for p in conftests if module.name not in own_imports(index[p], index)
  ]


def third_party(module: pyimports.Module, known: set[str]) -> set[str]:
  """Returns the labels of the wheels that a module imports."""
  labels = set()
  for imported in module.imports:
    top = imported.split('.')[0]
    name = DISTRIBUTIONS.get(top, top.lower())
    if name in known:
      labels.add(f'@pypi//{name}')
    elif top not in sys.stdlib_module_names | NEWER | OPTIONAL:
      if top not in (*pyimports.FOLDERS, '__future__'):
        raise UnknownImportError(
          f'{module.path}: imports {imported}, which no lock has; add it to '
          'third_party/pip/requirements.in and run tools/lock.sh'
        )
  return labels


def deps(module: pyimports.Module, index: Index, known: set[str]) -> list[str]:
  """Returns all labels that the target of a module depends on."""
  names = {*own_imports(module, index), *_enclosing_inits(module, index)}
  if module.is_test or module.path.parts[0] == 'tests':
    names.update(_conftests(module, index))
  labels = {label(index[n], index) for n in names}
  labels |= third_party(module, known)
  for text in module.directives.get('deps', []):
    labels.update(text.replace(',', ' ').split())
  return sorted(labels - {label(module, index)})


def visibility(module: pyimports.Module, index: Index) -> list[str]:
  """Returns the visibility: the layer of the module and the layers above.

  A lazy package sees the modules that it re-exports. The top layer, paxml, is
  public, because only users import it.
  """
  level = layers.level(module.name)
  is_top = level == len(layers.LAYERS) - 1
  if level is None or is_top or module.is_program:
    return ['//visibility:public']
  groups = [f'//tools/visibility:{layers.LAYERS[level].name}']
  parent = index.get(module.name.rpartition('.')[0])
  if parent and parent.is_lazy and parent.package != module.package:
    groups.append(f'//{parent.package}:__pkg__')
  return groups


def faults(index: Index) -> list[str]:
  """Returns import cycles, wrong imports, and dependences on TensorFlow."""
  edges = {name: own_imports(m, index) for name, m in index.items()}
  messages = {
    f'import cycle: {" <-> ".join(group)}' for group in pyimports.cycles(edges)
  }
  for name, m in index.items():
    # A lazy __init__ does not import the modules that it names.
    own = [] if m.is_lazy else edges[name]
    messages |= {
      message
      for imported in (*own, *m.imports)
      if (message := layers.violation(name, imported))
    }
  # Bazel refuses it, and with it every target that depends on the importer.
  messages |= {
    f'{m.path}: imports {index[imported].path}, a test of another folder; move'
    ' what both use into a module'
    for name, m in index.items()
    for imported in edges[name]
    if index[imported].is_test and index[imported].package != m.package
  }
  tensorflow = build_text.SEQIO_REPOSITORY
  messages |= {
    f'{m.path}: only a test may depend on {tensorflow}, so that no other'
    ' target fetches TensorFlow'
    for m in index.values()
    if any(tensorflow in text for text in m.directives.get('deps', []))
    if not m.is_test
  }
  return sorted(messages)


def rules(package: str, index: Index, known: set[str]) -> list[build_text.Rule]:
  """Returns the generated targets of one folder, in the order of its files."""
  targets = []
  # Tests of one target import each other.
  shared: dict[str, list[pyimports.Module]] = {}
  shared_needs: dict[str, set[str]] = {}
  for m in index.values():
    if m.package != package:
      continue
    needs = deps(m, index, known)
    if m.is_test:
      if target := build_text.shared_target(m, needs):
        shared.setdefault(target, []).append(m)
        shared_needs.setdefault(target, set()).update(needs)
      else:
        targets.append(build_text.test(m, needs))
      continue
    name = library_name(m, index)
    targets.append(build_text.library(m, name, needs, visibility(m, index)))
    if any(map(m.path.is_relative_to, ('pax/contrib', 'pax/tasks'))):
      targets += [build_text.experiment(m, name, e) for e in m.experiments]
    if m.is_program:
      extra = PROGRAM_DEPS.get(m.name) or PROGRAM_DEPS.get(_package(m), [])
      targets.append(build_text.binary(m, [f':{name}', *extra]))
  for name, tests in sorted(shared.items()):
    others = shared_needs[name] - {label(m, index) for m in tests}
    targets.append(build_text.shared_tests(name, tests, sorted(others)))
  for name, folder in GATHERED.get(package, {}).items():
    below = [m for m in index.values() if m.path.is_relative_to(folder)]
    labels = {label(m, index) for m in below}
    targets.append(
      build_text.gathered(
        name, sorted(labels), testonly=folder.startswith('tests/')
      )
    )
  return targets


def packages(root: pathlib.Path, index: Index) -> list[str]:
  """Returns the folders with modules, and their parents."""
  folders = {str(p) for m in index.values() for p in m.path.parents if p.parts}
  folders |= {f for f in pyimports.FOLDERS if (root / f).is_dir()}
  return sorted(folders)


def generate(root: pathlib.Path, index: Index) -> dict[pathlib.Path, str]:
  """Returns {path: text} of all generated BUILD files."""
  known = locked(root)
  names = packages(root, index)
  by_hand = [
    str(p.parent.relative_to(root))
    for top in pyimports.FOLDERS
    for p in root.glob(f'{top}/**/BUILD')
  ]
  texts = {}
  for package in names:
    path = root / package / 'BUILD'
    old = path.read_text(encoding='utf-8') if path.exists() else ''
    texts[path] = build_text.render(
      package,
      rules(package, index, known),
      build_text.children(package, [*names, *by_hand]),
      build_text.by_hand(old),
    )
  texts[root / 'tools/visibility/BUILD'] = build_text.visibility(root)
  return texts


def main(argv: list[str]) -> int:
  index = pyimports.modules(_ROOT)
  wrong = faults(index)
  for text in wrong:
    print(f'gen_build: {text}', file=sys.stderr)
  try:
    texts = generate(_ROOT, index)
  except UnknownImportError as e:
    print(f'gen_build: {e}', file=sys.stderr)
    return 1
  stale = [
    path
    for path, text in texts.items()
    if not path.exists() or path.read_text(encoding='utf-8') != text
  ]
  for path in stale:
    print(f'{"stale" if "--check" in argv else "wrote"}: {path}')
    if '--check' not in argv:
      path.parent.mkdir(exist_ok=True)
      path.write_text(texts[path], encoding='utf-8')
  if stale and '--check' in argv:
    print('gen_build: run python3 tools/gen_build.py', file=sys.stderr)
    return 1
  return 1 if wrong else 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
