#!/bin/busybox sh
# The first program of a guest: the machine's disk, read-only, below a layer in memory; then guest.sh.
B=/bin/busybox
die() {
    $B echo "GUEST FAILED: $*"
    $B reboot -f
}
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
WORK=$($B sed -n 's/.*work=\([^ ]*\).*/\1/p' /proc/cmdline)
for module in $($B cat /order); do
    $B insmod /modules/$module || $B echo "insmod $module failed"
done
OPTIONS=trans=virtio,version=9p2000.L,msize=512000
$B mount -t 9p -o ro,cache=loose,$OPTIONS root /lower || die "the machine's disk"
$B mount -t tmpfs -o size=60% layer /upper
$B mkdir -p /upper/files /upper/work
$B mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /new || die "overlay"
for folder in proc sys dev; do
    $B mount --move /$folder /new/$folder
done
$B mkdir -p /new/dev/shm /new/dev/pts "/new$WORK"
$B mount -t tmpfs -o size=60% shm /new/dev/shm
$B mount -t devpts pts /new/dev/pts
$B mount -t tmpfs run /new/run
$B mount -t 9p -o rw,cache=none,$OPTIONS work "/new$WORK" || die "the folder of the work"
exec $B switch_root /new /bin/bash "$WORK/guest.sh"
