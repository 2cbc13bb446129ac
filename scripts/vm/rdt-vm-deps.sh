#!/usr/bin/env bash
# What `make test-rdt` needs, in the folder SUREFOOT_RDT_VM (default out/rdt-vm): a QEMU whose processors have RDT or AMD QoS (Debian's source
# with scripts/vm/rdt-vm/rdt.patch), stock Debian kernels 6.1 and 6.12, and a Debian root. Each part is made once (four minutes on two cores
# for QEMU) and kept; one that was not finished is made again. Several checkouts may share a folder. As root, on Debian 12.
#   scripts/vm/rdt-vm-deps.sh [packages] [qemu] [6.1] [6.12] [disk]     default: all; "packages": only what is to be installed on this machine
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/vm/rdt-vm/parts.sh
. scripts/vm/rdt-vm/parts.sh
parts=("$@")
# shellcheck disable=SC2206  # a list of words
[ $# -gt 0 ] || parts=(qemu $rdt_kernels disk)

is_there() {
  case $1 in
    packages | qemu) [ -x "$qemu" ] ;;
    disk) [ -s "$disk" ] ;;
    *) [ -s "$dir/kernel-$1/package" ] && [ -x "$dir/kernel-$1/root/bin/busybox" ] ;;
  esac
}
missing=()
for part in "${parts[@]}"; do
  case " packages qemu disk $rdt_kernels " in *" $part "*) ;; *) fail "no part \"$part\". There are: packages, qemu, disk, $rdt_kernels" ;; esac
  is_there "$part" || missing+=("$part")
done
# The firmware, of which QEMU reads two files.
firmware=()
[ -e /usr/share/seabios/bios-256k.bin ] || firmware+=(seabios)
[ -e /usr/share/qemu/linuxboot_dma.bin ] || firmware+=(qemu-system-data)
if [ ${#firmware[@]} -gt 0 ]; then scripts/install-packages.sh "make test-rdt" "${firmware[@]}"; fi
[ ${#missing[@]} -gt 0 ] || exit 0

[ "$(uname -m)" = x86_64 ] || fail "make test-rdt builds an emulator of x86 for x86. Run it there."
[ "$(id -u)" = 0 ] || fail "make test-rdt builds its machine from Debian's packages: run it as root once, or name a folder that has one in SUREFOOT_RDT_VM."
grep -q '^VERSION_CODENAME=bookworm$' /etc/os-release || fail "make test-rdt builds QEMU from Debian 12's source: run it there, or name a folder that has one in SUREFOOT_RDT_VM."
mkdir -p "$dir"
exec 9>"$dir/lock"
flock -n 9 || { echo "surefoot: another run makes the machine in $dir: waiting for it"; flock 9; }

# apt with Debian 12's source and backports, at the mirrors that this machine uses; its own sources and lists stay as they are.
apt_of_its_own() {
  [ -z "${APT_CONFIG:-}" ] || return 0
  local main security keyring="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
  # shellcheck disable=SC2016  # apt's own names
  mirror() { apt-get indextargets --format '$(REPO_URI) $(RELEASE)' | awk -v suite="$1" '$2 == suite && !n++ { print $1 }'; }
  main=$(mirror bookworm)
  security=$(mirror bookworm-security)
  [ -n "$main" ] || fail "apt has no source of bookworm. Add Debian 12's main archive to /etc/apt/sources.list.d, then run make test-rdt again."
  mkdir -p "$dir"/apt/lists/partial "$dir"/apt/cache/archives/partial
  {
    echo "deb $keyring $main bookworm main"
    echo "deb-src $keyring $main bookworm main"
    echo "deb $keyring $main bookworm-backports main"
    [ -z "$security" ] || echo "deb $keyring $security bookworm-security main"
  } >"$dir/apt/sources.list"
  cat >"$dir/apt/apt.conf" <<CONF
Dir::Etc::sourcelist "$dir/apt/sources.list";
Dir::Etc::sourceparts "/nonexistent";
Dir::State::lists "$dir/apt/lists";
Dir::Cache "$dir/apt/cache";
APT::Sandbox::User "root";
CONF
  export APT_CONFIG=$dir/apt/apt.conf
  apt-get update -q -o APT::Update::Error-Mode=any || fail "apt cannot read Debian 12's archive (above). Give this machine a mirror of it, or name a folder that has the machine in SUREFOOT_RDT_VM."
}

install_for_qemu() {
  local need=(meson ninja-build gcc dpkg-dev libc6-dev libglib2.0-dev libpixman-1-dev libattr1-dev libcap-ng-dev libfdt-dev zlib1g-dev patch)
  local lacking=() package
  for package in "${need[@]}"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || lacking+=("$package")
  done
  if [ ${#lacking[@]} -gt 0 ]; then scripts/install-packages.sh "make test-rdt" "${lacking[@]}"; fi
}

make_qemu() {
  local new=$dir/new-qemu
  install_for_qemu
  echo "surefoot: building a QEMU with RDT (some minutes); its log is $dir/qemu.log"
  rm -rf "$new" && mkdir -p "$new/build"
  apt_of_its_own
  : >"$dir/qemu.log"
  step() {
    local what=$1
    shift
    "$@" >>"$dir/qemu.log" 2>&1 || { tail -n 5 "$dir/qemu.log" >&2; fail "cannot $what. See $dir/qemu.log; another run begins anew."; }
  }
  step "fetch QEMU's source from Debian's archive" env -C "$new" apt-get source -q --download-only qemu
  step "unpack QEMU's source" dpkg-source -x "$new"/qemu_*.dsc "$new/src"
  step "apply scripts/vm/rdt-vm/rdt.patch, made for QEMU 7.2" patch -d "$new/src" -p1 -i "$PWD/$here/rdt.patch"
  # Python of the system: a virtual environment has no distlib.
  step "configure QEMU" env -C "$new/build" PATH=/usr/sbin:/usr/bin:/sbin:/bin ../src/configure "${rdt_configure[@]}"
  step "build QEMU" env -C "$new/build" PATH=/usr/sbin:/usr/bin:/sbin:/bin nice ninja qemu-system-x86_64
  strip -o "$new/qemu" "$new/build/qemu-system-x86_64"
  mv "$new/qemu" "$qemu"
  rm -rf "$new"
}

make_kernel() {
  local package
  apt_of_its_own
  package=$(scripts/vm/kernel-package.sh "$1")
  SUREFOOT_VM_QEMU=$qemu SUREFOOT_KERNEL=$package scripts/vm/kernel-vm-deps.sh "$dir/kernel-$1"
  grep -q '^CONFIG_X86_CPU_RESCTRL=y' "$dir/kernel-$1"/root/boot/config-* || fail "$package has no resctrl"
}

for part in "${missing[@]}"; do
  # Another run may have made it while this one waited.
  if is_there "$part"; then continue; fi
  case $part in
    packages) install_for_qemu ;;
    qemu) make_qemu ;;
    disk) (unset APT_CONFIG; scripts/vm/kernel-vm-disk.sh "$disk" "--include=$rdt_packages") ;;
    *) make_kernel "$part" ;;
  esac
done
