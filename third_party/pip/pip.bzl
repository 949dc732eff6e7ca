"""pip_repository: the wheels of a hash-locked requirements file as one external repository."""

load("//third_party/python:python.bzl", "find_python")

def _impl(rctx):
    rctx.report_progress("fetching the wheels of %s" % rctx.attr.lock)

    # Another interpreter at the same path needs other wheels and .pyc files.
    rctx.path(rctx.attr._python_key)
    args = [
        find_python(rctx),
        "-B",
        str(rctx.path(rctx.attr._fetch)),
        "--lock=%s" % rctx.path(rctx.attr.lock),
        "--repo=%s" % rctx.attr.apparent_name,
    ]
    if rctx.attr.base_lock:
        args.append("--base_lock=%s" % rctx.path(rctx.attr.base_lock))
        args.append("--base_repo=%s" % rctx.attr.base_repo)
    if rctx.attr.excluded:
        args.append("--excluded=%s" % rctx.path(rctx.attr.excluded))
    args += ["--only=%s" % name for name in rctx.attr.only]
    args += ["--sdist=%s" % name for name in rctx.attr.sdists]
    if rctx.attr.data_only:
        args.append("--data_only")
    if rctx.attr.merged:
        args.append("--merged")
    for target, name in rctx.attr.annotations.items():
        args.append("--annotate=%s=%s" % (name, rctx.path(target)))
    res = rctx.execute(args, timeout = 1800)
    if res.return_code:
        fail("pip_repository: " + res.stderr)

pip_repository = repository_rule(
    implementation = _impl,
    environ = [
        "PATH",
        "PAX_PYTHON",
        "PIP_REPOSITORY_STORE",
    ],
    attrs = {
        "annotations": attr.label_keyed_string_dict(allow_files = True),
        "apparent_name": attr.string(default = "pypi"),
        "base_lock": attr.label(
            allow_single_file = True,
            doc = "The lock of `base_repo`, whose packages the wheels here may need.",
        ),
        "base_repo": attr.string(default = "pypi"),
        "data_only": attr.bool(doc = "The wheels' code is not run, so they need nothing."),
        "excluded": attr.label(
            allow_single_file = True,
            doc = "Lists distributions that the wheels require but do not get.",
        ),
        "lock": attr.label(
            mandatory = True,
            allow_single_file = True,
        ),
        "merged": attr.bool(doc = "One directory and one target, `all`."),
        "only": attr.string_list(doc = "Distributions of the lock; empty: all."),
        "sdists": attr.string_list(doc = "Pure Python without wheels, built by the lock's setuptools."),
        "_python_key": attr.label(
            default = "@local_python//:KEY",
            allow_single_file = True,
        ),
        "_fetch": attr.label(
            default = "//third_party/pip:fetch.py",
            allow_single_file = True,
        ),
    },
)
