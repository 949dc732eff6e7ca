"""@local_cc: Bazel's toolchain of this machine's compiler, identified by its content.

Bazel's own has the compiler's path in the keys of its actions: a compiler upgraded
at that path would not rebuild what an older one built.
"""

# Prints the digests of what compiles and links, and of the libraries that are
# linked statically; $1 is the compiler.
_ASK = """
set -eu
"$1" --version | head -n 1
paths=$1
for name in cc1 cc1plus collect2 as ld ar; do
  paths="$paths $(command -v "$("$1" "-print-prog-name=$name")" || true)"
done
for name in libstdc++.a libgcc.a libgcc_eh.a libc.a; do
  paths="$paths $("$1" "-print-file-name=$name")"
done
for path in $paths; do
  if [ -f "$path" ]; then sha256sum "$path"; fi
done
"""

_TOOLCHAIN = """
toolchain(
    name = "local_toolchain",
    toolchain = ":cc-compiler-%s",
    toolchain_type = "@bazel_tools//tools/cpp:toolchain_type",
)
"""

def _impl(rctx):
    name = rctx.os.environ.get("CC") or "gcc"
    compiler = name if "/" in name else rctx.which(name)
    if not compiler:
        fail("no %s on the PATH; install a C++ compiler (Debian: g++) or set CC" % name)
    res = rctx.execute(["sh", "-c", _ASK, "sh", str(compiler)])
    if res.return_code:
        fail("cannot identify %s: %s" % (compiler, res.stderr))

    detected = rctx.path(rctx.attr._detected)
    for path in detected.dirname.readdir():
        if path.basename not in ["BUILD", "WORKSPACE", "REPO.bazel", "MODULE.bazel"]:
            rctx.symlink(path, path.basename)
    text = rctx.read(detected)
    target = text.split('name = "cc-compiler-')[1].split('"')[0]
    rctx.file("BUILD", text + _TOOLCHAIN % target)

    # The toolchain's files, inputs of every action, are a glob of this folder.
    rctx.file("extra_tools/KEY", res.stdout)
    rctx.watch(compiler)

local_cc = repository_rule(
    implementation = _impl,
    local = True,
    environ = [
        "CC",
        "PATH",
    ],
    attrs = {
        "_detected": attr.label(
            default = "@local_config_cc//:BUILD",
            allow_single_file = True,
        ),
    },
)
