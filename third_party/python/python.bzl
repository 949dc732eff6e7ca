"""@local_python: the interpreter that builds the tree, its headers, a toolchain."""

_DEFS = """PYTHON = %r
VERSION = %r
EXT_SUFFIX = %r
"""

_BUILD = """
load("@rules_cc//cc:cc_library.bzl", "cc_library")
load("@rules_python//python:defs.bzl", "py_runtime", "py_runtime_pair")

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
    # The first lines of every program: an upgrade keeps the path.
    stub_shebang = %r,
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
        fail("no %s on the PATH; install Python 3.11-3.14 or set PAX_PYTHON" % name)
    return str(python)

def _impl(rctx):
    python = find_python(rctx)
    res = rctx.execute([python, "-I", "-S", rctx.path(rctx.attr._identity)])
    if res.return_code:
        fail("%s cannot build the tree: %s" % (python, res.stderr))
    exe, include, version, suffix, key = res.stdout.strip().split("\n")
    rctx.watch(exe)
    if not rctx.path(include + "/Python.h").exists:
        fail("%s has no headers in %s; install them (Debian: python3-dev)" % (exe, include))
    rctx.symlink(include, "include")
    rctx.file("defs.bzl", _DEFS % (exe, version, suffix))
    rctx.file("BUILD", _BUILD % (exe, "#!%s\n# %s" % (exe, key)))

    # For actions and repositories that read the standard library.
    rctx.file("KEY", key + "\n")

local_python = repository_rule(
    implementation = _impl,
    local = True,
    environ = [
        "PATH",
        "PAX_PYTHON",
    ],
    attrs = {
        "_identity": attr.label(
            default = "//third_party/python:identity.py",
            allow_single_file = True,
        ),
    },
)
