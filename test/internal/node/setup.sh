#!/bin/sh
# Makes a machine fit for a kubelet, at each boot before anything starts.
set -eu

# nspawn lets a container look at the controllers. Its own part of them is all that this one sees.
for hierarchy in /sys/fs/cgroup/*/; do
	mount -o remount,rw,bind "$hierarchy" 2>/dev/null || : # a directory of the second version
done

# The kubelet wants to know how full the disk is that images are on, and knows no overlay.
mkdir -p /var/lib/containerd
mount -t tmpfs -o mode=711 images /var/lib/containerd

# The kubelet looks for the kernel's word on processes that were killed for want of memory.
ln -sf null /dev/kmsg

# The kubelet sets what belongs to the host, and is content with what it would set.
mkdir -p /run/settings
while read -r file value; do
	echo "$value" >"/run/settings/${file##*/}"
	mount --bind "/run/settings/${file##*/}" "/proc/sys/$file"
done <<-END
	vm/overcommit_memory 1
	vm/panic_on_oom 0
	kernel/panic 10
	kernel/panic_on_oops 1
	kernel/keys/root_maxkeys 1000000
	kernel/keys/root_maxbytes 25000000
END
