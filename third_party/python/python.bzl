"""@local_python: the interpreter that builds the tree, its headers, a toolchain."""

_ASK = """
import hashlib, os, sys, sysconfig
exe = os.path.realpath(sys.executable)
print(exe)
print(sysconfig.get_path('include'))
print('%d.%d' % sys.version_info[:2])
print(sysconfig.get_config_var('EXT_SUFFIX'))
with open(exe, 'rb') as f:
  print(hashlib.sha256(f.read()).hexdigest(), ' '.join(sys.version.split()))
"""

_DEFS = """PYTHON = %r
VERSION = %r
EXT_SUFFIX = %r
"""

_BUILD = """
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

exports_files(["KEY"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
)

py_runtime(
    name = "py3",
    interpreter_path = %r,
    python_version = "PY3",
)

py_runtime_pair(
    name = "pair",
    py2_runtime = None,
    py3_runtime = ":py3",
)

toolchain(
    name = "toolchain",
    toolchain = ":pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

def find_python(rctx):
    """The program to run: $PAX_PYTHON, a path or a name, else python3."""
    name = rctx.os.environ.get("PAX_PYTHON") or "python3"
    python = name if "/" in name else rctx.which(name)
    if not python:
        fail("no %s on the PATH; install Python 3.11-3.13 or set PAX_PYTHON" % name)
    return str(python)

def _impl(rctx):
    python = find_python(rctx)
    res = rctx.execute([python, "-c", _ASK])
    if res.return_code:
        fail("cannot ask %s about itself: %s" % (python, res.stderr))
    exe, include, version, suffix, key = res.stdout.strip().split("\n")
    if not rctx.path(include + "/Python.h").exists:
        fail("%s has no headers in %s; install them (Debian: python3-dev)" % (exe, include))
    rctx.symlink(include, "include")
    rctx.file("defs.bzl", _DEFS % (exe, version, suffix))
    rctx.file("BUILD", _BUILD % exe)

    # For actions that read the standard library: an upgrade keeps the path.
    rctx.file("KEY", key + "\n")

local_python = repository_rule(
    implementation = _impl,
    local = True,
    environ = [
        "PATH",
        "PAX_PYTHON",
    ],
)
