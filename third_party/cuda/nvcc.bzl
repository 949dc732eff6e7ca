"""nvcc_library: a CUDA file compiled by the machine's nvcc into a cc_library."""

load("@local_cuda//:defs.bzl", "HAS_NVCC", "NVCC")

# The oldest and the newest architectures that jax's CUDA 13 wheels run on; the
# last one is also kept as PTX, for what comes after it.
_ARCHITECTURES = ["75", "80", "90", "100"]

def nvcc_library(name, srcs, hdrs = [], deps = [], visibility = None):
    """Declares `name` where nvcc was found, nothing elsewhere.

    Args:
      name: of the cc_library.
      srcs: one .cu file.
      hdrs: headers it includes, also those of its deps.
      deps: cc_library targets that users of it need too.
      visibility: of the cc_library.
    """
    if not HAS_NVCC:
        return
    codes = " ".join([
        "-gencode=arch=compute_%s,code=sm_%s" % (a, a)
        for a in _ARCHITECTURES
    ] + ["-gencode=arch=compute_%s,code=compute_%s" % (_ARCHITECTURES[-1], _ARCHITECTURES[-1])])
    native.genrule(
        name = name + "_nvcc",
        srcs = srcs + hdrs,
        outs = ["lib%s.a" % name],
        cmd = " ".join([
            NVCC,
            "-std=c++17 -O3 -Xcompiler=-fPIC,-fvisibility=hidden",
            codes,
            "-I. --lib $(location %s) -o $@" % srcs[0],
        ]),
        message = "Compiling CUDA",
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name,
        srcs = [":lib%s.a" % name],
        hdrs = hdrs,
        linkstatic = True,
        visibility = visibility,
        deps = deps + ["@local_cuda//:cudart"],
    )

def cuda_cc_library(name, **kwargs):
    """A cc_library that includes CUDA headers; declared where nvcc was found.

    Args:
      name: of the target.
      **kwargs: of cc_library.
    """
    if HAS_NVCC:
        native.cc_library(name = name, linkstatic = True, **kwargs)

def if_cuda(values):
    """`values` with --config=cuda on a machine that has nvcc, else nothing.

    Args:
      values: a list for an attribute.

    Returns:
      a select.
    """
    return select({
        "//:cuda": values if HAS_NVCC else [],
        "//conditions:default": [],
    })
