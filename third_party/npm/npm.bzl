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

# npm is a program of Node.js, which has Brotli.
_UNPACK = """
const fs = require('fs'), zlib = require('zlib');
const [source, dest] = process.argv.slice(1);
const data = zlib.brotliDecompressSync(fs.readFileSync(source));
fs.writeFileSync(dest, data, {mode: 0o755});
fs.unlinkSync(source);
"""

def _unpack(rctx, path):
    """Replaces a file NAME.br by NAME, and NAME.tar.br by what it contains."""
    dest = path.removesuffix(".br")
    res = rctx.execute([rctx.which("node"), "-e", _UNPACK, path, dest])
    if res.return_code:
        fail("cannot unpack %s: %s" % (path, res.stderr))
    if dest.endswith(".tar"):
        rctx.extract(dest, output = dest.rpartition("/")[0])
        rctx.delete(dest)

def _impl(rctx):
    rctx.file("BUILD", _BUILD)
    npm = rctx.which("npm")
    if not npm:
        # The tests say so where they look for the programs.
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
    for path in rctx.attr.brotli:
        _unpack(rctx, path)

npm_package = repository_rule(
    implementation = _impl,
    attrs = {
        "brotli": attr.string_list(doc = "Compressed files: .br, .tar.br."),
        "package": attr.string(mandatory = True),
        "sha512": attr.string(
            mandatory = True,
            doc = "Base64, as in the registry's dist.integrity.",
        ),
        "version": attr.string(mandatory = True),
    },
)
