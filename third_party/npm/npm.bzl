"""npm_package: the files of one npm package, fetched by the machine's own npm."""

_HASH = """
import base64, hashlib, sys
data = open(sys.argv[1], 'rb').read()
print(base64.b64encode(hashlib.sha512(data).digest()).decode())
"""

_BUILD = """
filegroup(
    name = "files",
    srcs = glob(["package/**"], allow_empty = True),
    visibility = ["//visibility:public"],
)
"""

def _impl(rctx):
    rctx.file("BUILD", _BUILD)
    npm = rctx.which("npm")
    if not npm:
        # The lint test says so where it looks for the program.
        return
    spec = "%s@%s" % (rctx.attr.package, rctx.attr.version)
    res = rctx.execute([npm, "pack", "--silent", spec])
    if res.return_code:
        fail("npm pack %s: %s" % (spec, res.stderr))
    archive = res.stdout.strip().split("\n")[-1]
    got = rctx.execute([rctx.which("python3"), "-c", _HASH, archive]).stdout.strip()
    if got != rctx.attr.sha512:
        fail("%s: sha512 must be %s, got %s" % (spec, rctx.attr.sha512, got))
    rctx.extract(archive)
    rctx.delete(archive)

npm_package = repository_rule(
    implementation = _impl,
    attrs = {
        "package": attr.string(mandatory = True),
        "sha512": attr.string(
            mandatory = True,
            doc = "Base64, as in the registry's dist.integrity.",
        ),
        "version": attr.string(mandatory = True),
    },
)
