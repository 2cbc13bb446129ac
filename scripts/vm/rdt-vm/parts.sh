# shellcheck shell=bash disable=SC2034  # others use them
# Sourced by scripts/vm/rdt-vm*.sh: where the parts of the virtual machine with RDT are. A part's name has the hash of what it is made of, so that
# checkouts that share a folder each find their own, and a part that has its name is whole.
dir=$(realpath -m "${SUREFOOT_RDT_VM:-out/rdt-vm}")
here=$(dirname "${BASH_SOURCE[0]}")

fail() { printf 'surefoot: %s\n' "$1" >&2; exit 1; }

rdt_configure=(--target-list=x86_64-softmmu --without-default-features --without-default-devices --with-devices-x86_64=rdt --enable-tcg
  --enable-virtfs --enable-attr --enable-cap-ng --enable-fdt=system --enable-system --disable-docs --disable-tools --disable-werror
  --disable-debug-info --with-git-submodules=ignore)
rdt_packages=procps,kmod,iproute2,util-linux,python3,strace,stress-ng
rdt_kernels="6.1 6.12"

hash_of() { sha256sum | cut -c 1-12; }
qemu=$dir/qemu-$({ cat "$here/rdt.patch"; echo "${rdt_configure[*]}"; } | hash_of)
disk=$dir/disk-$(echo "$rdt_packages" | hash_of).ext4
