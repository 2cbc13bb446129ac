#!/usr/bin/env bash
# all.sh [x86_64|aarch64] - the node side as one archive and one Debian package, in dist/. The same commit gives the same bytes.
#
# The binary is linked for glibc 2.28 (Debian 10, RHEL 8), whatever this machine has: cargo-zigbuild brings the linker.
# SUREFOOT_DIST_TARGET  folder of the build; default: target/dist
set -euo pipefail
cd "$(dirname "$0")/../.."
repo=$PWD

arch=${1:-x86_64}
glibc=2.28
case $arch in
  x86_64) deb_arch=amd64 ;;
  aarch64) deb_arch=arm64 ;;
  *) echo "dist: no such architecture: $arch. Give x86_64 or aarch64" >&2; exit 2 ;;
esac
triple=$arch-unknown-linux-gnu
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
build=${SUREFOOT_DIST_TARGET:-$repo/target/dist}
tools=$build/tools
say() { printf 'dist: %s\n' "$*"; }

if ! "$tools/bin/cargo-zigbuild" --version >/dev/null 2>&1 || ! cmp -s packaging/requirements-dist.txt "$tools/requirements"; then
  say "installing cargo-zigbuild and ziglang (100 MB) into ${tools#"$repo"/}"
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --require-hashes --no-deps -r packaging/requirements-dist.txt
  cp packaging/requirements-dist.txt "$tools/requirements"
fi
rustup target list --installed 2>/dev/null | grep -qx "$triple" || rustup target add "$triple"

# No path of this machine in the binary, and no symbols.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
sysroot=$(rustc --print sysroot)
remap="--remap-path-prefix=$repo=. --remap-path-prefix=$build=target --remap-path-prefix=$cargo_home=cargo --remap-path-prefix=$sysroot=rust"
prefix_map="-ffile-prefix-map=$repo=. -ffile-prefix-map=$build=target -ffile-prefix-map=$cargo_home=cargo -g0"
# What loads programs into the kernel is linked with libelf and zlib. They have a folder of their own: what else this machine has beside
# them is of its glibc.
native=$build/native/$arch
features=()
if libraries=$(scripts/bpf-libraries.sh "$arch" 2>&1); then
  rm -rf "$native"
  mkdir -p "$native/include"
  cp -L "$libraries/libelf.a" "$libraries/libz.a" "$native/"
  cp -L /usr/include/{libelf.h,gelf.h,zlib.h,zconf.h} "$native/include/"
  export "LIBBPF_SYS_LIBRARY_PATH_${triple//-/_}=$native" LIBBPF_SYS_EXTRA_CFLAGS="-I$native/include"
else
  say "without programs for the kernel, so that lenders read /proc: $libraries"
  features=(--no-default-features)
fi
say "building for $triple, glibc $glibc"
PATH=$tools/bin:$PATH CARGO_TARGET_DIR=$build RUSTFLAGS=$remap CFLAGS=$prefix_map CARGO_PROFILE_RELEASE_STRIP=symbols \
  CARGO_INCREMENTAL=0 ZIG_GLOBAL_CACHE_DIR=$build/zig-cache \
  cargo zigbuild --release --locked --target "$triple.$glibc" "${features[@]}" -p surefootd -p surefoot-loadgen

name=surefootd-$version-$arch
stage=$build/stage/$name
rm -rf "$build/stage"
mkdir -p dist
# Manual pages and completions are written by a program that runs here.
here=$build/$triple/release/surefootd
if [ "$arch" != "$(uname -m)" ]; then
  CARGO_TARGET_DIR=$build cargo build --release --locked --no-default-features -p surefootd
  here=$build/release/surefootd
fi
scripts/dist/stage.sh "$stage" "$build/$triple/release" "$here"
scripts/dist/check.sh "$glibc" "$stage/bin/surefootd" "$stage/bin/surefoot-loadgen"
sums=$(cd "$stage" && find . -type f -printf '%P\n' | LC_ALL=C sort | xargs sha256sum)
printf '%s\n' "$sums" >"$stage/SHA256SUMS"
# One form of a tar: sorted, no owners, one time; gzip without a name or time of its own.
tar -C "$build/stage" --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" \
  | gzip -9n >"dist/$name.tar.gz"
say "dist/$name.tar.gz"

if command -v dpkg-deb >/dev/null; then
  deb=$build/stage/deb
  "$stage/install.sh" --root "$deb" >/dev/null
  mkdir -p "$deb/DEBIAN"
  kib=$(du -sk --apparent-size "$deb" | cut -f1)
  sed "s/@VERSION@/$version/; s/@ARCH@/$deb_arch/; s/@KIB@/$kib/" packaging/debian/control.in >"$deb/DEBIAN/control"
  for file in conffiles postinst prerm postrm; do cp "packaging/debian/$file" "$deb/DEBIAN/"; done
  chmod -R u=rwX,go=rX "$deb"
  chmod 755 "$deb/DEBIAN"/p*
  find "$deb" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
  dpkg-deb --root-owner-group -Zxz --build "$deb" "dist/surefoot-node_${version}_$deb_arch.deb" >/dev/null
  say "dist/surefoot-node_${version}_$deb_arch.deb"
else
  say "no dpkg-deb here: no Debian package was made"
fi
(cd dist && find . -maxdepth 1 -type f -name "*$version*" -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS && cat SHA256SUMS)
