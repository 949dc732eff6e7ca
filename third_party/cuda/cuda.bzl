"""@local_cuda: the nvcc of this machine, where there is one."""

_DEFS = """HAS_NVCC = %r
NVCC = %r
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**"], allow_empty = True),
    includes = ["include"],
)

cc_library(
    name = "cudart",
    srcs = glob(["lib/libcudart_static.a"], allow_empty = True),
    linkopts = ["-ldl", "-lpthread", "-lrt"],
    deps = [":headers"],
)
"""

def _toolkit(rctx):
    """(nvcc, folder with include and lib), or None twice."""
    nvcc = rctx.which("nvcc")
    if not nvcc:
        return None, None
    res = rctx.execute([nvcc, "--dryrun", "-x", "cu", "/dev/null"])
    for line in res.stderr.split("\n"):
        if line.startswith("#$ TOP="):
            return nvcc, rctx.path(line[len("#$ TOP="):]).realpath
    return None, None

def _impl(rctx):
    nvcc, top = _toolkit(rctx)
    if nvcc:
        rctx.symlink(top.get_child("targets/x86_64-linux/include"), "include")
        rctx.symlink(top.get_child("targets/x86_64-linux/lib"), "lib")
    rctx.file("defs.bzl", _DEFS % (bool(nvcc), str(nvcc or "")))
    rctx.file("BUILD", _BUILD)

local_cuda = repository_rule(
    implementation = _impl,
    local = True,
    environ = ["PATH"],
)
