#!/bin/sh
# Makes the files of a release from a clean checkout of its tag: wheel and source, list of parts (SBOM), checksums, and, where they
# are wanted, images and signatures. Publishes nothing: what it has made lies in dist/, and the README says what is next.
#
#   sh deploy/release/release.sh                       wheel, source, SBOM, checksums
#   sh deploy/release/release.sh --images registry.example/semisilo
#   sh deploy/release/release.sh --sign                with cosign, without keys where an identity provider is at hand
#   sh deploy/release/release.sh --dry-run
set -eu

images='' sign=no dry=no any=no python=${PYTHON:-python3}
fail() { printf '%s\n' "error: $1" >&2; exit "${2:-1}"; }
while [ $# -gt 0 ]; do
    case $1 in
        --images) [ $# -ge 2 ] || fail "--images needs a registry's name." 2; images=$2; shift ;;
        --sign) sign=yes ;;
        --dry-run) dry=yes ;;
        --any-commit) any=yes ;;   # for trying it out: neither a tag nor a clean checkout is asked for
        -h|--help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) fail "'$1' is not known. See: sh deploy/release/release.sh --help" 2 ;;
    esac
    shift
done

cd "$(dirname -- "$0")/../.."
do_it() { printf '+ %s\n' "$*"; [ "$dry" = yes ] || "$@"; }
need() { [ "$dry" = yes ] || command -v "$1" >/dev/null || fail "$1 is not installed here. $2"; }

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' common/__init__.py)
[ -n "$version" ] || fail "common/__init__.py says no version."
grep -q "^## \[$version\]" CHANGELOG.md || [ "$any" = yes ] || fail "CHANGELOG.md has no section [$version]."
for chart in hub silo; do
    grep -q "^appVersion: \"$version\"$" "deploy/helm/semisilo-$chart/Chart.yaml" ||
        fail "deploy/helm/semisilo-$chart/Chart.yaml has another appVersion than $version."
done
if [ "$any" = no ]; then
    [ -z "$(git status --porcelain)" ] || fail "There are changes that are not committed."
    [ "$(git describe --exact-match --tags 2>/dev/null || true)" = "v$version" ] ||
        fail "This commit has no tag v$version. Make it: git tag --sign v$version"
fi
# Wheels of the same commit, checked out with the same umask, are the same bytes; the source holds the time of its build.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

[ "$dry" = yes ] || "$python" -c 'import build' 2>/dev/null || fail "The package build is not installed: it is in the extra release."
do_it rm -rf dist
do_it "$python" -m build --outdir dist
# What the release runs on: the packages of this environment, in which its tests ran, in CycloneDX's form.
need cyclonedx-py "It is in the extra release."
do_it cyclonedx-py environment --output-format JSON --output-reproducible --output-file "dist/semisilo-$version.cdx.json" "$python"

if [ -n "$images" ]; then
    builder=$(command -v buildah || command -v podman || command -v docker || echo buildah)
    need "$builder" "One of buildah, podman and docker builds images."
    for side in coordinator silo; do
        do_it "$builder" build --file "deploy/$side.Dockerfile" --build-arg "TORCH_INDEX=${TORCH_INDEX:-}" \
            --tag "$images/semisilo-$side:$version" .
    done
fi

if [ "$dry" = no ]; then (cd dist && sha256sum -- *.whl *.tar.gz *.json > SHA256SUMS); fi
if [ "$sign" = yes ]; then
    need cosign "It signs files and images."
    do_it cosign sign-blob --yes --bundle dist/SHA256SUMS.sigstore.json dist/SHA256SUMS
    [ -z "$images" ] || printf '%s\n' "Images are signed by their digest once they are pushed: README.md."
fi
printf '%s\n' "semisilo $version: dist/"
