#!/bin/sh
# Bakes the image that a virtual machine boots: a root file system with a kernel, and with a package installed in it
# that nothing starts while it is baked. It is run in a mount namespace of its own.
#   image.sh ROOT PACKAGE DIRECTORY
# puts the files of DIRECTORY/files there, too. It makes DIRECTORY/disk, an ext4 file system, and beside it the kernel and its
# first root, vmlinuz and initrd.
set -eu
root=$1 package=$2 to=$3 dir=$3/scratch

mkdir "$dir"
mount -t tmpfs -o mode=755 tmpfs "$dir"
mkdir "$dir/upper" "$dir/work" "$dir/root"
mount -t overlay -o "lowerdir=$root,upperdir=$dir/upper,workdir=$dir/work" overlay "$dir/root"
cd "$dir/root"

# An emulated processor takes seconds for what a real one does in a moment. The first root has what the disk and the
# network need and nothing else, and of the services those go that have nothing to do with a node's life.
printf 'MODULES=list\nCOMPRESS=gzip\n' >etc/initramfs-tools/conf.d/50-test
printf '%s\n' virtio_pci virtio_blk virtio_net >>etc/initramfs-tools/modules
for unit in getty.target getty@tty1.service serial-getty@ttyS0.service e2scrub_reap.service ldconfig.service \
	systemd-hwdb-update.service systemd-pstore.service systemd-update-utmp.service systemd-random-seed.service \
	systemd-firstboot.service systemd-sysusers.service systemd-binfmt.service systemd-network-generator.service \
	systemd-user-sessions.service dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount; do
	ln -sf /dev/null "etc/systemd/system/$unit"
done
ln -sf /usr/lib/systemd/system/multi-user.target etc/systemd/system/default.target
mkdir -p etc/systemd/journald.conf.d
printf '[Journal]\nForwardToConsole=yes\nMaxLevelConsole=info\n' >etc/systemd/journald.conf.d/60-console.conf
printf '[Match]\nName=e*\n[Network]\nDHCP=ipv4\n' >etc/systemd/network/50-test.network

mount -t proc proc proc
cp "$package" root/package.deb
chroot . dpkg --install /root/package.deb
chroot . systemctl enable systemd-networkd
chroot . update-initramfs -u
umount proc
rm root/package.deb
cp -R "$to/files/." .

cp -L vmlinuz "$dir/vmlinuz"
cp -L initrd.img "$dir/initrd"
mke2fs -q -t ext4 -d . "$dir/disk" 2G
cp --sparse=always "$dir/disk" "$dir/vmlinuz" "$dir/initrd" "$to"
