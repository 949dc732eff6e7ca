# SPDX-License-Identifier: Apache-2.0
"""Runs in a repository rule: fetches the locked wheels, writes BUILD files.

Each wheel is unpacked to a directory of its own, compiled to hash-based .pyc
files (actions see the tree read-only, so Python could never write them), and
given a py_library whose deps are the wheel's own Requires-Dist. Unpacked wheels
are kept in a store by lock entry, so that a changed lock costs only what
changed; a repository's files are hard links into it.
"""

from __future__ import annotations

import argparse
import compileall
import concurrent.futures
import dataclasses
import email
import email.message
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

# Of the store; change it when `unpack` or `compile_tree` change.
STORE_FORMAT = '3'

REQUIREMENTS_BZL = '''"""requirement("flax") is the label of its py_library."""

_ALL = {names}

def requirement(name):
    name = name.lower().replace("-", "_").replace(".", "_")
    if name not in _ALL:
        fail("%s is not in the lock file" % name)
    return "@{repo}//" + name
'''

_LOAD = 'load("@rules_python//python:py_library.bzl", "py_library")\n\n'
_NOTHING = f"""{_LOAD}py_library(
    name = "{{name}}",
    visibility = ["//visibility:public"],
)
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """What the repository rule asks for."""

  # The lock, and locks whose packages other repositories provide.
  lock: str
  base_lock: str
  base_repo: str
  # Rule names of the lock's distributions that are wanted; empty: all.
  only: list[str]
  # Name of this repository.
  repo: str
  # All wheels in one directory: for wheels that find each other's shared
  # libraries by relative paths.
  merged: bool
  # The wheels' code is not run: what they require is left out.
  data_only: bool
  # Distribution name -> file of BUILD text to append to its package.
  annotations: dict[str, str]
  # A file of distributions that no wheel here gets though it requires them.
  excluded: str
  # Rule names of distributions that have no wheel: pure Python, built by the
  # setuptools of the base lock.
  sdists: list[str]


def rule_name(name: str) -> str:
  return canonicalize_name(name).replace('-', '_')


def lock_entries(path: str) -> tuple[dict[str, str], set[str]]:
  """Reads a lock.

  Returns:
    {rule name: pin and hashes} of what applies to this Python, and the rule
    names of what does not.
  """
  text = pathlib.Path(path).read_text(encoding='utf-8')
  text = re.sub(r'(?m)^\s*#.*\n?', '', text).replace('\\\n', ' ')
  entries, others = {}, set()
  for line in filter(str.strip, text.splitlines()):
    line = ' '.join(line.split())
    if '--hash=' not in line:
      raise SystemExit(f'{path}: no hash in: {line}; rerun tools/lock.sh')
    pin, _, hashes = line.partition(' --hash=')
    req = Requirement(pin)
    if req.marker is None or req.marker.evaluate():
      version = pin.partition(';')[0].strip()
      entries[rule_name(req.name)] = f'{version} --hash={hashes}'
    else:
      others.add(rule_name(req.name))
  return entries, others - entries.keys()


def excluded_names(path: str) -> set[str]:
  """Returns the rule names in a file of one distribution a line."""
  lines = pathlib.Path(path).read_text(encoding='utf-8').splitlines()
  return {rule_name(n) for n in lines if n.strip() and not n.startswith('#')}


def unpack(wheel: str, dest: str) -> None:
  """Puts a wheel's files under `dest`; its scripts go to dest/_scripts."""
  with zipfile.ZipFile(wheel) as z:
    z.extractall(dest)
    for info in z.infolist():
      if (info.external_attr >> 16) & 0o111 and not info.is_dir():
        os.chmod(os.path.join(dest, info.filename), 0o755)
  for data in pathlib.Path(dest).glob('*.data'):
    for scheme in data.iterdir():
      lib = scheme.name in ('purelib', 'platlib')
      target = dest if lib else os.path.join(dest, '_' + scheme.name)
      shutil.copytree(scheme, target, dirs_exist_ok=True)
    shutil.rmtree(data)


def compile_tree(dest: str) -> None:
  """Compiles all but the packages' own tests, a fifth of the wheels' text."""
  compileall.compile_dir(
    dest,
    rx=re.compile(re.escape(dest) + '/(.+/)?tests?/'),
    quiet=2,
    workers=1,
    stripdir=dest,
    invalidation_mode=compileall.py_compile.PycInvalidationMode.UNCHECKED_HASH,
  )


def fill(store: str, key: str, wheel: str) -> None:
  """Adds one wheel to the store under `key`, atomically."""
  tmp = tempfile.mkdtemp(dir=store)
  unpack(wheel, f'{tmp}/site')
  compile_tree(f'{tmp}/site')
  os.chmod(tmp, 0o755)
  try:
    os.rename(tmp, os.path.join(store, key))
  except OSError:  # Another fetch was first.
    shutil.rmtree(tmp)


def pip(entries: dict[str, str], *args: str, **env: str) -> None:
  """Runs a command of pip on `entries`, whose hashes it checks."""
  with tempfile.NamedTemporaryFile('w', suffix='.txt') as listing:
    listing.write('\n'.join(entries.values()) + '\n')
    listing.flush()
    command = [sys.executable, '-m', 'pip', *args, '--quiet', '--no-deps']
    command += ['--require-hashes', '--requirement', listing.name]
    env = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK='1', **env)
    subprocess.run(command, check=True, env=env)


def download(entries: dict[str, str], dest: str) -> None:
  """Downloads the wheels of `entries` into `dest`."""
  pip(entries, 'download', '--only-binary', ':all:', '--dest', dest)


def build(entries: dict[str, str], dest: str, setuptools: str) -> None:
  """Downloads source distributions and builds their wheels into `dest`.

  Args:
    entries: the lock's text for each.
    dest: a directory.
    setuptools: the store's directory of setuptools, which builds them.
  """
  command = ['wheel', '--no-build-isolation', '--wheel-dir', dest]
  command += ['--no-binary', ','.join(entries)]
  pip(entries, *command, PYTHONPATH=os.path.join(setuptools, 'site'))


def fill_all(store: str, keys: dict[str, str], wheels: str) -> None:
  """Adds the wheels in the directory `wheels` to the store."""
  with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
    jobs = [
      pool.submit(
        fill, store, keys[rule_name(w.split('-')[0])], f'{wheels}/{w}'
      )
      for w in os.listdir(wheels)
    ]
    for job in jobs:
      job.result()


def store_all(
  entries: dict[str, str], sdists: list[str], base: dict[str, str]
) -> dict[str, str]:
  """Returns {rule name: directory in the store}; fetches what is missing.

  Args:
    entries: the lock's text for each.
    sdists: rule names that are built from source distributions.
    base: the base lock's text for each, for the setuptools that builds them.
  """
  tag = f'{STORE_FORMAT} {sys.version} {sys.platform}'
  keys = {
    name: f'{name}-{hashlib.sha256((tag + entry).encode()).hexdigest()}'
    for name, entry in entries.items()
  }
  cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  store = os.environ.get('PIP_REPOSITORY_STORE') or f'{cache}/pip_repository'
  os.makedirs(store, exist_ok=True)
  missing = {
    name: entry
    for name, entry in entries.items()
    if not os.path.isdir(os.path.join(store, keys[name]))
  }
  sources = {n: missing.pop(n) for n in sdists if n in missing}
  paths = {name: os.path.join(store, key) for name, key in keys.items()}
  if missing:
    with tempfile.TemporaryDirectory(dir='.') as wheels:
      download(missing, wheels)
      fill_all(store, keys, wheels)
  if sources:
    builder = store_all({'setuptools': base['setuptools']}, [], {})
    with tempfile.TemporaryDirectory(dir='.') as wheels:
      build(sources, wheels, builder['setuptools'])
      fill_all(store, keys, wheels)
  return paths


def link_tree(source: str, dest: str) -> None:
  """Hard-links a tree, or copies it where links are impossible."""

  def put(src: str, dst: str) -> None:
    try:
      os.link(src, dst)
    except FileExistsError:  # Namespace packages meet in a merged directory.
      pass
    except OSError:
      shutil.copy2(src, dst)

  shutil.copytree(source, dest, copy_function=put, dirs_exist_ok=True)


def metadata(site: str) -> email.message.Message:
  for info in pathlib.Path(site).glob('*.dist-info'):
    text = (info / 'METADATA').read_text(encoding='utf-8')
    return email.message_from_string(text)
  raise SystemExit(f'no METADATA under {site}')


def requirements(site: str) -> list[Requirement]:
  lines = metadata(site).get_all('Requires-Dist') or []
  return [Requirement(line) for line in lines]


def applies(req: Requirement, extras: set[str]) -> bool:
  if req.marker is None:
    return True
  return any(req.marker.evaluate({'extra': e}) for e in ('', *extras))


def dependencies(stored: dict[str, str]) -> dict[str, list[str]]:
  """{rule name: rule names of what it requires}.

  An extra that any wheel asks of another is that other's for all.
  """
  needs = {name: requirements(f'{path}/site') for name, path in stored.items()}
  extras: dict[str, set[str]] = {}
  while True:
    before = sum(map(len, extras.values()))
    for name, reqs in needs.items():
      for req in reqs:
        if req.extras and applies(req, extras.get(name, set())):
          extras.setdefault(rule_name(req.name), set()).update(req.extras)
    if sum(map(len, extras.values())) == before:
      break
  found = {
    name: {
      rule_name(r.name) for r in reqs if applies(r, extras.get(name, set()))
    }
    for name, reqs in needs.items()
  }
  return {name: sorted(deps - {name}) for name, deps in found.items()}


def build_text(name: str, deps: list[str]) -> str:
  """A BUILD file: the directory is one input, so runfiles trees stay small.

  Bazel does not notice a change inside a directory that is one input: the KEY
  file beside it is what makes dependents run again.
  """
  rows = ''.join(f'        "{d}",\n' for d in deps)
  return (
    f'{_LOAD}package(default_visibility = ["//visibility:public"])\n\n'
    'exports_files(["site"])\n\n'
    f'py_library(\n    name = "{name}",\n'
    '    data = [\n        "KEY",\n        "site",\n    ],\n'
    f'    imports = ["site"],\n    deps = [\n{rows}    ],\n)\n'
  )


def write_package(name: str, keys: list[str], deps: list[str]) -> None:
  pathlib.Path(name, 'KEY').write_text('\n'.join(keys) + '\n')
  pathlib.Path(name, 'BUILD').write_text(build_text(name, deps))


def write_packages(
  opts: Options, stored: dict[str, str], base: dict[str, str]
) -> list[str]:
  """Lays out the repository; returns the names it offers."""
  labels = {n: f'@{opts.base_repo}//{n}' for n in base}
  labels |= {n: f'//{n}' for n in stored}
  excluded = excluded_names(opts.excluded) if opts.excluded else set()
  nothing: dict[str, list[str]] = {name: [] for name in stored}
  deps = nothing if opts.data_only else dependencies(stored)
  for name, needs in deps.items():
    needs[:] = [dep for dep in needs if dep not in excluded]
    for dep in needs:
      if dep not in labels:
        raise SystemExit(f'{name} needs {dep}, which {opts.lock} does not lock')
  if opts.merged:
    for path in stored.values():
      link_tree(f'{path}/site', 'all/site')
    outside = {d for needs in deps.values() for d in needs if d not in stored}
    keys = sorted(os.path.basename(path) for path in stored.values())
    write_package('all', keys, sorted(labels[d] for d in outside))
    return ['all']
  for name, path in stored.items():
    link_tree(path, name)
    rows = [labels[d] for d in deps[name]]
    write_package(name, [os.path.basename(path)], rows)
  return sorted(stored)


def parse() -> Options:
  parser = argparse.ArgumentParser()
  parser.add_argument('--lock', required=True)
  parser.add_argument('--base_lock', default='')
  parser.add_argument('--base_repo', default='')
  parser.add_argument('--only', action='append', default=[])
  parser.add_argument('--repo', required=True)
  parser.add_argument('--merged', action='store_true')
  parser.add_argument('--data_only', action='store_true')
  parser.add_argument('--annotate', action='append', default=[])
  parser.add_argument('--excluded', default='')
  parser.add_argument('--sdist', dest='sdists', action='append', default=[])
  args = vars(parser.parse_args())
  annotations = dict(a.split('=', 1) for a in args.pop('annotate'))
  return Options(annotations=annotations, **args)


def main() -> None:
  opts = parse()
  base = lock_entries(opts.base_lock)[0] if opts.base_lock else {}
  entries, others = lock_entries(opts.lock)
  wanted = {name: entries[name] for name in opts.only or entries}
  stored = store_all(wanted, opts.sdists, base)
  names = write_packages(opts, stored, base)
  # A label is valid on each Python, also of what newer ones have built in.
  for name in others if not (opts.only or opts.merged) else ():
    os.makedirs(name)
    pathlib.Path(name, 'BUILD').write_text(_NOTHING.format(name=name))
  for name, path in opts.annotations.items():
    with open(os.path.join(name, 'BUILD'), 'a', encoding='utf-8') as f:
      f.write('\n' + pathlib.Path(path).read_text(encoding='utf-8'))
  pathlib.Path('BUILD').write_text('')
  rows = ''.join(f'    "{n}",\n' for n in names)
  text = REQUIREMENTS_BZL.format(names=f'[\n{rows}]', repo=opts.repo)
  pathlib.Path('requirements.bzl').write_text(text)


if __name__ == '__main__':
  main()
