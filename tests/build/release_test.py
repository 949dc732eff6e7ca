# SPDX-License-Identifier: Apache-2.0
# bazel: deps=@pypi//jsonschema
"""The parts of tools/release: versions, licences, bills of materials, tags."""

from __future__ import annotations

import datetime
import hashlib
import html.parser
import io
import json
import pathlib
import subprocess
import tarfile
import urllib.parse
import zipfile

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tools.release import (
  archives,
  builds,
  changelog,
  documents,
  embedded,
  index,
  licenses,
  locks,
  publication,
  readiness,
  release,
  resolution,
  sbom,
)
from tools.release.programs import ReleaseError

_TIME = datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC)
_LOCK = """\
attrs==2.0 \\
    --hash=sha256:{two} \\
    --hash=sha256:{zero}
jax==0.10 ; python_full_version < '3.12' \\
    --hash=sha256:{zero}
jax==0.12 ; python_full_version >= '3.12' \\
    --hash=sha256:{one}
""".format(zero='0' * 64, one='1' * 64, two='2' * 64)


def _package(
  name: str, *requires: str, **metadata: object
) -> resolution.Package:
  return resolution.Package(
    name=name,
    version='1.0',
    sha256=hashlib.sha256(name.encode()).hexdigest(),
    metadata=metadata,
    requires=frozenset(requires),
  )


@pytest.mark.parametrize(
  ('heading', 'version', 'is_released'),
  [
    ('## Unreleased (1.2.3)', '1.2.3', False),
    ('## 1.2.3 (2026-11-23)', '1.2.3', True),
  ],
)
def test_the_changelog_has_the_version(heading, version, is_released):
  text = (
    f'# Changelog\n\n{heading}\n\n- New.\n\n## 1.0.0 (2025-01-01)\n\n- Old.'
  )
  section = changelog.newest(text)
  assert (section.version, section.is_released) == (version, is_released)
  assert section.notes == '- New.'


@pytest.mark.parametrize(
  'heading', ['## Unreleased', '## 1.2 (2026-01-01)', '']
)
def test_another_heading_is_an_error(heading):
  with pytest.raises(ReleaseError, match='its first section must be'):
    changelog.newest(f'# Changelog\n\n{heading}\n')


def _git(root: pathlib.Path, *words: str) -> str:
  who = ('-c', 'user.name=t', '-c', 'user.email=t@example.com')
  command = ['git', '-C', str(root), *who, *words]
  return subprocess.run(
    command, check=True, capture_output=True, text=True
  ).stdout


_RELEASED = changelog.Section(version='1.2.3', is_released=True, notes='- New.')


@pytest.fixture
def root(tmp_path, monkeypatch) -> pathlib.Path:
  """A repository that is ready for the release 1.2.3."""
  for name in ('AUTHOR', 'COMMITTER'):
    monkeypatch.setenv(f'GIT_{name}_NAME', 't')
    monkeypatch.setenv(f'GIT_{name}_EMAIL', 't@example.com')
  monkeypatch.setenv('GIT_CONFIG_GLOBAL', '/dev/null')
  root = tmp_path / 'root'
  files = {
    'pax/__init__.py': "__version__ = '1.2.3'\n",
    'tools/wheel/wheel.bzl': 'VERSION = "1.2.3"\n',
  }
  for name, text in files.items():
    (root / name).parent.mkdir(parents=True)
    (root / name).write_text(text)
  _git(root.parent, 'init', '-q', str(root))
  _git(root, 'add', '.')
  _git(root, 'commit', '-qm', 'first')
  return root


def test_a_clean_tree_is_ready(root):
  assert readiness.faults(root, _RELEASED) == []


def test_what_is_not_ready_is_named(root):
  section = changelog.Section(version='1.2.4', is_released=False, notes='')
  _git(root, 'tag', 'v1.2.4')
  (root / 'pax/__init__.py').write_text("__version__ = '1.2.5'\n")
  _git(root, 'commit', '-qam', 'second')
  (root / 'new').touch()
  found = '\n'.join(readiness.faults(root, section))
  for part in (
    'CHANGELOG.md: 1.2.4 has no date',
    'CHANGELOG.md: 1.2.4 has no changes',
    'pax/__init__.py: the version must be 1.2.4, as in CHANGELOG.md, got 1.2.5',
    'wheel.bzl: the version must be 1.2.4, as in CHANGELOG.md, got 1.2.3',
    'the tree has changes; commit them:\n?? new',
    'the tag v1.2.4 is at another commit',
  ):
    assert part in found


def test_a_release_of_a_tree_with_changes_is_refused(root, capsys):
  text = '# Changelog\n\n## 1.2.3 (2026-11-23)\n\n- New.\n'
  (root / 'CHANGELOG.md').write_text(text)
  assert release.main([f'--root={root}']) == 1
  assert '?? CHANGELOG.md' in capsys.readouterr().err
  assert not (root / 'dist').exists()


@pytest.mark.parametrize('earlier', ['SHA256SUMS', 'notes.txt', None])
def test_a_release_that_fails_leaves_the_folder_as_it_was(
  monkeypatch, root, tmp_path, capsys, earlier
):
  def fail(*_):
    raise ReleaseError('no compiler')

  monkeypatch.setattr(builds, 'export', fail)
  text = '# Changelog\n\n## 1.2.3 (2026-11-23)\n\n- New.\n'
  (root / 'CHANGELOG.md').write_text(text)
  folder = tmp_path / 'dist/1.2.3'
  if earlier:
    folder.mkdir(parents=True)
    (folder / earlier).write_text('sums')
  arguments = [f'--root={root}', f'--out={tmp_path}/dist', '--dry_run']
  assert release.main(arguments) == 1
  message = 'something else' if earlier == 'notes.txt' else 'no compiler'
  assert message in capsys.readouterr().err
  files = [path.name for path in folder.glob('*')]
  assert files == ([earlier] if earlier else [])


def test_a_release_is_committed_and_tagged_once(root, tmp_path):
  out = tmp_path / 'out'
  out.mkdir()
  (out / 'requirements_cpu.txt').write_text(_LOCK)
  (out / 'pax_jax-1.2.3.tar.gz').touch()
  for _ in range(2):
    publication.tag(root, out, _RELEASED)
  saved = root / 'third_party/releases/1.2.3/requirements_cpu.txt'
  assert saved.read_text() == _LOCK
  assert readiness.faults(root, _RELEASED) == []
  subjects = _git(root, 'log', '--format=%s %D').splitlines()
  assert len(subjects) == 2
  assert subjects[0].startswith('Release 1.2.3') and 'v1.2.3' in subjects[0]
  assert '- New.' in _git(root, 'tag', '-n9', 'v1.2.3')


def test_wheels_with_a_local_version_are_not_for_the_public_index(tmp_path):
  names = ['a-1.2.3-x.whl', 'a-1.2.3.tar.gz']
  (tmp_path / 'cuda').mkdir()
  for name in (*names, 'cuda/a-1.2.3+cuda13-x.whl', 'LICENSES.md'):
    (tmp_path / name).touch()
  text = publication.commands(tmp_path, '1.2.3')
  push, upload, page = text.splitlines()
  assert upload.split() == [
    'twine',
    'upload',
    *(f'{tmp_path}/{n}' for n in names),
  ]
  assert len(page.removeprefix('gh release create v1.2.3 ').split()) == 5


@pytest.mark.parametrize(
  ('metadata', 'expression', 'source'),
  [
    ({'license_expression': 'MIT'}, 'MIT', 'License-Expression'),
    (
      {'license_expression': 'apache-2.0 or mit', 'license': 'MIT'},
      'Apache-2.0 OR MIT',
      'License-Expression',
    ),
    ({'license': 'Apache 2.0'}, 'Apache-2.0', 'License'),
    (
      {'license': f'  Apache License\n Version 2.0, {"text " * 40}'},
      'Apache-2.0',
      'License',
    ),
    (
      {'classifier': ['License :: OSI Approved :: MIT License']},
      'MIT',
      'Classifier',
    ),
  ],
)
def test_metadata_names_the_licence(metadata, expression, source):
  found = licenses.of(_package('a', **metadata))
  assert found == licenses.License(expression=expression, source=source)


@pytest.mark.parametrize(
  'metadata',
  [
    {},
    {'license': 'free, see LICENSE'},
    # It has two, three or four clauses.
    {'classifier': ['License :: OSI Approved :: BSD License']},
    # Both, or one of them at the choice of the user?
    {
      'classifier': [
        'License :: OSI Approved :: Apache Software License',
        'License :: OSI Approved :: MIT License',
      ]
    },
  ],
)
def test_an_unknown_licence_is_an_error(metadata):
  packages = [_package('a', license='MIT'), _package('b', **metadata)]
  with pytest.raises(ReleaseError, match='the licence of b 1.0 is not known'):
    licenses.report(packages)


def test_a_licence_that_was_read_is_reported():
  assert '| kiwisolver | 1.0 | BSD-3-Clause | licence file |\n' in (
    licenses.report([_package('kiwisolver')] * 2)
  )


def _bill() -> str:
  pax = _package('pax-jax', 'jax', license_expression='Apache-2.0')
  jax = _package('jax', 'numpy', license='Apache-2.0')
  numpy = _package('numpy', license_expression='BSD-3-Clause AND MIT')
  robin_map = resolution.Package(
    name='robin-map',
    version='1.4.0',
    origin='github/tessil',
    sha256='',
    metadata={},
    requires=frozenset(),
  )
  built_in = [_package('nanobind'), robin_map]
  return sbom.text([jax, numpy, pax], built_in, _TIME)


def test_the_bill_of_materials_is_valid():
  assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(_bill()) is None
  assert _bill() == _bill()


def test_the_bill_of_materials_has_all_packages():
  bill = json.loads(_bill())
  root = bill['metadata']['component']
  assert root['purl'] == 'pkg:pypi/pax-jax@1.0'
  assert {c['purl']: c['licenses'] for c in root['components']} == {
    'pkg:pypi/nanobind@1.0': [{'expression': 'BSD-3-Clause'}],
    'pkg:github/tessil/robin-map@1.4.0': [{'expression': 'MIT'}],
  }
  found = {c['name']: c for c in bill['components']}
  assert found.keys() == {'jax', 'numpy'}
  (checksum,) = found['jax']['hashes']
  assert checksum['content'] == hashlib.sha256(b'jax').hexdigest()
  assert found['numpy']['licenses'] == [{'expression': 'BSD-3-Clause AND MIT'}]
  needs = {d['ref']: d.get('dependsOn', []) for d in bill['dependencies']}
  assert needs[root['bom-ref']] == ['pkg:pypi/jax@1.0']
  assert needs['pkg:pypi/jax@1.0'] == ['pkg:pypi/numpy@1.0']


def test_versions_of_embedded_parts_are_read_from_the_files(
  tmp_path, monkeypatch
):
  """Of headers in nanobind, and of an extension that this compiler links."""
  source, extension = tmp_path / 'a.cc', tmp_path / 'a.so'
  source.write_text('#include <string>\nstd::string a(int i) { return {i}; }')
  link = ['g++', '-shared', '-fPIC', '-static-libstdc++', '-Wl,-s']
  subprocess.run([*link, source, '-o', extension], check=True)
  wheel = tmp_path / 'a.whl'
  with zipfile.ZipFile(wheel, 'w') as z:
    z.write(extension, 'a.so')
  header = tmp_path / 'ext/robin_map/include/tsl/robin_growth_policy.h'
  header.parent.mkdir(parents=True)
  header.write_text(
    '#define TSL_RH_VERSION_MAJOR 1\n// 7\n#define TSL_RH_VERSION_MINOR 40\n'
    '#define TSL_RH_VERSION_PATCH 2\n'
  )
  monkeypatch.setattr(embedded, 'run', lambda words: f'{tmp_path}\n')
  found = embedded.parts(pathlib.Path('python'), wheel)
  command = ['g++', '-dumpfullversion']
  gcc = subprocess.run(command, capture_output=True, text=True, check=True)
  assert {part.name: part.version for part in found} == {
    'robin-map': '1.40.2',
    'libstdc++': gcc.stdout.strip(),
  }


def test_a_wheel_without_a_compiler_is_an_error(tmp_path):
  wheel = tmp_path / 'a.whl'
  with zipfile.ZipFile(wheel, 'w') as z:
    z.writestr('a.so', b'clang version 19')
  with pytest.raises(ReleaseError, match='version of libstdc.. is not known'):
    embedded.compilers(wheel)


@pytest.fixture
def lock(tmp_path) -> list[locks.Entry]:
  folder = tmp_path / locks.FOLDER
  folder.mkdir(parents=True)
  (folder / 'requirements_lock.txt').write_text(_LOCK)
  return locks.read(tmp_path, 'requirements_lock.txt')


def test_locks_are_read_entry_by_entry(lock):
  attrs, *versions = lock
  assert attrs.hashes == {'0' * 64, '2' * 64}
  assert locks.text(lock) == _LOCK
  assert locks.of(lock, {'jax'}) == versions
  assert locks.constraints(versions) == (
    "jax==0.10 ; python_full_version < '3.12'\n"
    "jax==0.12 ; python_full_version >= '3.12'\n"
  )


def _report(digest: str) -> dict:
  """A report of pip for a wheel that needs jax."""
  requirements = ['jax>=0.10', 'libtpu; extra == "tpu"', 'jax; extra == "cuda"']

  def item(name: str, digest: str, **more: object) -> dict:
    info = {'archive_info': {'hashes': {'sha256': digest}}}
    metadata = {'name': name, 'version': '1', **more}
    return {'metadata': metadata, 'download_info': info}

  return {
    'environment': {'python_full_version': '3.11.7'},
    'install': [
      item('pax_jax', '5' * 64, requires_dist=requirements),
      item('JAX', digest),
    ],
  }


def test_a_report_of_pip_gives_packages_and_what_they_require(
  lock, monkeypatch
):
  monkeypatch.setattr(
    resolution, 'run', lambda words: json.dumps(_report('0' * 64))
  )
  found = resolution.resolve(pathlib.Path('python'), ['pax-jax'], lock)
  pax, (jax,) = resolution.split(found)
  assert (jax.name, jax.requires) == ('jax', frozenset())
  assert pax.requires == {'jax'}
  monkeypatch.setattr(
    resolution, 'run', lambda words: json.dumps(_report('7' * 64))
  )
  with pytest.raises(ReleaseError, match=f'jax 1: .* {"7" * 64} is not in the'):
    resolution.resolve(pathlib.Path('python'), ['pax-jax'], lock)


class _Links(html.parser.HTMLParser):
  """Collects the attributes of links."""

  def __init__(self):
    super().__init__()
    self.found = []

  def handle_starttag(self, tag, attrs):
    if tag == 'a':
      self.found.append(dict(attrs))


def _links(page: pathlib.Path) -> list[dict[str, str]]:
  parser = _Links()
  parser.feed(page.read_text())
  return parser.found


def test_links_of_the_index_lead_to_files_with_these_checksums(tmp_path):
  path = tmp_path / 'a-1+cuda13-x.whl'
  path.write_bytes(b'wheel')
  index.write(tmp_path, 'a', '>=3.11')
  (link,) = _links(tmp_path / 'simple/index.html')
  page = tmp_path / 'simple' / link['href'] / 'index.html'
  (link,) = _links(page)
  url, _, digest = link['href'].partition('#sha256=')
  assert (page.parent / urllib.parse.unquote(url)).resolve() == path
  assert digest == hashlib.sha256(b'wheel').hexdigest()
  assert link['data-requires-python'] == '>=3.11'


@pytest.mark.parametrize('changed', ['a', 'b/c'])
def test_sha256sum_accepts_the_sums_of_unchanged_files(changed, tmp_path):
  (tmp_path / 'b').mkdir()
  (tmp_path / 'b/c').touch()
  (tmp_path / 'a').write_text('a')
  documents.write_sums(tmp_path)
  check = ['sha256sum', '--check', '--strict', documents.SUMS]
  subprocess.run(check, cwd=tmp_path, check=True)
  (tmp_path / changed).write_text('b')
  assert subprocess.run(check, cwd=tmp_path, check=False).returncode == 1


def test_a_source_distribution_has_no_times_and_owners(tmp_path):
  long = f'a/{"b" * 120}'
  for number in range(2):
    with tarfile.open(tmp_path / f'{number}.tar.gz', 'w:gz') as tar:
      for name in sorted([long, 'a/c'], reverse=bool(number)):
        member = tarfile.TarInfo(name)
        member.size, member.mtime, member.uid = 1, number + 0.5, number
        tar.addfile(member, io.BytesIO(b'x'))
    archives.repack(tmp_path / f'{number}.tar.gz', tmp_path / f'{number}')
  assert (tmp_path / '0').read_bytes() == (tmp_path / '1').read_bytes()
  with tarfile.open(tmp_path / '0') as tar:
    assert tar.getnames() == [long, 'a/c']
    assert tar.extractfile(long).read() == b'x'
  archives.unpack(tmp_path / '0', tmp_path / 'unpacked')
  assert (tmp_path / 'unpacked/a/c').read_bytes() == b'x'
