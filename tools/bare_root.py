# SPDX-License-Identifier: Apache-2.0
"""Runs a command in a bare Debian or Ubuntu, as a new user in a clone of HEAD.

    sudo python3 tools/bare_root.py trixie /tmp/trixie ./bazelw test //...

debootstrap makes the root in the folder from the mirror of this machine; APT
installs there what README.md names. A second command finds the root and the
clone as the first one left them. The root has the network of this machine and
its configuration of pip and npm. Processes and mounts of a command end with it.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

_REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
# Those of README.md.
PACKAGES = ('g++', 'git', 'npm', 'python3-dev', 'python3-pip')
# Without it, programs trust no server.
_BASE = 'ca-certificates'
_USER = 'newcomer'
_CLONE = f'home/{_USER}/pax'
_UBUNTU = ('jammy', 'noble')
# The scripts of debootstrap; that of each suite is a link to one of two.
_SCRIPTS = '/usr/share/debootstrap/scripts'
# Where the registries of this machine are, and whom it trusts: in the root, in
# the home, in the environment.
_FILES = (
  'etc/hosts',
  'etc/pip.conf',
  'etc/resolv.conf',
  'etc/ssl/certs/ca-certificates.crt',
)
_HOME_FILES = ('.config/pip/pip.conf', '.npmrc', '.pip/pip.conf')
# Settings of APT that belong to the mirror: one that is a snapshot has expired.
_APT = ('Acquire::Check-', 'Acquire::http::Proxy', 'Acquire::https::')
_VARIABLES = ('BAZELW_', 'NODE_EXTRA_CA_CERTS', 'NPM_CONFIG_', 'PIP_', 'SSL_')
# $1: the root; then a user, a directory and a command there. With pivot_root:
# the kernel refuses user namespaces, which sandboxes need, in a chroot.
_ENTER = """
set -e
root=$1 user=$2
shift 2
mount --rbind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
cd "$root"
pivot_root . .
umount --lazy .
in_folder='cd "$1" && shift && exec "$@"'
who="--reuid=$user --regid=$user --clear-groups"
exec setpriv $who --pdeathsig=KILL sh -c "$in_folder" sh "$@"
"""


class MissingError(Exception):
  """This machine lacks something; the message has the next step."""


def mirror(suite: str) -> str:
  """Returns the mirror that has a suite, of the APT sources of this machine.

  Raises:
    MissingError: they name none.
  """
  origin = 'Ubuntu' if suite in _UBUNTU else 'Debian'
  command = ['apt-get', 'indextargets', '--format', '$(REPO_URI)']
  command += ['Created-By: Packages', f'Origin: {origin}']
  found = subprocess.run(command, capture_output=True, text=True, check=True)
  if not found.stdout:
    raise MissingError(
      f'the APT sources of this machine have no mirror of {origin}; run apt-get'
      ' update, or pass --mirror'
    )
  return found.stdout.splitlines()[0]


def variables(suite: str) -> dict[str, str]:
  """Returns the environment that `bazelw` needs in a suite.

  Raises:
    MissingError: the APT sources of this machine name no mirror of Debian.
  """
  known = suite not in _UBUNTU or 'BAZELW_MIRROR' in os.environ
  return {} if known else {'BAZELW_MIRROR': mirror('stable')}


def make(root: pathlib.Path, suite: str, uri: str) -> None:
  """Makes a root with a new user, who has cloned HEAD.

  Args:
    root: its folder, which does not exist.
    suite: of Debian or Ubuntu.
    uri: of a mirror that has the suite.

  Raises:
    MissingError: there is no debootstrap.
  """
  if not shutil.which('debootstrap'):
    raise MissingError('debootstrap is missing; apt-get install debootstrap')
  partial = root.with_name(f'{root.name}.partial')
  options = ['--variant=minbase', f'--include={_BASE}']
  script = f'{_SCRIPTS}/sid'
  if suite in _UBUNTU:
    script = f'{_SCRIPTS}/gutsy'
    # As on an installed Ubuntu.
    options.append('--components=main,universe')
  _run(['debootstrap', *options, suite, partial, uri, script])
  for name in _FILES:
    _copy(pathlib.Path('/', name), partial / name)
  (partial / 'etc/apt/apt.conf.d/90mirror').write_text(_apt_settings())
  _run(['chroot', partial, 'useradd', '--create-home', _USER])
  for name in _HOME_FILES:
    _copy(pathlib.Path.home() / name, partial / 'home' / _USER / name)
  clone = ['git', 'clone', '--quiet', '--no-hardlinks']
  _run([*clone, str(_REPOSITORY), str(partial / _CLONE)])
  owner = ['chroot', str(partial), 'chown', '-R', f'{_USER}:{_USER}']
  _run([*owner, f'/home/{_USER}'])
  partial.rename(root)


def install(root: pathlib.Path, names: Sequence[str]) -> None:
  """Installs packages in a root by its APT."""
  command = ['apt-get', '--quiet', '--quiet', '--yes', 'install']
  command += ['--no-install-recommends', *names]
  script = f'apt-get --quiet --quiet update && {" ".join(command)}'
  run(root, ['sh', '-c', script], user='root').check_returncode()


def run(
  root: pathlib.Path,
  command: Sequence[str],
  *,
  user: str = _USER,
  env: Mapping[str, str] | None = None,
  **options,
) -> subprocess.CompletedProcess:
  """Runs a command in a root, with mounts and process numbers of its own.

  Args:
    root: of `make`.
    command: it runs in the clone.
    user: who runs it.
    env: variables besides those of a login and of the registries.
    **options: of subprocess.run.
  """
  home = '/root' if user == 'root' else f'/home/{user}'
  login = {
    'DEBIAN_FRONTEND': 'noninteractive',
    'HOME': home,
    'LANG': 'C.UTF-8',
    'PATH': '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
    'USER': user,
  }
  kept = {k: v for k, v in os.environ.items() if k.startswith(_VARIABLES)}
  enter = ['unshare', '--mount', '--pid', '--fork', '--kill-child', 'sh', '-c']
  words = [*enter, _ENTER, 'sh', str(root), user, f'/{_CLONE}', *command]
  env = {**kept, **(env or {}), **login}
  return subprocess.run(words, env=env, check=False, **options)


def _apt_settings() -> str:
  command = ['apt-config', 'dump', 'Acquire']
  lines = subprocess.check_output(command, text=True).splitlines(keepends=True)
  return ''.join(line for line in lines if line.startswith(_APT))


def _run(command: Sequence[str | pathlib.Path]) -> None:
  subprocess.run(command, check=True)


def _copy(source: pathlib.Path, path: pathlib.Path) -> None:
  """Copies a file that may not exist."""
  if source.exists():
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, path)


def main(argv: Sequence[str]) -> int:
  """Makes what is missing, runs the command and returns its exit code."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('suite', help='bookworm, trixie, jammy, noble, ...')
  parser.add_argument('root', type=pathlib.Path, help='a folder')
  parser.add_argument('--mirror', help='default: that of the APT sources')
  parser.add_argument(
    '--packages', nargs='*', default=PACKAGES, help='default: for bazelw'
  )
  parser.add_argument('command', nargs=argparse.REMAINDER)
  options = parser.parse_args(argv)
  root = options.root.absolute()
  try:
    if not root.exists():
      make(root, options.suite, options.mirror or mirror(options.suite))
    env = variables(options.suite)
  except MissingError as e:
    print(f'bare_root: {e}', file=sys.stderr)
    return 1
  install(root, options.packages)
  return run(root, options.command, env=env).returncode


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
