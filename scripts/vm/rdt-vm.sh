#!/usr/bin/env bash
# Run a command as root on a stock Debian kernel whose processor has RDT or AMD QoS, in a virtual machine in software emulation: resctrl,
# cgroup v2, swap with zswap before it, a throw-away Debian 12, this checkout read-only at its own path. The status of the command is the
# status of this script; 124 where it took too long, 125 where the machine ended without a status (docs/test-kernel.md).
#   scripts/vm/rdt-vm.sh [-k KERNEL] [-c CONFIGURATION] [-o OPTIONS] [-x PROPERTIES] [--] COMMAND [ARG...]     after scripts/vm/rdt-vm-deps.sh
#   -k  6.1 or 6.12 (6.12)
#   -c  one (4 CPUs, 20 ways, MBA), two (2 sockets, 8 CPUs), e5 (no MBA), icx11 (11 ways, 2 sockets), amd (2 x 16 ways, MBA 0..2048)
#   -o  options of resctrl's mount: cdp, mba_MBps; "no": it is not mounted
#   -x  more properties of the processor: rdt-clos=N rdt-rmids=N rdt-mba-clos=N rdt-cdp=off rdt-mon=off rdt-sparse=on rdt-err-rmid=N, by commas
# SUREFOOT_VM_TIMEOUT_S (900), SUREFOOT_VM_BOOT_S (120): what the command and the boot may take
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/vm/rdt-vm/parts.sh
. scripts/vm/rdt-vm/parts.sh
usage() { sed -n 's/^# \{0,1\}//; 2,10p' "$0" >&2; exit 2; }
kernel=6.12 configuration=one options='' properties=''
while getopts k:c:o:x: option; do
  case $option in
    k) kernel=$OPTARG ;; c) configuration=$OPTARG ;; o) options=$OPTARG ;; x) properties=,$OPTARG ;; *) usage ;;
  esac
done
shift $((OPTIND - 1))
[ $# -ge 1 ] || usage
case " $rdt_kernels " in *" $kernel "*) ;; *) fail "no kernel \"$kernel\". There are: $rdt_kernels" ;; esac

memory_mib=1536
half=$((memory_mib / 2))M
one=(-smp "4,sockets=1,cores=2,threads=2")
two=(-smp "8,sockets=2,cores=2,threads=2"
  -object "memory-backend-ram,id=m0,size=$half" -object "memory-backend-ram,id=m1,size=$half"
  -numa "node,nodeid=0,cpus=0-3,memdev=m0" -numa "node,nodeid=1,cpus=4-7,memdev=m1")
intel="max,vendor=GenuineIntel,family=6,stepping=6,svm=off,la57=off"
twenty="$intel,model=106,rdt-ways=20,rdt-shareable=0xc0000"
case $configuration in
  one) cpu=$twenty sockets=("${one[@]}") ;;
  two) cpu=$twenty sockets=("${two[@]}") ;;
  # As a Xeon E5 v4: its model is one that the kernel locks regions of the cache on.
  e5)
    cpu="$intel,model=79,stepping=1,rdt-ways=20,rdt-shareable=0xc0000,rdt-mba-clos=0,rdt-rmids=144"
    sockets=("${one[@]}")
    ;;
  icx11)
    cpu="$intel,model=106,rdt-ways=11,rdt-shareable=0x600,rdt-rmids=224"
    sockets=("${two[@]}")
    ;;
  amd)
    cpu="EPYC-Rome,topoext=on,rdt-ways=16,rdt-shareable=0,rdt-mba-clos=16,rdt-rmids=256"
    sockets=("${two[@]}")
    ;;
  *) fail "no configuration \"$configuration\". There are: one two e5 icx11 amd" ;;
esac

[ -x "$qemu" ] && [ -s "$disk" ] && [ -s "$dir/kernel-$kernel/package" ] || fail "no machine in $dir. Run scripts/vm/rdt-vm-deps.sh first."
work=$(mktemp -d "$dir/run.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/image"/{dev,proc,sys,root} "$work/share"
scripts/vm/kernel-vm-image.sh "$dir/kernel-$kernel" "$work/image" virtio_pci virtio_blk 9pnet_virtio 9p ext4 crc32c_generic fuse
install -m 755 scripts/vm/rdt-vm/init "$work/image/init"
(cd "$work/image" && find . | "$dir/kernel-$kernel/root/bin/busybox" cpio -o -H newc -R 0:0 2>/dev/null | gzip -1) >"$work/initrd"
cp scripts/vm/rdt-vm/guest.sh "$work/share/guest.sh"
printf '%q ' "$@" >"$work/share/command"
pwd >"$work/share/checkout"
truncate -s 512M "$work/swap"
SUREFOOT_VM_TIMEOUT_S=${SUREFOOT_VM_TIMEOUT_S:-900} SUREFOOT_VM_BOOT_S=${SUREFOOT_VM_BOOT_S:-120} SUREFOOT_VM_QEMU=$qemu \
  scripts/vm/kernel-vm-boot.sh "$dir/kernel-$kernel" "$work" "surefoot.config=$configuration surefoot.resctrl=${options:-default}" \
  -machine pc,smm=off -cpu "$cpu$properties" "${sockets[@]}" -m "$memory_mib" \
  -drive "file=$disk,format=raw,if=virtio,snapshot=on,cache=unsafe" -drive "file=$work/swap,format=raw,if=virtio,cache=unsafe" \
  -device virtio-rng-pci \
  -virtfs "local,path=$PWD,mount_tag=checkout,security_model=none,readonly=on,multidevs=remap" 2> >(grep -v "TCG doesn't support" >&2)
